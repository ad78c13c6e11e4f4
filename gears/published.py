"""What the published package (cell-gears) left behind, screens and models, read without running anything in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gears.cell_gears.folders import screen_names
from gears.data.published import read_published_split
from gears.data.screen.files import H5AD
from gears.files.paths import user_path
from gears.files.pickles import load_plain
from gears.graphs.nodes import read_gene_set
from gears.pertdata import PertData

if TYPE_CHECKING:
    from gears.gears import GEARS

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
        A split that cell-gears wrote under ``<name>/splits``, to be used; None: none.
    **processing
        Options of :class:`gears.data.ProcessingOptions`.

    Returns
    -------
    PertData
        With the nodes of the published package: essential genes that have terms, and
        conditions without terms excluded.

    Raises
    ------
    FileNotFoundError, ValueError
        If something is missing or cannot be read.
    """
    folder = user_path(data_path)
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


def load_cell_gears_model(
    path: str | Path,
    pert_data: PertData | None = None,
    *,
    gene_names: Sequence[str] | None = None,
    pert_names: Sequence[str] | None = None,
    control_mean: np.ndarray | None = None,
    device: str | None = None,
) -> GEARS:
    """A model that cell-gears saved (``config.pkl``, ``model.pt``), ready to predict.

    Such a folder holds no names and no control mean: they come from the screen that the model was
    trained on, or are given. Predictions are those of cell-gears for every cell of a batch but the
    first, which alone receives co-expression messages there; and they start from the mean of all
    control cells, not from 300 drawn ones. ``save_model`` writes the model in this package's form.

    Parameters
    ----------
    path
        The folder. Nothing in it is run: pickles that hold more than numbers, text, arrays and
        tensors are refused.
    pert_data
        The screen, such as :func:`load_cell_gears_folder` returns (the nodes of its graph must be those of
        the model). With a split it becomes the model's, for ``evaluate``.
    gene_names, pert_names
        Without `pert_data`: the measured genes, and the nodes of the perturbation graph, in order.
    control_mean
        Without `pert_data`: mean log-normalised expression of the control cells, (G,);
        :func:`gears.utils.get_mean_control` gives it.
    device
        Where the network lives.

    Raises
    ------
    FileNotFoundError, ValueError
        There is no such model, names are missing, or their numbers are not the model's.

    Examples
    --------
    >>> screen = load_cell_gears_folder("data", "norman")                            # doctest: +SKIP
    >>> load_cell_gears_model("models/norman", screen).predict([["CBL", "CNN1"]])     # doctest: +SKIP
    """
    from gears.cell_gears.folders import CONFIG, is_published, read_published
    from gears.gears import GEARS

    if not is_published(path):
        msg = f"{path} is no model of cell-gears: it has no {CONFIG}; GEARS.from_pretrained reads this package's"
        raise FileNotFoundError(msg)
    given = {"gene_names": gene_names, "pert_names": pert_names, "control_mean": control_mean}
    if pert_data is None:
        missing = [name for name, value in given.items() if value is None]
        if missing:
            msg = f"a model of cell-gears holds no names: give pert_data, or also {', '.join(missing)}"
            raise ValueError(msg)
    elif any(value is not None for value in given.values()):
        msg = "names and control mean come from pert_data: give either it or gene_names, pert_names and control_mean"
        raise ValueError(msg)
    if pert_data is not None:
        names = screen_names(pert_data)
    else:
        assert gene_names is not None
        assert pert_names is not None
        assert control_mean is not None
        names = gene_names, pert_names, control_mean
    with_split = pert_data is not None and pert_data.split is not None
    model = GEARS(pert_data if with_split else None, device=device)
    model._take(read_published(path, *names), path)
    return model
