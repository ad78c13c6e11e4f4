"""What a prior says of settings without training conditions (:mod:`gears.priors._new_settings` uses it)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gears.priors._kernels import settings_of
from gears.priors._scales import Sensitivity
from gears.priors._uncertainty import Uncertainty

OWN_SHARE = 0.5
"""Variance of what a context has of its own as a share of that of all effects, where a single context trains and
nothing shows it."""
_TABLES = ("share_K", "scale_K", "variance_G", "slope_K", "mean_share_K")
_SD = "sd_"


@dataclass(frozen=True)
class Elsewhere:
    """What a prior says of settings without training conditions."""

    carry: float  # factor on the mean of what the settings of its type have of their own
    share_K: np.ndarray  # change of a perturbed gene itself by each type, as a share of its control mean
    scale_K: np.ndarray  # factor on the effects of each type
    variance_G: np.ndarray  # variance of a cell
    # slope_K, mean_share_K: by kind of condition, as in GenePrior
    slope_K: np.ndarray
    mean_share_K: np.ndarray
    has_head: bool = True  # whether the head was trained on contexts that were held out; else it is not used here
    sensitivity: Sensitivity | None = None  # how far genes can change; None where it is the same in all settings
    uncertainty: Uncertainty | None = None  # standard deviations; None where they are not known

    def arrays(self, known: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Everything as arrays for a file, without those of the standard deviations that are `known` as they are."""
        arrays = {name: getattr(self, name) for name in _TABLES}
        arrays["scalars"] = np.array([self.carry, self.has_head])
        if self.sensitivity is not None:
            arrays |= {"power": np.array(self.sensitivity.power), "average": self.sensitivity.average_G}
        if self.uncertainty is not None:
            own = self.uncertainty.arrays().items()
            arrays |= {_SD + name: array for name, array in own if array is not known.get(name)}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], known: Mapping[str, np.ndarray], **genes: Any) -> Elsewhere:
        """What :meth:`arrays` describes; `known` and `genes` are arguments of :meth:`Uncertainty.from_arrays`."""
        carry, has_head = map(float, arrays["scalars"])
        sensitivity = Sensitivity(float(arrays["power"]), arrays["average"]) if "power" in arrays else None
        own = {name.removeprefix(_SD): array for name, array in arrays.items() if name.startswith(_SD)}
        uncertainty = Uncertainty.from_arrays({**known, **own}, **genes) if own and known else None
        tables: dict[str, Any] = {name: arrays[name] for name in _TABLES}
        return cls(carry, has_head=bool(has_head), sensitivity=sensitivity, uncertainty=uncertainty, **tables)


def is_elsewhere(sets: Sequence[Sequence[int]], trained: np.ndarray, n_kinds: int) -> np.ndarray:
    """Whether each set is of a setting without training conditions, (U,) bool."""
    return ~np.isin(settings_of(sets, n_kinds), trained)
