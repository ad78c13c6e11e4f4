"""Read screens and models of cell-gears, without running code from their pickles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gears.cell_gears._folders import CONFIG, is_published, read_published, screen_names
from gears.data._published import read_published_split
from gears.data.screen._files import H5AD
from gears.files._paths import user_path
from gears.files._untrusted import load_plain
from gears.graphs._nodes import read_gene_set
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
    """Convert a screen that cell-gears prepared, with its annotation, nodes and splits.

    Parameters
    ----------
    data_path
        The data folder of cell-gears, with ``<name>/perturb_processed.h5ad`` and optionally
        ``gene2go_all.pkl`` and ``essential_all_data_pert_genes.pkl``. It is not changed.
    name
        Name of the data set.
    output
        Folder for the prepared screen; by default beside the old one (``<name>-prepared``).
    split, seed, train_gene_set_size
        Split of cell-gears under ``<name>/splits`` to use; None for no split.
    **processing
        Options of :class:`gears.data.ProcessingOptions`.

    Returns
    -------
    PertData
        With the nodes of cell-gears: essential genes that have terms; conditions without terms are excluded.

    Raises
    ------
    FileNotFoundError, ValueError
        If something is missing or cannot be read.
    """
    folder = user_path(data_path)
    source = folder / name
    if not (source / H5AD).is_file():
        msg = f"{folder} has no {name}/{H5AD}; expected the folder that is data_path in cell-gears"
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
            available = sorted(path.name for path in file.parent.glob("*.pkl"))
            msg = f"there is no published split {file} (there are: {', '.join(available) or 'none'})"
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
    """Load a model that cell-gears saved (``config.pkl``, ``model.pt``).

    The folder holds no names and no control mean: they come from the screen that the model was
    trained on, or from the arguments. Predictions are those of cell-gears for every cell of a batch except
    the first, the only one that receives co-expression messages there; and they start from the mean of all
    control cells instead of 300 random ones. ``save_model`` writes the model in this package's format.

    Parameters
    ----------
    path
        The folder. Pickles that hold more than numbers, text, arrays and tensors are an error.
    pert_data
        The screen, such as :func:`load_cell_gears_folder` returns (the nodes of its graph must be those of
        the model). With a split it becomes the model's, for ``evaluate``.
    gene_names, pert_names
        Without `pert_data`: the measured genes, and the nodes of the perturbation graph, in order.
    control_mean
        Without `pert_data`: mean log-normalised expression of the control cells, (G,);
        :func:`gears.utils.get_mean_control` gives it.
    device
        Device of the network.

    Raises
    ------
    FileNotFoundError, ValueError
        The folder is no such model, names are missing, or their numbers are not those of the model.

    Examples
    --------
    >>> screen = load_cell_gears_folder("data", "norman")                            # doctest: +SKIP
    >>> load_cell_gears_model("models/norman", screen).predict([["CBL", "CNN1"]])     # doctest: +SKIP
    """
    from gears.gears import GEARS

    if not is_published(path):
        msg = f"{path} is no model of cell-gears: it has no {CONFIG}; GEARS.from_pretrained reads this package's"
        raise FileNotFoundError(msg)
    given: dict[str, Any] = {"gene_names": gene_names, "pert_names": pert_names, "control_mean": control_mean}
    missing = [name for name, value in given.items() if value is None]
    if pert_data is None and missing:
        msg = f"a model of cell-gears holds no names: give pert_data, or also {', '.join(missing)}"
        raise ValueError(msg)
    if pert_data is not None and len(missing) < len(given):
        msg = "names and control mean come from pert_data: give either it or gene_names, pert_names and control_mean"
        raise ValueError(msg)
    names = given.values() if pert_data is None else screen_names(pert_data)
    with_split = pert_data is not None and pert_data.split is not None
    model = GEARS(pert_data if with_split else None, device=device)
    model._take(read_published(path, *names), path)
    return model
