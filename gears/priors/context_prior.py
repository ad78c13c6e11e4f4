"""The prior of a screen with contexts: what all contexts share, and what each has of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gears.node_sets import contexts_of, kinds_of
from gears.priors.gene_prior import GenePrior

_SHARED = ("trained", "similar_data", "similar_indices", "similar_indptr", "column")


@dataclass(frozen=True)
class ContextPrior:
    """Change of every gene under any set of perturbed genes in any setting, in closed form.

    A *setting* is a context with a type of perturbation. The change is that of `pooled`, fitted to all
    settings, plus that of the setting itself, which is zero but for the target's own change in a context
    that training never saw.

    Attributes
    ----------
    pooled
        Shared by all settings.
    own
        Of each setting, number ``context x n_kinds + kind``.
    n_kinds
        Number of types of perturbation, at least 1.
    network_weight, report
        As in :class:`gears.priors.GenePrior`.
    """

    pooled: GenePrior
    own: tuple[GenePrior, ...]
    n_kinds: int = 1
    network_weight: float = 1.0
    report: Mapping[str, Any] = field(default_factory=dict)

    @property
    def column_P(self) -> np.ndarray:
        """Column of each node among the measured genes."""
        return self.pooled.column_P

    @property
    def offset_G(self) -> np.ndarray:
        """Change that all conditions of all settings share."""
        return self.pooled.offset_G

    def settings_of(self, sets: Sequence[Sequence[int]]) -> np.ndarray:
        """Number of each set's setting, (U,)."""
        return contexts_of(sets) * self.n_kinds + kinds_of(sets)

    def __call__(self, sets: Sequence[Sequence[int]]) -> np.ndarray:
        """Predicted changes, (U, G) float64."""
        change_UG = self.pooled(sets)
        setting_U = self.settings_of(sets)
        for setting in np.unique(setting_U).tolist():
            rows = np.flatnonzero(setting_U == setting)
            change_UG[rows] += self.own[setting]([sets[row] for row in rows.tolist()])
        return change_UG

    def complete(self, sets: Sequence[Sequence[int]], network_UG: np.ndarray) -> np.ndarray:
        """The model's changes: the prior's, and the network's times its weight, (U, G)."""
        return self(sets) if self.network_weight == 0 else self(sets) + self.network_weight * network_UG

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything but `report`, as arrays for a file."""
        arrays = {f"pooled_{name}": array for name, array in self.pooled.arrays().items()}
        for place, prior in enumerate(self.own):
            own = prior.arrays()
            if prior.genes is not self.pooled.genes and place == 0:  # another mixture of similarities
                arrays |= {f"own_{name}": own[name] for name in _SHARED}
            arrays |= {f"own{place}_{name}": own[name] for name in own if name not in _SHARED}
        return arrays | {
            "settings": np.array([len(self.own), self.n_kinds]),
            "network_weight": np.array(self.network_weight),
        }

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, np.ndarray], report: Mapping[str, Any] | None = None
    ) -> ContextPrior:
        """The prior that :meth:`arrays` was taken of."""

        def part(prefix: str) -> dict[str, np.ndarray]:
            return {
                name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)
            }

        pooled = part("pooled_")
        shared = {name: pooled[name] for name in _SHARED} | part("own_")
        n, n_kinds = map(int, arrays["settings"])
        own = tuple(GenePrior.from_arrays(shared | part(f"own{place}_")) for place in range(n))
        return cls(
            GenePrior.from_arrays(pooled),
            own,
            n_kinds,
            float(arrays["network_weight"] if "network_weight" in arrays else arrays["gate"]),
            dict(report or {}),
        )


Prior = GenePrior | ContextPrior


def read_prior(arrays: Mapping[str, np.ndarray], report: Mapping[str, Any] | None = None) -> Prior:
    """A prior of either kind from its arrays."""
    return (ContextPrior if "settings" in arrays else GenePrior).from_arrays(arrays, report)
