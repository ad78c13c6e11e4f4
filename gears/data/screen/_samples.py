"""What is kept of a screen's cells beside moments: means of split halves, and a fixed draw of control cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from gears.data.screen._cells import CellMatrix

if TYPE_CHECKING:
    from gears.data.screen._prepared import PreparedScreen

N_HALVES, HALVES_SEED = 5, 0
"""Repeats of split halves that a moment pack keeps, and their seed."""
_MOST_VALUES, _FEWEST_CELLS, _MOST_CELLS = 20_000_000, 500, 5000
"""Of drawn control cells: cells x genes held in memory as float32."""


def half_of(n_cells: int, seed: int, repeat: int, condition_id: int) -> np.ndarray:
    """Half (0 or 1) of each of a condition's cells, (n,) int64; the first has n // 2."""
    order = np.random.default_rng([seed, repeat, condition_id]).permutation(n_cells)
    half = np.zeros(n_cells, dtype=np.int64)
    half[order[n_cells // 2 :]] = 1
    return half


def half_means(
    screen: PreparedScreen, condition_id: int, seed: int, repeats: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Means of two random halves of a condition's cells, (repeats, 2, G), and how many cells each has, (2,).

    NaN for fewer than two cells. ValueError where a screen without cells does not keep these halves.
    """
    own_id, n_genes = screen.folder_id(condition_id), len(screen.gene_names)
    if not screen.has_cells:
        if seed != HALVES_SEED or max(repeats, default=0) >= N_HALVES:
            msg = (
                f"a moment pack keeps {N_HALVES} split halves of seed {HALVES_SEED}; choose n_split_half of at most "
                f"{N_HALVES}, and that seed"
            )
            raise ValueError(msg)
        return np.asarray(screen.kept_halves[0][list(repeats), :, own_id]), screen.kept_halves[1][:, own_id]
    cells = screen.cells_of(condition_id)
    n_cells = len(cells)
    if n_cells < 2:
        return np.full((len(repeats), 2, n_genes), np.nan), np.zeros(2, dtype=np.int64)
    size = np.array([n_cells // 2, n_cells - n_cells // 2])
    half_RN = np.array([half_of(n_cells, seed, repeat, own_id) for repeat in repeats])
    row_RN = 2 * np.arange(len(repeats))[:, None] + half_RN
    # all means by one sparse product: the cells are never dense
    at = row_RN.ravel(), np.tile(np.arange(n_cells), len(repeats))
    pick = sparse.csr_matrix((1.0 / size[half_RN.ravel()], at), shape=(2 * len(repeats), n_cells))
    means = (pick @ screen.cells.csr(cells).astype(np.float64)).toarray()
    return means.reshape(len(repeats), 2, n_genes), size


def control_sample(screen: PreparedScreen) -> tuple[CellMatrix, list[np.ndarray]]:
    """Drawn control cells: a matrix, and its rows of each context, ascending."""
    if screen.has_cells:
        groups = [screen.cells_of(control) for control in screen.control_ids.tolist()]
        return screen.cells, drawn_rows(groups, len(screen.gene_names))
    cells, condition_n = screen.kept_controls
    return cells, [np.flatnonzero(condition_n == screen.folder_id(int(control))) for control in screen.control_ids]


def drawn_rows(groups: Sequence[np.ndarray], n_genes: int) -> list[np.ndarray]:
    """A fixed draw of very many control cells, the same share of each group's rows; all of few."""
    n_all = sum(map(len, groups))
    n_drawn = min(n_all, max(_FEWEST_CELLS, min(_MOST_CELLS, _MOST_VALUES // max(1, n_genes))))
    draw = np.random.Generator(np.random.Philox(key=n_all))
    sizes = [max(1, round(len(rows) * n_drawn / n_all)) for rows in groups]
    return [np.sort(draw.permutation(rows)[:size]) for rows, size in zip(groups, sizes, strict=True)]
