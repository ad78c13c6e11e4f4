"""What other screens add to the prior's predictions for genes that training does not perturb."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gears.priors._kernels import GeneSimilarity


@dataclass(frozen=True)
class Residual:
    """Changes that other screens add for genes that training does not perturb."""

    nodes_N: np.ndarray  # these genes, ascending
    change_NG: np.ndarray  # (N, G) float32

    def __call__(self, sets: Sequence[Sequence[int]]) -> np.ndarray:
        """Sum over each condition's genes, (U, G)."""
        genes = GeneSimilarity(self.nodes_N, None)  # type: ignore[arg-type]
        return np.asarray(genes.members(sets) @ self.change_NG, dtype=np.float64)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], n_genes: int) -> Residual | None:
        """What a file of a prior holds of it; ValueError where it does not fit."""
        if "others" not in arrays:
            return None
        nodes_N, change_NG = arrays["others"], arrays["others_change"].astype(np.float32)
        if change_NG.shape != (len(nodes_N), n_genes):
            msg = f"the prior's effects of other screens are {change_NG.shape}; expected {(len(nodes_N), n_genes)}"
            raise ValueError(msg)
        return cls(nodes_N, change_NG)
