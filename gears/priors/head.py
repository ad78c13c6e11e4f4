"""The head: a small network, the same for all genes and conditions, whose change is added to the prior's.

The prior is linear in the changes that it was fitted to. Where true changes are sparse, saturate or follow
co-expression, a function of its prediction is better than the prediction itself. The head is that function: two hidden
layers over the inputs of :mod:`gears.priors.head_inputs`, trained by ``gears.training.head``. Here it only predicts, so
that a saved prior needs neither a training run nor torch.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from gears.priors.head_inputs import NAMES, HeadInputs, Predict, PriorChanges, Sets

LIMIT = 8.0
"""Inputs are cut at so many standard deviations: the function is not used beyond what it was trained on."""
_BLOCK_VALUES = 1 << 17  # conditions x genes of a block

Layer = tuple[np.ndarray, np.ndarray]
"""Weight (in, out) and bias (out,)."""


@dataclass(frozen=True)
class Head:
    """The trained head with its weights.

    Attributes
    ----------
    centre_F, spread_F
        Mean and standard deviation of the inputs over training.
    layers
        Three linear maps with ``x sigmoid(x)`` between them.
    size
        Unit of its result.
    single_weight, several_weight
        Weight, 0 to 1, under conditions of one gene and of several.
    """

    inputs: HeadInputs
    centre_F: np.ndarray
    spread_F: np.ndarray
    layers: tuple[Layer, ...]
    size: float
    single_weight: float
    several_weight: float

    def __post_init__(self) -> None:
        widths = [len(NAMES), *(len(bias) for _, bias in self.layers)]
        shapes = [weight.shape for weight, _ in self.layers]
        n_inputs = {len(self.centre_F), len(self.spread_F)}
        if shapes != list(itertools.pairwise(widths)) or widths[-1] != 1 or n_inputs != {len(NAMES)}:
            msg = f"the head's layers are {shapes}; expected {len(NAMES)} inputs, one result, and widths that fit"
            raise ValueError(msg)

    def change(self, predict: Predict, sets: Sets) -> np.ndarray:
        """Weighted change to add to that of the prior, (U, G) float64.

        0 for perturbed genes themselves, whose change the prior knows, and for the control.
        """
        change_UG = np.zeros((len(sets), len(self.inputs.noise_G)))
        weight_U = np.array([self.several_weight if len(nodes) > 1 else self.single_weight for nodes in sets])
        step = max(1, _BLOCK_VALUES // max(1, change_UG.shape[1]))
        used = np.flatnonzero(weight_U)
        for rows in (used[start : start + step] for start in range(0, len(used), step)):
            members = [sets[row] for row in rows.tolist()]
            block_UG = self.of_inputs(self.inputs.of(PriorChanges.of(predict, members), members))
            block_UG[self.inputs.targets(members)] = 0.0
            change_UG[rows] = weight_U[rows, None] * block_UG
        return change_UG

    def of_inputs(self, inputs_UGF: np.ndarray) -> np.ndarray:
        """Change by inputs, before the weights, (U, G) float64."""
        values = np.clip((inputs_UGF - self.centre_F) / self.spread_F, -LIMIT, LIMIT)
        *hidden, last = self.layers
        for weight, bias in hidden:
            values = values @ weight + bias
            values *= special.expit(values)
        return np.asarray(self.size * (values @ last[0] + last[1])[..., 0])

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything as arrays for a file; the columns of the nodes are those of the prior."""
        inputs = {
            field.name: np.asarray(getattr(self.inputs, field.name))
            for field in dataclasses.fields(HeadInputs)
            if field.name != "column_P"
        }
        layers = {
            f"{name}_{number}": array
            for number, layer in enumerate(self.layers)
            for name, array in zip(("layer", "bias"), layer, strict=True)
        }
        scalars = np.array([self.size, self.single_weight, self.several_weight, len(self.layers)])
        return {**inputs, **layers, "centre": self.centre_F, "spread": self.spread_F, "scalars": scalars}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], column_P: np.ndarray) -> Head:
        """The head that :meth:`arrays` describes; KeyError or ValueError for arrays that do not fit together."""
        names = [
            field.name for field in dataclasses.fields(HeadInputs) if field.name not in ("size", "column_P")
        ]
        tables = {name: arrays[name] for name in names}
        lengths = {name: len(table) for name, table in tables.items()}
        if len(set(lengths.values())) > 1:
            msg = f"the head's tables disagree on the number of genes: {lengths}"
            raise ValueError(msg)
        size, single, several, n_layers = map(float, arrays["scalars"])
        layers = tuple((arrays[f"layer_{n}"], arrays[f"bias_{n}"]) for n in range(int(n_layers)))
        inputs = HeadInputs(size=float(arrays["size"]), column_P=column_P, **tables)
        return cls(inputs, arrays["centre"], arrays["spread"], layers, size, single, several)


def strata(sets: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    """Rows of the conditions of one gene and of several, by the name of their kind; each has a weight."""
    is_several_U = np.array([len(nodes) > 1 for nodes in sets], dtype=bool)
    return {"single": np.flatnonzero(~is_several_U), "several": np.flatnonzero(is_several_U)}
