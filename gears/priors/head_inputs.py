"""What the head reads of a gene and a condition.

The head is one small function for every gene under every condition. So its inputs mean the same for all of them: what
the prior predicts for the condition and for each of its genes alone, how strongly the measured gene responds to other
perturbations, how noisy it is, and how it goes together with the perturbed genes over control cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

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
    """Predictions of the prior for U conditions and for their genes alone, (U, G) each.

    Attributes
    ----------
    change_UG
        Change under the condition.
    sum_UG
        Sum of the changes under each of its genes alone.
    largest_UG
        For each measured gene, the largest of these by absolute value.
    strongest_UG
        Changes under the one gene whose changes are largest altogether.
    """

    change_UG: np.ndarray
    sum_UG: np.ndarray
    largest_UG: np.ndarray
    strongest_UG: np.ndarray

    @classmethod
    def of(cls, predict: Predict, sets: Sets) -> PriorChanges:
        """From a function that predicts changes of sets of nodes."""
        change_UG = predict(sets)
        parts = [change_UG.copy() for _ in range(3)]
        several = [row for row, nodes in enumerate(sets) if len(nodes) > 1]
        nodes_N = sorted({int(node) for row in several for node in sets[row]})
        if nodes_N:
            alone_NG = predict([(node,) for node in nodes_N])
            position = {node: number for number, node in enumerate(nodes_N)}
            for row in several:
                each_MG = alone_NG[[position[int(node)] for node in sets[row]]]
                parts[0][row] = each_MG.sum(axis=0)
                largest_G = np.abs(each_MG).argmax(axis=0)
                parts[1][row] = np.take_along_axis(each_MG, largest_G[None], axis=0)[0]
                parts[2][row] = each_MG[(each_MG**2).sum(axis=1).argmax()]
        return cls(change_UG, *parts)

    def rows(self, rows: np.ndarray) -> PriorChanges:
        """Those of some conditions."""
        return PriorChanges(
            self.change_UG[rows], self.sum_UG[rows], self.largest_UG[rows], self.strongest_UG[rows]
        )


@dataclass(frozen=True)
class HeadInputs:
    """Tables of the measured genes, from which the inputs of any condition are computed.

    Attributes
    ----------
    size
        Root mean square change over training conditions, the unit of all changes.
    noise_G
        Standard error of a condition's mean, for a typical number of cells.
    control_mean_G, control_sd_G
        Mean and standard deviation over control cells.
    profile_GK
        Correlation profile over control cells (:mod:`gears.graphs.profiles`), of length 1, or 0 where it is unknown.
    column_P
        Column of each perturbation node among the measured genes, -1 where it is not measured.
    mean_G, response_G
        Mean change over training conditions, and the root mean square without sampling noise.
    """

    size: float
    noise_G: np.ndarray
    control_mean_G: np.ndarray
    control_sd_G: np.ndarray
    profile_GK: np.ndarray
    column_P: np.ndarray
    mean_G: np.ndarray
    response_G: np.ndarray

    def of(self, changes: PriorChanges, sets: Sets) -> np.ndarray:
        """Inputs of the head, (U, G, F) float32, see :data:`NAMES`."""
        shape = changes.change_UG.shape
        co_expression_UG = (
            np.stack([self._co_expression(nodes) for nodes in sets]) if len(sets) else np.zeros(shape)
        )
        several_U1 = np.array([[float(len(nodes) > 1)] for nodes in sets]).reshape(-1, 1)
        columns = (
            changes.change_UG / self.size,
            changes.sum_UG / self.size,
            changes.largest_UG / self.size,
            (changes.sum_UG - changes.largest_UG) / self.size,
            changes.strongest_UG / self.size,
            several_U1,
            np.clip(changes.change_UG / self.noise_G, -_LARGEST_Z, _LARGEST_Z),
            self.noise_G / self.size,
            self.control_mean_G,
            self.control_sd_G,
            self.response_G / self.size,
            self.mean_G / self.size,
            co_expression_UG,
            co_expression_UG * self.control_sd_G,
        )
        inputs_UGF = np.empty((*shape, len(columns)), dtype=np.float32)
        for number, column in enumerate(columns):
            inputs_UGF[..., number] = column
        return inputs_UGF

    def _co_expression(self, nodes: Sequence[int]) -> np.ndarray:
        """Similarity of each gene's correlation profile to those of the perturbed genes, summed over these, (G,)."""
        columns = self.column_P[list(nodes)] if len(nodes) else np.empty(0, dtype=np.int64)
        return np.asarray(self.profile_GK @ self.profile_GK[columns[columns >= 0]].sum(axis=0))

    def targets(self, sets: Sets) -> np.ndarray:
        """Whether a measured gene is perturbed itself, or the condition is the control, (U, G) bool."""
        is_target_UG = np.zeros((len(sets), len(self.noise_G)), dtype=bool)
        for row, nodes in enumerate(sets):
            columns = self.column_P[list(nodes)] if len(nodes) else slice(None)
            is_target_UG[row, columns if isinstance(columns, slice) else columns[columns >= 0]] = True
        return is_target_UG
