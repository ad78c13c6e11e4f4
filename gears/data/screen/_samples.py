"""Means of split halves of a condition's cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

if TYPE_CHECKING:
    from gears.data.screen._prepared import PreparedScreen

N_HALVES, HALVES_SEED = 5, 0
"""Repeats of split halves that a moment pack keeps, and their seed."""


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
