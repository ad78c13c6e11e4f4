"""Which genes go together over control cells: each gene's correlation profile, in a few dimensions.

The profile of gene i is its correlation with every gene j over control cells, R_i = (r_i1, ..., r_iG). Genes of one
programme have similar profiles even where their own correlation is lost in noise. With the standardised cells
Z (n, G) and its singular value decomposition Z = U S V', the profiles are the rows of R = Z'Z = V S^2 V', and the
inner products of rows of V S^2 are those of the profiles. The leading K directions carry what programmes share and
leave out much of the noise, and K numbers for each gene are cheap to keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

if TYPE_CHECKING:
    from gears.data.screen._cells import CellMatrix
    from gears.data.screen._prepared import PreparedScreen

N_COMPONENTS = 50
"""Dimensions of a profile. On simulated modules 20 to 100 predict unseen genes as well as whole profiles."""
_MORE = 20  # further directions in the search, which makes the leading ones exact
_PASSES = 4  # products with Z'Z in the search: each raises the ratio of large to small singular values by its square


_OF_SCREEN: WeakKeyDictionary[PreparedScreen, np.ndarray] = WeakKeyDictionary()


def control_profiles(screen: PreparedScreen) -> np.ndarray:
    """Correlation profiles (G, K) of the measured genes over control cells, within contexts; once for each screen."""
    if screen not in _OF_SCREEN:
        _OF_SCREEN[screen] = correlation_profiles(*screen.control_sample())
    return _OF_SCREEN[screen]


def correlation_profiles(
    cells: CellMatrix, groups: Sequence[np.ndarray], n_components: int = N_COMPONENTS
) -> np.ndarray:
    """Correlation profile of every measured gene over control cells in its leading dimensions, (G, K) float64.

    `groups` are rows of control cells, one array for each context: a gene is compared with its mean in the context. The
    cosine of two rows is that of the genes' profiles; NaN for genes that do not vary. The directions are found by
    iteration of a random subspace (Halko, Martinsson, Tropp, "Finding structure with randomness", SIAM Review 2011),
    with a fixed draw.
    """
    standard_NG = _standardised(cells, groups)
    n_genes = standard_NG.shape[1]
    width = min(n_components + _MORE, *standard_NG.shape)
    draw = np.random.Generator(np.random.Philox(key=n_genes))
    basis_GW = draw.standard_normal((n_genes, width), dtype=np.float32)
    for _ in range(_PASSES):  # orthogonal again each time, or all directions turn into the largest one
        basis_GW = np.linalg.qr(standard_NG.T @ (standard_NG @ basis_GW))[0]
    _, size_W, turn_WW = np.linalg.svd(standard_NG @ basis_GW, full_matrices=False)
    profile_GK = (basis_GW @ turn_WW[:n_components].T * size_W[:n_components] ** 2).astype(np.float64)
    profile_GK[~standard_NG.any(axis=0)] = np.nan
    return profile_GK


def _standardised(cells: CellMatrix, groups: Sequence[np.ndarray]) -> np.ndarray:
    """Expression of the cells minus its mean in each group, each gene of norm 1 (0 where it is constant)."""
    parts = []
    for rows in groups:
        part_NG = cells.rows(rows)
        # the mean in float64: of a constant gene it is exact, and nothing is left
        mean_G = part_NG.mean(axis=0, dtype=np.float64)
        parts.append(np.subtract(part_NG, mean_G, out=part_NG, casting="same_kind"))
    centred_NG = np.concatenate(parts)
    norm_G = np.sqrt(np.square(centred_NG).sum(axis=0, dtype=np.float64))
    scale_G = np.divide(1.0, norm_G, out=np.zeros_like(norm_G), where=norm_G > 1e-6)
    return np.multiply(centred_NG, scale_G, out=centred_NG, casting="same_kind")
