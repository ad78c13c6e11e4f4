"""The head: a small network, the same for all genes and conditions, whose change is added to the prior's.

The prior is linear in the changes that it was fitted to. Where true changes are sparse, saturate or follow
co-expression, a function of its prediction is better than the prediction itself. The head is that function: two hidden
layers over the inputs :data:`NAMES`, trained by ``gears.training._head``. Here it only predicts, so that a saved prior
needs neither a training run nor torch. The inputs mean the same for all genes and conditions: what the prior predicts
for the condition and for each of its genes alone, how strongly the measured gene responds to other perturbations, how
noisy it is, and how it goes together with the perturbed genes over control cells.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from gears.conditions import NodeSet, contexts_of, kinds_of
from gears.priors._kernels import settings_of

LIMIT = 8.0
"""Inputs are cut at so many standard deviations: the function is not used beyond what it was trained on."""
_BLOCK_VALUES = 1 << 17  # conditions x genes of a block
_BLOCK_ROWS = 1 << 13  # of them that go through the layers at once

_OF_GENES = {name: name for name in ("noise_G", "profile_GK", "response_G")}
_OF_SETTINGS = {
    "control_mean_G": "control_mean_SG", "control_sd_G": "control_sd_SG", "mean_G": "mean_SG"
}  # fmt: skip
"""Tables in a file and as attributes: (G, ...), and (S, G), which files of earlier versions hold as (G,)."""

ALL_GENES = slice(None)

Layer = tuple[np.ndarray, np.ndarray]
"""Weight (in, out) and bias (out,)."""


Sets = Sequence[Sequence[int]]
Predict = Callable[[Sets], np.ndarray]

NAMES = (
    "change", "sum", "largest", "others", "strongest", "several", "z", "noise", "control mean", "control sd",
    "response", "mean change", "co-expression", "covariation",
)  # fmt: skip
"""The inputs, in the order of :meth:`HeadInputs.of`."""
_LARGEST_Z = 20.0


@dataclass(frozen=True)
class PriorChanges:
    """Predictions of the prior for U conditions and for their genes alone, (U, G) each."""

    change_UG: np.ndarray  # change under the condition
    sum_UG: np.ndarray  # sum of the changes under each of its genes alone
    largest_UG: np.ndarray  # for each measured gene, the largest of these by absolute value
    strongest_UG: np.ndarray  # changes under the one gene whose changes are largest altogether

    @classmethod
    def of(cls, predict: Predict, sets: Sets) -> PriorChanges:
        """From a function that predicts changes of sets of nodes."""
        change_UG = predict(sets)
        parts = [change_UG.copy() for _ in range(3)]
        several = [row for row, nodes in enumerate(sets) if len(nodes) > 1]
        contexts, kinds = contexts_of(sets).tolist(), kinds_of(sets).tolist()
        alone = sorted({(contexts[row], kinds[row], int(node)) for row in several for node in sets[row]})
        if alone:
            alone_NG = predict([NodeSet((node,), context=context, kind=kind) for context, kind, node in alone])
            row_of = {single: number for number, single in enumerate(alone)}
            for row in several:
                each_MG = alone_NG[[row_of[contexts[row], kinds[row], int(node)] for node in sets[row]]]
                parts[0][row] = each_MG.sum(axis=0)
                largest_G = np.abs(each_MG).argmax(axis=0)
                parts[1][row] = np.take_along_axis(each_MG, largest_G[None], axis=0)[0]
                parts[2][row] = each_MG[(each_MG**2).sum(axis=1).argmax()]
        return cls(change_UG, *parts)

    def rows(self, rows: np.ndarray, genes: np.ndarray | slice = ALL_GENES) -> PriorChanges:
        """Those of some conditions, and of some of the genes."""
        tables = (self.change_UG, self.sum_UG, self.largest_UG, self.strongest_UG)
        return PriorChanges(*(table_UG[rows][:, genes] for table_UG in tables))


@dataclass(frozen=True)
class HeadInputs:
    """Tables of the measured genes, from which the inputs of any condition are computed."""

    size: float  # root mean square change over training conditions, the unit of all changes
    noise_G: np.ndarray  # standard error of a condition's mean, for a typical number of cells
    # control_mean_SG, control_sd_SG: mean and standard deviation over control cells of each setting
    control_mean_SG: np.ndarray
    control_sd_SG: np.ndarray
    profile_GK: np.ndarray
    """Correlation profile over control cells (:mod:`gears.graphs._profiles`), of length 1, or 0 where it is
    unknown."""
    column_P: np.ndarray
    # mean_SG, response_G: mean change over the training conditions of each setting, and the root mean square over all
    # without sampling noise
    """Column of each perturbation node among the measured genes, -1 where it is not measured."""
    mean_SG: np.ndarray
    response_G: np.ndarray
    n_kinds: int = 1  # types of perturbation; settings are numbered ``context x n_kinds + kind``

    def of(self, changes: PriorChanges, sets: Sets, genes: np.ndarray | slice = ALL_GENES) -> np.ndarray:
        """Inputs of the head, (U, G, F) float32, see :data:`NAMES`; `changes` are those of the same genes."""
        shape, setting_U = changes.change_UG.shape, np.zeros(len(sets), dtype=np.int64)
        if len(self.mean_SG) > 1:
            setting_U = settings_of(sets, self.n_kinds)
        control_sd_UG = self.control_sd_SG[setting_U][:, genes]
        noise_G, profile_GK = self.noise_G[genes], self.profile_GK[genes]
        target_UK = np.array([self._profile_of(nodes) for nodes in sets]).reshape(len(sets), profile_GK.shape[1])
        co_expression_UG = target_UK @ profile_GK.T
        several_U1 = np.array([[float(len(nodes) > 1)] for nodes in sets]).reshape(-1, 1)
        columns = (
            changes.change_UG / self.size,
            changes.sum_UG / self.size,
            changes.largest_UG / self.size,
            (changes.sum_UG - changes.largest_UG) / self.size,
            changes.strongest_UG / self.size,
            several_U1,
            np.clip(changes.change_UG / noise_G, -_LARGEST_Z, _LARGEST_Z),
            noise_G / self.size,
            self.control_mean_SG[setting_U][:, genes],
            control_sd_UG,
            self.response_G[genes] / self.size,
            self.mean_SG[setting_U][:, genes] / self.size,
            co_expression_UG,
            co_expression_UG * control_sd_UG,
        )
        inputs_UGF = np.empty((*shape, len(columns)), dtype=np.float32)
        for number, column in enumerate(columns):
            inputs_UGF[..., number] = column
        return inputs_UGF

    def _profile_of(self, nodes: Sequence[int]) -> np.ndarray:
        """Sum of the correlation profiles of the perturbed genes, (K,)."""
        columns = self.column_P[list(nodes)] if len(nodes) else np.empty(0, dtype=np.int64)
        return np.asarray(self.profile_GK[columns[columns >= 0]].sum(axis=0))

    def targets(self, sets: Sets) -> np.ndarray:
        """Whether a measured gene is perturbed itself, or the condition is the control, (U, G) bool."""
        is_target_UG = np.zeros((len(sets), len(self.noise_G)), dtype=bool)
        for row, nodes in enumerate(sets):
            columns = self.column_P[list(nodes)] if len(nodes) else slice(None)
            is_target_UG[row, columns if isinstance(columns, slice) else columns[columns >= 0]] = True
        return is_target_UG


@dataclass(frozen=True)
class Head:
    """The trained head with its weights."""

    inputs: HeadInputs
    # centre_F, spread_F: mean and standard deviation of the inputs over training
    centre_F: np.ndarray
    spread_F: np.ndarray
    layers: tuple[Layer, ...]  # three linear maps with ``x sigmoid(x)`` between them
    size: float  # unit of its result
    # single_weight, several_weight: weight, 0 to 1, under conditions of one gene and of several
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
        """Change by inputs, before the weights, (U, G) float64; computed in float32, as the head was trained."""
        centre_F, spread_F = self.centre_F.astype(np.float32), self.spread_F.astype(np.float32)
        *hidden, last = [(weight.astype(np.float32), bias.astype(np.float32)) for weight, bias in self.layers]
        inputs_NF = inputs_UGF.reshape(-1, len(centre_F))
        change_N = np.empty(len(inputs_NF))
        for start in range(0, len(inputs_NF), _BLOCK_ROWS):  # what stays in a cache
            rows = slice(start, start + _BLOCK_ROWS)
            values = np.clip((inputs_NF[rows] - centre_F) / spread_F, -LIMIT, LIMIT)
            for weight, bias in hidden:
                values = values @ weight
                values += bias
                values *= special.expit(values)
            change_N[rows] = (values @ last[0] + last[1])[:, 0]
        return self.size * change_N.reshape(inputs_UGF.shape[:2])

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything as arrays for a file; the columns of the nodes are those of the prior."""
        inputs = {name: getattr(self.inputs, field) for name, field in (_OF_GENES | _OF_SETTINGS).items()}
        layers = {
            f"{name}_{number}": array
            for number, layer in enumerate(self.layers)
            for name, array in zip(("layer", "bias"), layer, strict=True)
        }
        scalars = np.array([self.size, self.single_weight, self.several_weight, len(self.layers)])
        more = {"size": np.asarray(self.inputs.size), "centre": self.centre_F, "spread": self.spread_F}
        return {**inputs, **layers, **more, "scalars": scalars}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], column_P: np.ndarray, n_kinds: int = 1) -> Head:
        """The head that :meth:`arrays` describes; KeyError or ValueError for arrays that do not fit together."""
        tables = {field: arrays[name] for name, field in _OF_GENES.items()}
        lengths = {name: len(table) for name, table in tables.items()}
        of_settings = {field: np.atleast_2d(arrays[name]) for name, field in _OF_SETTINGS.items()}
        lengths |= {name: table.shape[1] for name, table in of_settings.items()}
        if len(set(lengths.values())) > 1:
            msg = f"the head's tables disagree on the number of genes: {lengths}"
            raise ValueError(msg)
        size, single, several, n_layers = map(float, arrays["scalars"])
        layers = tuple((arrays[f"layer_{n}"], arrays[f"bias_{n}"]) for n in range(int(n_layers)))
        inputs = HeadInputs(size=float(arrays["size"]), column_P=column_P, n_kinds=n_kinds, **tables, **of_settings)
        return cls(inputs, arrays["centre"], arrays["spread"], layers, size, single, several)


def strata(sets: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    """Rows of the conditions of one gene and of several, by the name of their kind; each has a weight."""
    is_several_U = np.array([len(nodes) > 1 for nodes in sets], dtype=bool)
    return {"single": np.flatnonzero(~is_several_U), "several": np.flatnonzero(is_several_U)}
