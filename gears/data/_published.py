"""Data in the forms of cell-gears: `uns` dictionaries, cell graphs and split files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gears.conditions import CONTROL_LABEL, Condition
from gears.core._messages import nearest, shorten
from gears.data.reading._matrix import read_screen
from gears.data.screen._files import H5AD
from gears.data.screen._prepared import PreparedScreen
from gears.data.screen._statistics import rank_genes, statistics_of
from gears.data.splits._make import finish
from gears.data.splits._registry import Draw, Labels, SplitOptions
from gears.data.splits._split import PARTS, Split
from gears.files._paths import user_path
from gears.files._untrusted import load_plain

if TYPE_CHECKING:
    from anndata import AnnData

    from gears.data._loaders import CellDataset

N_TOP = 20


def published_uns(screen: PreparedScreen) -> dict[str, dict[str, Any]]:
    """Gene rankings and gene lists by published condition name; empty where DE was skipped, none for the control.

    ``rank_genes_groups_cov_all`` (all genes, ids), ``non_zeros_gene_idx`` (genes whose mean in the condition is not 0),
    ``non_dropout_gene_idx`` (those, and genes that are 0 in condition and control), ``top_non_zero_de_20``,
    ``top_non_dropout_de_20`` (the ranking filtered, first 20 ids). Two spellings of a condition have the same entries,
    from all of its cells, in whatever context.
    """
    if screen.de is None:
        return {}
    ids = np.asarray(screen.gene_ids, dtype=object)
    plain = list(dict.fromkeys(condition.plain for condition in screen.conditions))
    control_id = plain.index(Condition())
    condition_C = np.array([plain.index(condition.plain) for condition in screen.conditions])
    statistics = screen.statistics
    if len(plain) < len(condition_C) or len(screen.batches) > 1:
        control_of = np.full(len(plain), control_id)
        statistics, _ = statistics_of(screen.cells, condition_C[screen.cell_condition], control_of)
    ranking = rank_genes(statistics, screen.gene_names, len(ids)).order
    nonzero = statistics.mean_nonzero
    absent_in_control = ~nonzero[control_id]
    uns: dict[str, dict[str, Any]] = {}
    for name, condition in zip(screen.condition_names, condition_C[screen.label_condition], strict=True):
        if condition == control_id:
            continue
        order, here = ranking[condition], nonzero[condition]
        kept = here | (~here & absent_in_control)
        entries = {
            "rank_genes_groups_cov_all": ids[order].tolist(),
            "non_zeros_gene_idx": np.flatnonzero(here),
            "non_dropout_gene_idx": np.flatnonzero(kept),
            "top_non_zero_de_20": ids[order[here[order]][:N_TOP]].astype(str),
            "top_non_dropout_de_20": ids[order[kept[order]][:N_TOP]].astype(str),
        }
        for key, value in entries.items():
            uns.setdefault(key, {})[name] = value
    return uns


def published_adata(screen: PreparedScreen) -> AnnData:
    """Cells and annotations of a prepared screen, with :func:`published_uns`."""
    screen.need_cells()
    adata = read_screen(screen.checked_file(H5AD))
    if screen.cell_ids is not None:
        adata = adata[screen.cell_ids].copy()
        for name in ("condition", "condition_name"):
            adata.obs[name] = adata.obs[name].cat.remove_unused_categories()
        adata.obs["condition_id"] = screen.cell_condition
    adata.uns.update(published_uns(screen))
    return adata


def create_cell_graph_dataset_for_prediction(
    pert_gene: Sequence[str],
    ctrl_adata: AnnData,
    gene_names: Sequence[str],
    device: Any = "cpu",
    num_samples: int = 300,
    *,
    seed: int = 0,
) -> list[Any]:
    """Drawn control cells under a perturbation, for torch-geometric's DataLoader and a model called with batches.

    Parameters
    ----------
    pert_gene
        The genes, such as ``["A", "B"]``; ``ctrl`` is excluded.
    ctrl_adata
        Control cells, (N, G).
    gene_names
        Where ``pert_idx`` counts: the nodes of a perturbation graph, or measured genes.
    num_samples, seed
        Cells drawn, with replacement, and the seed of the draw (the published function uses numpy's global state).

    Returns
    -------
    list of torch_geometric.data.Data
        ``x`` (G, 1), ``pert_idx``, ``pert``.

    Raises
    ------
    ValueError
        A gene is not among `gene_names`, or there is no control cell.
    """
    from torch_geometric.data import Data

    names = [str(name) for name in gene_names]
    index = {name: i for i, name in enumerate(names)}
    genes = [gene for gene in pert_gene if gene != CONTROL_LABEL]
    for gene in genes:
        if gene not in index:
            near = ", ".join(nearest(gene, names)) or "none"
            msg = f"gene {gene!r} is not among the {len(names)} gene_names (near: {near})"
            raise ValueError(msg)
    if ctrl_adata.n_obs == 0:
        msg = "ctrl_adata holds no cell; expected the control cells, such as pert_data.ctrl_adata"
        raise ValueError(msg)
    rows = np.random.default_rng(seed).integers(0, ctrl_adata.n_obs, num_samples)
    cells = ctrl_adata.X[rows]
    values = np.asarray(cells.toarray() if hasattr(cells, "toarray") else cells, dtype=np.float32)
    nodes = [index[gene] for gene in genes] or [-1]
    x_SG = torch.from_numpy(values).to(device)
    return [Data(x=row.reshape(-1, 1), pert_idx=nodes, pert=list(pert_gene)) for row in x_SG]


class CellGraphs(Mapping[str, Sequence[Any]]):
    """Label -> its cells as objects with x, y, pert, pert_idx, de_idx: ``pert_data.dataset_processed``.

    Nothing is stored: a cell is read when it is used. `cells` are all cells of a screen, in its order.
    """

    def __init__(self, cells: CellDataset) -> None:
        self._cells = cells
        self._labels = {label: i for i, label in enumerate(cells.screen.labels)}

    def __getitem__(self, label: str) -> Sequence[Any]:
        return _Graphs(self._cells, np.flatnonzero(self._cells.screen.cell_label == self._labels[label]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._labels)

    def __len__(self) -> int:
        return len(self._labels)


class _Graphs(Sequence[Any]):
    """The cells of one label."""

    def __init__(self, cells: CellDataset, numbers: np.ndarray) -> None:
        self._cells, self._numbers = cells, numbers

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        from torch_geometric.data import Data

        batch = self._cells[int(self._numbers[index])]
        return Data(
            x=batch.x_BG.reshape(-1, 1),
            y=batch.y_BG,
            pert=batch.pert[0],
            pert_idx=batch.pert_idx[0],
            de_idx=batch.de_idx[0],
        )

    def __len__(self) -> int:
        return len(self._numbers)


def read_published_split(path: str | Path, labels: Sequence[str]) -> Split:
    """Read a split pickle of cell-gears, with the subgroups beside it.

    Parameters
    ----------
    path
        Such as ``norman/splits/norman_simulation_1_0.75.pkl``; subgroups are taken from
        ``..._subgroup.pkl`` where it is there. Nothing in a pickle can run.
    labels
        Labels of the screen. Conditions that the file does not name are excluded; spellings of one condition in
        several parts are put together (test before val before train), with a warning.

    Raises
    ------
    ValueError
        If the file is no such split, or names labels that the screen lacks.
    """
    path = user_path(path)
    parts = _lists(path, load_plain(path))
    unknown = sorted({name for names in parts.values() for name in names} - set(labels))
    if unknown or not parts or set(parts) - set(PARTS):
        what = f"labels that the screen lacks ({shorten(unknown)})" if unknown else f"keys {shorten(parts)}"
        msg = f"{path} has {what}; expected labels of this screen in {', '.join(PARTS)}"
        raise ValueError(msg)
    beside = path.with_name(f"{path.stem}_subgroup.pkl")
    subgroup = None
    if beside.is_file():
        groups_of_file = load_plain(beside)
        if isinstance(groups_of_file, dict):
            subgroup = {str(key): _lists(beside, groups) for key, groups in groups_of_file.items()}
    used = {name for names in parts.values() for name in names}
    excluded = {name: "not named in the published split" for name in labels if name not in used}
    draw = Draw(parts=parts, excluded=excluded, subgroup=subgroup)
    return finish(Labels(tuple(labels)), "custom", SplitOptions(), draw)


def _lists(path: Path, content: Any) -> dict[str, list[str]]:
    if not isinstance(content, dict) or any(isinstance(names, str) for names in content.values()):
        msg = f"{path} holds no dict of lists"
        raise ValueError(msg)
    return {str(part): [str(name) for name in names] for part, names in content.items()}
