"""The fitted Gaussian-process prior: it predicts changes of expression without a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from gears.conditions import contexts_of, kinds_of
from gears.files.untrusted import check_compressed
from gears.priors.head import Head
from gears.priors.kernels import (
    N_KINDS,
    AdditiveCovariance,
    GeneSimilarity,
    kinds_of_sets,
    sizes_of,
    target_cells,
)
from gears.priors.magnitude import Magnitude
from gears.priors.measured import Measured
from gears.priors.uncertainty import Uncertainty

_HEAD = "head_"
_LEAST_NUGGET = 0.01  # share of a gene's variance that is not of the condition alone, but of its gene
_SHARED = ("trained", "similar_data", "similar_indices", "similar_indptr", "column")


@dataclass(frozen=True)
class GenePrior:
    """The Gaussian-process prior: change of every gene under any set of perturbed genes.
    ::

        change = slope (factor (offset + size shared + sum_j effect_j) + target)

    with ``effect_j = own coefficient_j + similar sum_t similarity_jt coefficient_t`` over the genes t perturbed in
    training, and the change of a perturbed gene itself, where it is measured, as a share of its control mean. It is
    linear in the genes but for `factor`, and zero for the control. A training condition is predicted as measured,
    shrunk by its sampling noise alone.

    Attributes
    ----------
    genes
        Trained nodes and their similarity to all P nodes.
    offset_G, shared_G
        Change that all conditions share, and that every perturbed gene adds.
    own, similar
        Variances of a gene's specific effect (of each gene where these are not one, (T,)) and of the part that similar
        genes share.
    coefficient_TG
        Coefficients over the trained nodes.
    column_P
        Column of each node among the measured genes, -1 where it is not measured, (P,) int64.
    target_G
        Change of gene g when it is perturbed itself.
    magnitude
        Departure of several genes from the sum, or None.
    slope_K
        Factor on everything, for each of :data:`gears.priors.kernels.KINDS`, (K,).
    mean_G, mean_only_K
        Mean change of the training conditions, and the kinds of conditions that are predicted by it instead of the sum.
    network_weight
        Factor on the network's change, which is added to the prior's; 0 where the prior is used alone.
    uncertainty
        How far predictions are from the truth; None where it is not known.
    head
        Small network whose change is added (:mod:`gears.priors.head`), or None.
    measured
        The training conditions, which are predicted as measured; None in files of earlier versions.
    """

    genes: GeneSimilarity
    offset_G: np.ndarray
    shared_G: np.ndarray
    own: float | np.ndarray
    similar: float
    coefficient_TG: np.ndarray
    column_P: np.ndarray
    target_G: np.ndarray
    mean_G: np.ndarray
    slope_K: np.ndarray = field(default_factory=lambda: np.ones(N_KINDS))
    mean_only_K: np.ndarray = field(default_factory=lambda: np.zeros(N_KINDS, dtype=bool))
    magnitude: Magnitude | None = None
    network_weight: float = 1.0
    report: Mapping[str, Any] = field(default_factory=dict)
    uncertainty: Uncertainty | None = None
    head: Head | None = None
    measured: Measured | None = None

    @classmethod
    def of(
        cls,
        covariance: AdditiveCovariance,
        sets: Sequence[Sequence[int]],
        coefficient_CG: np.ndarray,
        level_G: np.ndarray,
        **more: Any,
    ) -> GenePrior:
        """The prediction of any condition from some conditions, by the coefficients of the regression."""
        omitted = covariance.omitted
        return cls(
            covariance.genes,
            level_G,
            covariance.shared * (sizes_of(sets) @ coefficient_CG),
            covariance.own if omitted is None else covariance.own - omitted.excess(1.0),
            covariance.similar,
            np.asarray(covariance.genes.members(sets).T @ coefficient_CG),
            **more,
        )

    def __call__(self, sets: Sequence[Sequence[int]]) -> np.ndarray:
        """Predicted changes, (U, G) float64, for the perturbation-graph nodes of each condition (none: the control)."""
        change_UG = self.without_head(sets)
        if self.head is None:
            return change_UG
        return self.complete(sets, change_UG, self.head.change(self.without_head, sets), 1.0)

    def without_head(self, sets: Sequence[Sequence[int]]) -> np.ndarray:
        """Changes that the Gaussian process alone predicts, (U, G) float64."""
        summed_UG, kind_U = self.summed(sets), self.kinds_of(sets)
        if self.carried_TG is not None:
            summed_UG += np.where(
                sizes_of(sets)[:, None] > 1, self.genes.members(sets) @ self.carried_TG, 0.0
            )
        if self.magnitude is not None:
            summed_UG *= self.magnitude.factor(sets, self.genes)[:, None]
        summed_UG[self.mean_only_K[kind_U] & (sizes_of(sets) > 0)] = self.mean_G
        change_UG = self.slope_K[kind_U, None] * summed_UG + self.own_changes(sets)
        return change_UG if self.measured is None else self.measured.insert(sets, change_UG)

    @cached_property
    def carried_TG(self) -> np.ndarray | None:
        """What each measured single shows beyond its gene's effect, (T, G).

        Combinations take it over as long as training has too few of them to show otherwise; else None.
        """
        if self.measured is None or self.measured.shows_departures or self.uncertainty is None:
            return None
        covariance = self.uncertainty.covariance
        if covariance.nugget > _LEAST_NUGGET * (covariance.overall.own + covariance.overall.similar):
            return None
        singles = [(node,) for node in self.genes.trained_T.tolist()]
        expected_TG = self.summed(singles) + target_part(singles, self.column_P, self.target_G)
        return self.measured.insert(singles, expected_TG.copy()) - expected_TG

    def kinds_of(self, sets: Sequence[Sequence[int]]) -> np.ndarray:
        """Place of each condition in :data:`gears.priors.kernels.KINDS`, as if it had not been measured, (U,)."""
        return kinds_of_sets(self.genes.members(sets).getnnz(axis=1), sizes_of(sets))

    def own_changes(self, sets: Sequence[Sequence[int]]) -> np.ndarray:
        """The part of the changes that is the change of perturbed genes themselves, (U, G)."""
        return self.slope_K[self.kinds_of(sets), None] * target_part(sets, self.column_P, self.target_G)

    def sd(self, sets: Sequence[Sequence[int]], change_UG: np.ndarray) -> np.ndarray | None:
        """Standard deviation of the mean changes that the prior predicts, (U, G); None where it is not known."""
        if self.uncertainty is None:
            return None
        return self.uncertainty(sets, change_UG, self.own_changes(sets), self.measured)

    @property
    def control_sd(self) -> np.ndarray | None:
        """Standard error of the control mean in predicted changes, (G,); None where it is not known."""
        return None if self.uncertainty is None else self.uncertainty.control_sd_G

    def summed(self, sets: Sequence[Sequence[int]]) -> np.ndarray:
        """Sum of the genes' effects, without targets, factor and slope."""
        size_U1 = sizes_of(sets)[:, None]
        weight_UT = self.own * self.genes.membership(sets) + self.similar * self.genes.similarity(sets)
        return (
            np.where(size_U1 > 0, self.offset_G, 0.0)
            + size_U1 * self.shared_G
            + weight_UT @ self.coefficient_TG
        )

    def complete(
        self,
        sets: Sequence[Sequence[int]],
        change_UG: np.ndarray,
        network_UG: np.ndarray | None,
        weight: float | None = None,
    ) -> np.ndarray:
        """The prior's changes with the weighted ones of a network (None where it is not run), (U, G).

        Nothing is added to measured conditions. The weight is that of the model's network by default.
        """
        return completed(
            self.measured, sets, change_UG, network_UG, self.network_weight if weight is None else weight
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything but `report`, as arrays for a file."""
        similar_PT = self.genes.similar_PT
        arrays = {
            "trained": self.genes.trained_T,
            "similar_data": similar_PT.data,
            "similar_indices": similar_PT.indices,
            "similar_indptr": similar_PT.indptr,
            "offset": self.offset_G,
            "shared": self.shared_G,
            "scalars": np.array([np.mean(self.own), self.similar, 1.0, self.network_weight]),
            "slopes": self.slope_K,
            "mean": self.mean_G,
            "mean_only": self.mean_only_K,
            "coefficient": self.coefficient_TG,
            "column": self.column_P,
            "target": self.target_G,
        }
        if isinstance(self.own, np.ndarray):
            arrays["each"] = self.own
        if self.magnitude is not None:
            settings = [self.magnitude.offset, self.magnitude.own, self.magnitude.similar]
            arrays |= {"factor": np.array(settings), "factor_coefficient": self.magnitude.coefficient_T}
        if self.head is not None:
            arrays |= {f"{_HEAD}{name}": array for name, array in self.head.arrays().items()}
        return arrays | _sd_arrays(self.uncertainty) | _measured_arrays(self.measured)

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, np.ndarray], report: Mapping[str, Any] | None = None
    ) -> GenePrior:
        """The prior that :meth:`arrays` describes; KeyError or ValueError for arrays that do not fit together."""
        trained_T = arrays["trained"]
        triple = tuple(arrays[f"similar_{name}"] for name in ("data", "indices", "indptr"))
        shape = (len(arrays["column"]), len(trained_T))
        similar_PT = sparse.csr_matrix(triple, shape=shape)
        check_compressed("the prior's table of similarities", similar_PT)
        n_genes = len(arrays["offset"])
        if arrays["coefficient"].shape != (len(trained_T), n_genes) or len(arrays["target"]) != n_genes:
            msg = f"the prior's tables disagree: {arrays['coefficient'].shape} coefficients, {n_genes} genes"
            raise ValueError(msg)
        magnitude = None
        if "factor" in arrays:
            offset, own_share, similar_share = map(float, arrays["factor"])
            magnitude = Magnitude(offset, own_share, similar_share, arrays["factor_coefficient"])
        own, similar, slope, network_weight = map(float, arrays["scalars"])
        genes, sd_arrays = GeneSimilarity(trained_T, similar_PT), _starting(arrays, "sd_")
        uncertainty = Uncertainty.from_arrays(sd_arrays, genes) if sd_arrays else None
        head_arrays = _starting(arrays, _HEAD)
        head = Head.from_arrays(head_arrays, arrays["column"]) if head_arrays else None
        if head is not None and len(head.inputs.noise_G) != n_genes:
            msg = f"the prior is for {n_genes} genes and its head for {len(head.inputs.noise_G)}, of another model"
            raise ValueError(msg)
        if "slopes" in arrays:
            slope_K, mean_G, mean_only_K = arrays["slopes"], arrays["mean"], arrays["mean_only"]
        else:  # a file of an earlier version: one slope for all conditions, measured ones too
            slope_K, mean_G, mean_only_K = (
                np.full(N_KINDS, slope),
                np.zeros(n_genes),
                np.zeros(N_KINDS, dtype=bool),
            )
        more = (
            magnitude,
            network_weight,
            dict(report or {}),
            uncertainty,
            head,
            Measured.from_arrays(arrays),
        )
        return cls(
            genes, arrays["offset"], arrays["shared"], arrays.get("each", own), similar,
            arrays["coefficient"], arrays["column"], arrays["target"], mean_G, slope_K, mean_only_K, *more,
        )  # fmt: skip


def _sd_arrays(uncertainty: Uncertainty | None) -> dict[str, np.ndarray]:
    return (
        {} if uncertainty is None else {f"sd_{name}": array for name, array in uncertainty.arrays().items()}
    )


def _measured_arrays(measured: Measured | None) -> dict[str, np.ndarray]:
    return {} if measured is None else measured.arrays()


def _starting(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The arrays whose names begin so, without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def target_part(sets: Sequence[Sequence[int]], column_P: np.ndarray, target_G: np.ndarray) -> np.ndarray:
    """Change of each measured gene that is perturbed itself, (U, G); zero for all others."""
    part_UG = np.zeros((len(sets), len(target_G)))
    rows, columns = target_cells(sets, column_P)
    part_UG[rows, columns] = target_G[columns]
    return part_UG


def completed(
    measured: Measured | None,
    sets: Sequence[Sequence[int]],
    change_UG: np.ndarray,
    network_UG: np.ndarray | None,
    weight: float,
) -> np.ndarray:
    """Changes with the weighted ones of a network, but for measured conditions, (U, G)."""
    if weight == 0 or network_UG is None:
        return change_UG
    if measured is not None:
        network_UG = np.where(measured.rows(sets)[:, None] < 0, network_UG, 0.0)
    return np.asarray(change_UG + weight * network_UG)


@dataclass(frozen=True)
class ContextPrior:
    """The Gaussian-process prior of a screen with settings: change of every gene in any setting.

    A *setting* is a context with a type of perturbation. The change is that of `pooled`, fitted to all
    settings, plus that of the setting. In a context without training conditions the latter is zero, except for the
    change of the perturbed gene itself.

    Attributes
    ----------
    pooled
        Prior that all settings share.
    own
        Prior of each setting, number ``context x n_kinds + kind``.
    n_kinds
        Number of types of perturbation, at least 1.
    network_weight, report, uncertainty, measured
        As in :class:`gears.priors.GenePrior`.
    """

    pooled: GenePrior
    own: tuple[GenePrior, ...]
    n_kinds: int = 1
    network_weight: float = 1.0
    report: Mapping[str, Any] = field(default_factory=dict)
    uncertainty: Uncertainty | None = None
    measured: Measured | None = None

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
        change_UG = self._added(self.pooled(sets), sets, GenePrior.__call__)
        return change_UG if self.measured is None else self.measured.insert(sets, change_UG)

    def sd(self, sets: Sequence[Sequence[int]], change_UG: np.ndarray) -> np.ndarray | None:
        """Standard deviation of the mean changes that the prior predicts, (U, G); None where it is not known."""
        if self.uncertainty is None:
            return None
        own_UG = self._added(self.pooled.own_changes(sets), sets, GenePrior.own_changes)
        return self.uncertainty(sets, change_UG, own_UG, self.measured)

    @property
    def control_sd(self) -> np.ndarray | None:
        """As :attr:`GenePrior.control_sd`."""
        return None if self.uncertainty is None else self.uncertainty.control_sd_G

    def _added(
        self,
        value_UG: np.ndarray,
        sets: Sequence[Sequence[int]],
        part: Callable[[GenePrior, Sequence[Sequence[int]]], np.ndarray],
    ) -> np.ndarray:
        """Values, to which those of each set's setting are added."""
        setting_U = self.settings_of(sets)
        for setting in np.unique(setting_U).tolist():
            rows = np.flatnonzero(setting_U == setting)
            value_UG[rows] += part(self.own[setting], [sets[row] for row in rows.tolist()])
        return value_UG

    def complete(
        self, sets: Sequence[Sequence[int]], change_UG: np.ndarray, network_UG: np.ndarray | None
    ) -> np.ndarray:
        """As :meth:`GenePrior.complete`."""
        return completed(self.measured, sets, change_UG, network_UG, self.network_weight)

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything but `report`, as arrays for a file."""
        arrays = {f"pooled_{name}": array for name, array in self.pooled.arrays().items()}
        for setting, prior in enumerate(self.own):
            setting_arrays = prior.arrays()
            if prior.genes is not self.pooled.genes and setting == 0:  # another mixture of similarities
                arrays |= {f"own_{name}": setting_arrays[name] for name in _SHARED}
            arrays |= {
                f"own{setting}_{name}": setting_arrays[name] for name in setting_arrays if name not in _SHARED
            }
        return arrays | {
            "settings": np.array([len(self.own), self.n_kinds]),
            "network_weight": np.array(self.network_weight),
            **_sd_arrays(self.uncertainty),
            **_measured_arrays(self.measured),
        }

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, np.ndarray], report: Mapping[str, Any] | None = None
    ) -> ContextPrior:
        """The prior that :meth:`arrays` describes."""

        pooled = _starting(arrays, "pooled_")
        shared = {name: pooled[name] for name in _SHARED} | _starting(arrays, "own_")
        n, n_kinds = map(int, arrays["settings"])
        own = tuple(
            GenePrior.from_arrays(shared | _starting(arrays, f"own{setting}_")) for setting in range(n)
        )
        weight = float(arrays["network_weight"] if "network_weight" in arrays else arrays["gate"])
        prior, uncertainty = GenePrior.from_arrays(pooled), None
        if sd_arrays := _starting(arrays, "sd_"):
            uncertainty = Uncertainty.from_arrays(sd_arrays, prior.genes, own[0].genes, n_kinds)
        measured = Measured.from_arrays(arrays)
        return cls(prior, own, n_kinds, weight, dict(report or {}), uncertainty, measured)


Prior = GenePrior | ContextPrior


def read_prior(arrays: Mapping[str, np.ndarray], report: Mapping[str, Any] | None = None) -> Prior:
    """A prior from its arrays."""
    return (ContextPrior if "settings" in arrays else GenePrior).from_arrays(arrays, report)
