"""Write a pair of h5ad files (predicted, real) in the layout that ``cell-eval`` reads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gears.conditions import Condition
from gears.evaluation.truth import dense_rows, moved_cells
from gears.files._atomic import write_atomically
from gears.files._paths import user_path

if TYPE_CHECKING:
    from anndata import AnnData

    from gears.data.screen._prepared import PreparedScreen
    from gears.prediction.predictions import Predictions

TARGET, CONTROL = "target", "non-targeting"


def write_cell_eval_pair(
    folder: str | Path,
    predicted: np.ndarray | Predictions,
    conditions: Iterable[Condition | str] | None,
    screen: PreparedScreen,
    *,
    max_cells: int | None = None,
) -> tuple[Path, Path]:
    """Write ``predicted.h5ad`` and ``real.h5ad`` for ``cell-eval run -ap ... -ar ...``.

    Both hold the control cells (``obs.target`` "non-targeting") and cells of
    every condition: a single is named by its gene, a pair "A+B". Predicted
    cells are control cells moved to the predicted mean
    (:func:`gears.evaluation.truth.moved_cells`), as many as the condition has
    real ones (at most as many as there are controls), re-centred so that their mean is exactly it.

    Parameters
    ----------
    folder
        Folder of the two files; created if missing.
    predicted
        Predicted mean expression, (U, G), not negative (cell-eval raises for negative values): an array in the
        screen's order of genes, or the result of ``predict``, whose genes are checked.
    conditions
        The U conditions; None for those of a result of ``predict``.
    screen
        The prepared screen with the real cells.
    max_cells
        Greatest number of cells per condition and of controls; all by default.

    Returns
    -------
    predicted, real
        The two paths.
    """
    evaluated, predicted_UG = _checked(predicted, conditions, screen)
    if predicted_UG.shape != (len(evaluated), len(screen.gene_names)):
        msg = (
            f"predictions have shape {predicted_UG.shape}; expected one row for each of {len(evaluated)} conditions, "
            f"one column for each of {len(screen.gene_names)} genes"
        )
        raise ValueError(msg)
    if not (predicted_UG >= 0).all():
        msg = "predictions hold negative or undefined values, which cell-eval rejects; predict with clip=True"
        raise ValueError(msg)
    control_NG = dense_rows(screen, screen.control_cells[:max_cells])
    moved, real = [(CONTROL, control_NG)], [(CONTROL, control_NG)]
    for condition, mean_G in zip(evaluated, predicted_UG, strict=True):
        cells_NG = dense_rows(screen, screen.cells_of(screen.id_of(condition))[:max_cells])
        name = condition.genes[0] if len(condition) == 1 else condition.name
        real.append((name, cells_NG))
        origin_NG = control_NG[: len(cells_NG)]
        moved.append((name, moved_cells(origin_NG, origin_NG.mean(axis=0), mean_G)))
    folder = user_path(folder)
    written = [
        write_atomically(folder / f"{side}.h5ad", _adata(blocks, screen.gene_names).write_h5ad)
        for side, blocks in (("predicted", moved), ("real", real))
    ]
    return written[0], written[1]


def _checked(
    predicted: np.ndarray | Predictions, conditions: Iterable[Condition | str] | None, screen: PreparedScreen
) -> tuple[list[Condition], np.ndarray]:
    """Conditions and their predicted means, in the screen's order of genes."""
    if isinstance(predicted, np.ndarray):
        if conditions is None:
            msg = "an array of predictions needs conditions; pass them"
            raise ValueError(msg)
        return [Condition.of(condition) for condition in conditions], np.asarray(predicted, dtype=np.float64)
    predicted_genes, screen_genes = tuple(predicted.gene_names), tuple(map(str, screen.gene_names))
    if predicted_genes != screen_genes:
        same = sorted(predicted_genes) == sorted(screen_genes)
        difference = "the same genes in another order" if same else "other genes"
        numbers = f"the predictions ({len(predicted_genes)} genes) and the screen ({len(screen_genes)})"
        msg = f"{numbers} have {difference}; predict for this screen"
        raise ValueError(msg)
    evaluated = list(predicted.conditions if conditions is None else map(Condition.of, conditions))
    return evaluated, np.stack([predicted[condition] for condition in evaluated])


def _adata(blocks: list[tuple[str, np.ndarray]], gene_names: list[str]) -> AnnData:
    import pandas as pd
    from anndata import AnnData
    from scipy import sparse

    names = [name for name, cells_NG in blocks for _ in range(len(cells_NG))]
    values = sparse.csr_matrix(np.concatenate([cells_NG for _, cells_NG in blocks]).astype(np.float32))
    return AnnData(
        X=values,
        obs=pd.DataFrame({TARGET: pd.Categorical(names)}, index=[f"cell{i}" for i in range(len(names))]),
        var=pd.DataFrame(index=pd.Index(gene_names, name="gene")),
    )
