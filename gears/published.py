"""Folders that the published package (cell-gears) prepared, read without running anything in them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from gears.data.gene_sets import read_gene_set
from gears.data.manifest import H5AD
from gears.data.pickles import load_plain
from gears.data.splits.published import read_published_split
from gears.pertdata import PertData

logger = logging.getLogger(__name__)

GENE2GO, ESSENTIAL = "gene2go_all.pkl", "essential_all_data_pert_genes.pkl"


def load_cell_gears_folder(
    data_path: str | Path,
    name: str,
    *,
    output: str | Path | None = None,
    split: str | None = None,
    seed: int = 1,
    train_gene_set_size: float = 0.75,
    **processing: Any,
) -> PertData:
    """Take over what cell-gears prepared: the screen, its annotation, its nodes and its splits.

    Parameters
    ----------
    data_path
        The folder given to cell-gears: has ``<name>/perturb_processed.h5ad``, and where
        they exist ``gene2go_all.pkl`` and ``essential_all_data_pert_genes.pkl``.
        ``cell_graphs.pkl`` is not needed. Nothing in it is changed.
    name
        The data set.
    output
        Where the prepared screen goes; beside the old one (``<name>-prepared``) by default.
    split, seed, train_gene_set_size
        A split that cell-gears left under ``<name>/splits``, to be used; None: none.
    **processing
        Options of :class:`gears.data.options.ProcessingOptions`.

    Returns
    -------
    PertData
        With the nodes of the published package: essential genes that have terms, and
        conditions without terms left out.

    Raises
    ------
    FileNotFoundError, ValueError
        If something is missing or cannot be read.
    """
    folder = Path(data_path)
    source = folder / name
    if not (source / H5AD).is_file():
        msg = f"{folder} has no {name}/{H5AD}; expected the folder that cell-gears was given as data_path"
        raise FileNotFoundError(msg)
    gene2go: Any = None
    if (folder / GENE2GO).is_file():
        gene2go = load_plain(folder / GENE2GO)
        if (folder / ESSENTIAL).is_file():
            nodes = set(read_gene_set(folder / ESSENTIAL))
            gene2go = {gene: terms for gene, terms in gene2go.items() if gene in nodes}
    data = PertData(folder if output is None else output, gene2go=gene2go)
    data.load(data_path=source, drop_unmapped=gene2go is not None, **processing)
    if split is not None:
        file = source / "splits" / f"{name}_{split}_{seed}_{train_gene_set_size}.pkl"
        if not file.is_file():
            there = sorted(path.name for path in file.parent.glob("*.pkl"))
            msg = f"there is no published split {file} (there are: {', '.join(there) or 'none'})"
            raise FileNotFoundError(msg)
        data.use_split(read_published_split(file, data.screen.labels))
        data.train_gene_set_size = train_gene_set_size
    return data
