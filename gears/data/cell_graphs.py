"""Single cells in the published form: objects of torch-geometric, made when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch

from gears.conditions import CONTROL_LABEL
from gears.messages import nearest

if TYPE_CHECKING:
    from anndata import AnnData

    from gears.data.loaders import CellDataset


def data_class() -> Any:
    """``torch_geometric.data.Data``.

    Raises
    ------
    ImportError
        torch-geometric is not installed; nothing else in the package needs it.
    """
    try:
        from torch_geometric.data import Data
    except ImportError as error:
        msg = (
            "cell graphs are objects of torch-geometric, which is not installed: pip install torch-geometric"
        )
        raise ImportError(msg) from error
    return Data


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
        The genes, such as ``["A", "B"]``; ``ctrl`` is left out.
    ctrl_adata
        Control cells, (N, G).
    gene_names
        Where ``pert_idx`` counts: the nodes of a perturbation graph, or measured genes.
    device
        Where the graphs lie.
    num_samples
        Cells drawn, with replacement.
    seed
        Of the draw; the published function draws from numpy's global state.

    Returns
    -------
    list of torch_geometric.data.Data
        ``x`` (G, 1), ``pert_idx``, ``pert``.

    Raises
    ------
    ValueError
        A gene is not among `gene_names`, or there is no control cell.
    """
    data = data_class()
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
    return [data(x=row.reshape(-1, 1), pert_idx=nodes, pert=list(pert_gene)) for row in x_SG]


class CellGraphs(Mapping[str, Sequence[Any]]):
    """Label -> its cells as objects with x, y, pert, pert_idx, de_idx: ``pert_data.dataset_processed``.

    Nothing is stored: a cell is read when it is asked for.

    Parameters
    ----------
    cells
        All cells of a screen, in its order.
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
        self._make: Callable[..., Any] = data_class()

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        batch = self._cells[int(self._numbers[index])]
        return self._make(
            x=batch.x_BG.reshape(-1, 1),
            y=batch.y_BG,
            pert=batch.pert[0],
            pert_idx=batch.pert_idx[0],
            de_idx=batch.de_idx[0],
        )

    def __len__(self) -> int:
        return len(self._numbers)
