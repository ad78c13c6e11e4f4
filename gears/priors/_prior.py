"""The fitted Gaussian-process prior: it predicts changes of expression without a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from gears.files._mapped import CSR_ARRAYS, compressed_arrays, compressed_of
from gears.priors._elsewhere import Elsewhere, is_elsewhere
from gears.priors._explain import Basis
from gears.priors._head import Head
from gears.priors._kernels import (
    N_KINDS,
    AdditiveCovariance,
    GeneSimilarity,
    kinds_of_sets,
    settings_of,
    singles_in,
    sizes_of,
    target_cells,
)
from gears.priors._magnitude import Magnitude
from gears.priors._measured import Measured
from gears.priors._uncertainty import Uncertainty

Sets = Sequence[Sequence[int]]
_HEAD, _SD, _WITHIN, _ELSEWHERE, _BASIS = "head_", "sd_", "within_", "elsewhere_", "basis_"
_LEAST_NUGGET = 0.01  # share of a gene's variance that is not of the condition alone, but of its gene
_SIMILARITIES = "the prior's table of similarities"


@dataclass(frozen=True)
class Effects:
    """Changes that add up over the genes of a condition.
    ::

        change = offset + size shared + sum_j effect_j
        effect_j = own coefficient_j + similar sum_t similarity_jt coefficient_t

    over the genes t perturbed in training; zero for the control.
    """

    genes: GeneSimilarity  # trained nodes and their similarity to all P nodes
    # offset_G, shared_G: change that all conditions share, and that every perturbed gene adds
    offset_G: np.ndarray
    shared_G: np.ndarray
    # own, similar: variances of a gene's specific effect (of each gene where these are not one, (T,)) and of the part
    # that similar genes share
    own: float | np.ndarray
    similar: float
    coefficient_TG: np.ndarray  # coefficients over the trained nodes

    @classmethod
    def of(
        cls,
        covariance: AdditiveCovariance,
        sets: Sets,
        coefficient_CG: np.ndarray,
        level_G: np.ndarray,
        *,
        is_level_free: bool,
    ) -> Effects:
        """The prediction of any condition from some conditions, by the coefficients of the regression."""
        omitted, size_C = covariance.omitted, sizes_of(sets)
        shared_G = covariance.shared * (size_C @ coefficient_CG)
        if is_level_free and np.all(size_C == 1):
            # singles do not tell whether a level is of conditions or of genes: half to each, as a shrunk one has it
            level_G, shared_G = level_G / 2, shared_G + level_G / 2
        return cls(
            covariance.genes,
            level_G,
            shared_G,
            covariance.own if omitted is None else covariance.own - omitted.excess(1.0),
            covariance.similar,
            np.asarray(covariance.genes.members(sets).T @ coefficient_CG),
        )

    def __call__(self, sets: Sets) -> np.ndarray:
        """Changes, (U, G) float64."""
        weight_UT = self.own * self.genes.membership(sets) + self.similar * self.genes.similarity(sets)
        return self.common(sets) + weight_UT @ self.coefficient_TG

    def common(self, sets: Sets) -> np.ndarray:
        """The part of the changes that does not depend on which genes are perturbed, (U, G)."""
        size_U1 = sizes_of(sets)[:, None]
        return np.asarray(np.where(size_U1 > 0, self.offset_G, 0.0) + size_U1 * self.shared_G)


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


@dataclass(frozen=True)
class GenePrior:
    """The Gaussian-process prior: change of every gene under any set of perturbed genes, in any setting.
    ::

        change = slope factor (effects over all conditions + effects within the setting) + target

    A *setting* is a context with a type of perturbation; with one, there are no effects within it. The target is the
    change of a perturbed gene itself, where it is measured, as a share of its control mean. The change is zero for the
    control. A training condition is predicted as measured, shrunk by its sampling noise alone. What files of earlier
    versions do not hold has the default.
    """

    overall: Effects  # over all conditions
    column_P: np.ndarray  # column of each node among the measured genes, -1 where it is not measured, (P,) int64
    target_SG: np.ndarray  # change of gene g when it is perturbed itself, before the slope
    mean_SG: np.ndarray  # mean change of each setting's training conditions
    within: tuple[Effects, ...] = ()  # effects that each of S settings has besides; none with one setting
    n_kinds: int = 1  # types of perturbation; settings are numbered ``context x n_kinds + kind``
    slope_K: np.ndarray = field(default_factory=lambda: np.ones(N_KINDS))
    """Factor on everything, for each of :data:`gears.priors._kernels.KINDS`, (K,)."""
    mean_share_K: np.ndarray = field(default_factory=lambda: np.zeros(N_KINDS))
    """By kind of condition the share of the mean of the effects in place of their sum: 1 is the mean alone."""
    magnitude: Magnitude | None = None  # departure of several genes from the sum
    network_weight: float = 1.0
    """Factor on the network's change, which is added to the prior's; 0 where the prior is used alone."""
    report: Mapping[str, Any] = field(default_factory=dict)
    uncertainty: Uncertainty | None = None  # how far predictions are from the truth; None where it is not known
    head: Head | None = None  # small network whose change is added (gears.priors._head)
    measured: Measured | None = None  # the training conditions, which are predicted as measured
    carries_singles: bool = True
    """Whether combinations may take over what a single shows beyond its gene's effect; False in files of earlier
    versions with several settings."""
    scale: np.ndarray | None = None  # factor of each setting on its effects, (S, 1) or for each gene (S, G); None for 1
    elsewhere: Elsewhere | None = None  # what is predicted of settings without training conditions
    of_others: Residual | None = None  # what other screens add for genes that training does not perturb
    basis: Basis | None = None
    """What the regression was made from, which explains predictions; None of very many conditions, or of one alone."""

    @cached_property
    def trained_settings(self) -> np.ndarray:
        """Numbers of the settings with training conditions, ascending; all in files of earlier versions."""
        if self.measured is None:
            return np.arange(len(self.target_SG))
        return np.unique(settings_of(self.measured.sets, self.n_kinds))

    def _away(self, sets: Sets) -> tuple[np.ndarray, Elsewhere] | None:
        """Rows of settings without training conditions and what is predicted of them; None where there are none."""
        if self.elsewhere is None:
            return None
        rows = np.flatnonzero(is_elsewhere(sets, self.trained_settings, self.n_kinds))
        return (rows, self.elsewhere) if len(rows) else None

    def _sd_away(self, sets: Sets) -> tuple[np.ndarray, list[Sequence[int]], Uncertainty] | None:
        """The same rows with their sets, and the standard deviations there; None where these are not known."""
        away = self._away(sets)
        if away is None or away[1].uncertainty is None:
            return None
        return away[0], [sets[row] for row in away[0].tolist()], away[1].uncertainty

    @property
    def scale_S(self) -> np.ndarray:
        """Factor of each setting on its effects."""
        return np.ones((len(self.target_SG), 1)) if self.scale is None else self.scale

    @property
    def genes(self) -> GeneSimilarity:
        """Trained nodes and their similarity to all nodes, over all conditions."""
        return self.overall.genes

    @property
    def n_genes(self) -> int:
        """Number of measured genes."""
        return self.target_SG.shape[1]

    def __call__(self, sets: Sets) -> np.ndarray:
        """Predicted changes, (U, G) float64, for the perturbation-graph nodes of each condition (none: the control)."""
        change_UG = self.without_head(sets)
        if self.head is None:
            return change_UG
        head_UG = self.head.change(self.without_head, sets)
        if (away := self._away(sets)) is not None and not away[1].has_head:
            head_UG[away[0]] = 0.0
        return self.complete(sets, change_UG, head_UG, 1.0)

    def without_head(self, sets: Sets) -> np.ndarray:
        """Changes that the Gaussian process alone predicts, (U, G) float64."""
        summed_UG, kind_U, size_U = self.summed(sets), self.kinds_of(sets), sizes_of(sets)
        if self._carries_singles and (size_U > 1).any():
            for setting, rows, members in self._by_setting(sets):
                carried_RG = self.genes.members(members) @ self._carried(setting)
                summed_UG[rows] += np.where(size_U[rows, None] > 1, carried_RG, 0.0)
        if self.magnitude is not None:
            summed_UG *= self.magnitude.factor(sets, self.genes)[:, None]
        share_U, slope_U = self.mean_share_K[kind_U], self.slope_K[kind_U]
        if (away := self._away(sets)) is not None:
            rows, other = away
            share_U[rows], slope_U[rows] = other.mean_share_K[kind_U[rows]], other.slope_K[kind_U[rows]]
        share_U1 = np.where(size_U > 0, share_U, 0.0)[:, None]
        if share_U1.any():
            summed_UG = (1 - share_U1) * summed_UG + share_U1 * self._means(sets)
        change_UG = slope_U[:, None] * summed_UG + self.own_changes(sets)
        if self.of_others is not None:
            change_UG += self.of_others(sets)
        return change_UG if self.measured is None else self.measured.insert(sets, change_UG)

    def _means(self, sets: Sets) -> np.ndarray:
        """What conditions have in common: of one setting the mean of training, of several it is shrunk, (U, G)."""
        if self.scale is None:
            return self.mean_SG[self._settings_of(sets)]
        common_UG = self.overall.common(sets)
        for setting, rows, members in self._by_setting(sets):
            common_UG[rows] += self.within[setting].common(members)
            common_UG[rows] *= self.scale_S[setting]
        return common_UG

    def _settings_of(self, sets: Sets) -> np.ndarray:
        """Number of each set's setting, (U,); 0 where the prior has one."""
        return settings_of(sets, self.n_kinds) if len(self.target_SG) > 1 else np.zeros(len(sets), dtype=np.int64)

    def _by_setting(self, sets: Sets) -> Iterator[tuple[int, np.ndarray, list[Sequence[int]]]]:
        """Each setting that occurs, with the rows and the sets of it."""
        setting_U = self._settings_of(sets)
        for setting in np.unique(setting_U).tolist():
            rows = np.flatnonzero(setting_U == setting)
            yield setting, rows, [sets[row] for row in rows.tolist()]

    @cached_property
    def _carries_singles(self) -> bool:
        """Whether combinations take over what a single shows beyond its gene's effect.

        They do as long as training has too few of them to show otherwise.
        """
        if self.measured is None or self.uncertainty is None:
            return False
        if not self.carries_singles or self.measured.shows_departures:
            return False
        covariance = self.uncertainty.covariance
        parts = [covariance.overall, *([] if covariance.within is None else [covariance.within])]
        return covariance.nugget <= _LEAST_NUGGET * sum(part.own + part.similar for part in parts)

    @cached_property
    def _carried_by_setting(self) -> dict[int, np.ndarray]:
        return {}

    def _carried(self, setting: int) -> np.ndarray:
        """What each measured single shows beyond its gene's effect, (T, G), as far as the setting takes it."""
        if setting not in self._carried_by_setting:
            carried_TG = np.zeros((len(self.genes.trained_T), self.n_genes))
            share_S = self._taken_by(setting)
            for other in np.flatnonzero(share_S).tolist():
                singles = singles_in(other, self.genes.trained_T, self.n_kinds)
                expected_TG = self.summed(singles) + self._targets(singles)
                shown_TG = self.measured.insert(singles, expected_TG.copy())  # type: ignore[union-attr]
                carried_TG += float(share_S[other]) * (shown_TG - expected_TG)
            self._carried_by_setting[setting] = carried_TG
        return self._carried_by_setting[setting]

    def _taken_by(self, setting: int) -> np.ndarray:
        """Share of each setting's own part that a setting takes, (S,): of itself, or of others without training."""
        if self.within and self.uncertainty is not None:
            return self.uncertainty.covariance.carried_SS[setting]
        return np.eye(setting + 1)[setting] if self.within else np.ones(1)

    def kinds_of(self, sets: Sets) -> np.ndarray:
        """Place of each condition in :data:`gears.priors._kernels.KINDS`, as if it had not been measured, (U,)."""
        return kinds_of_sets(self.genes.members(sets).getnnz(axis=1), sizes_of(sets))

    def own_changes(self, sets: Sets) -> np.ndarray:
        """The part of the changes that is the change of perturbed genes themselves, (U, G)."""
        kind_U, n_settings = self.kinds_of(sets), len(self.target_SG)
        slope_U = slopes_of_targets(self.slope_K, n_settings)[kind_U]
        if (away := self._away(sets)) is not None:
            rows, other = away
            slope_U[rows] = slopes_of_targets(other.slope_K, n_settings)[kind_U[rows]]
        return slope_U[:, None] * self._targets(sets)

    def _targets(self, sets: Sets) -> np.ndarray:
        """Change of each measured gene that is perturbed itself, (U, G); zero for all others."""
        part_UG = np.zeros((len(sets), self.n_genes))
        rows, columns = target_cells(sets, self.column_P)
        part_UG[rows, columns] = self.target_SG[self._settings_of(sets)[rows], columns]
        return part_UG

    def sd(self, sets: Sets, change_UG: np.ndarray) -> np.ndarray | None:
        """Standard deviation of the mean changes that the prior predicts, (U, G); None where it is not known."""
        if self.uncertainty is None:
            return None
        own_UG = self.own_changes(sets)
        sd_UG = self.uncertainty(sets, change_UG, own_UG, self.measured)
        if (away := self._sd_away(sets)) is not None:
            rows, members, uncertainty = away
            sd_UG[rows] = uncertainty(members, change_UG[rows], own_UG[rows], self.measured)
        return sd_UG

    def control_sd(self, sets: Sets) -> np.ndarray | None:
        """Standard error of the control mean in predicted changes, (G,) or (U, G); None where it is not known."""
        if self.uncertainty is None:
            return None
        sd, away = self.uncertainty.control_sd(sets, self.measured), self._sd_away(sets)
        if sd is not None and away is not None:
            rows, members, uncertainty = away
            sd[rows] = uncertainty.control_sd(members)
        return sd

    def widths(self, sets: Sets) -> np.ndarray | None:
        """How much wider than a Gaussian's intervals of each level are, (U, L); None where there is no `sd`."""
        if self.uncertainty is None:
            return None
        width_UL = self.uncertainty.widths_of(sets, self.measured)
        if (away := self._sd_away(sets)) is not None:
            rows, members, uncertainty = away
            width_UL[rows] = uncertainty.widths_of(members)
        return width_UL

    def summed(self, sets: Sets) -> np.ndarray:
        """Sum of the genes' effects, without targets, factor and slope."""
        summed_UG = self.overall(sets)
        if self.within:
            for setting, rows, members in self._by_setting(sets):
                summed_UG[rows] += self.within[setting](members)
                summed_UG[rows] *= self.scale_S[setting]
        return summed_UG

    def complete(
        self, sets: Sets, change_UG: np.ndarray, network_UG: np.ndarray | None, weight: float | None = None
    ) -> np.ndarray:
        """The prior's changes with the weighted ones of a network (None where it is not run), (U, G).

        Nothing is added to measured conditions. The weight is that of the model's network by default.
        """
        weight = self.network_weight if weight is None else weight
        if weight == 0 or network_UG is None:
            return change_UG
        if self.measured is not None:
            network_UG = np.where(self.measured.rows(sets)[:, None] < 0, network_UG, 0.0)
        return np.asarray(change_UG + weight * network_UG)

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything but `report`, as arrays for a file."""
        overall = self.overall
        arrays = {
            "trained": self.genes.trained_T,
            **compressed_arrays("similar_", self.genes.similar_PT),
            "offset": overall.offset_G,
            "shared": overall.shared_G,
            "scalars": np.array([np.mean(overall.own), overall.similar, 1.0, self.network_weight]),
            "slopes": self.slope_K,
            "mean": self.mean_SG,
            "mean_only": self.mean_share_K,
            "coefficient": overall.coefficient_TG,
            "column": self.column_P,
            "target": self.target_SG,
            "settings": np.array([len(self.target_SG), self.n_kinds, self.carries_singles]),
        }
        if isinstance(overall.own, np.ndarray):
            arrays["each"] = overall.own
        if self.within:
            first = self.within[0]
            arrays |= {
                **compressed_arrays(_WITHIN, first.genes.similar_PT),
                f"{_WITHIN}scalars": np.array([first.own, first.similar]),
                f"{_WITHIN}offset": np.stack([part.offset_G for part in self.within]),
                f"{_WITHIN}shared": np.stack([part.shared_G for part in self.within]),
                f"{_WITHIN}coefficient": np.stack([part.coefficient_TG for part in self.within]),
            }
        if self.scale is not None:
            arrays["scale"] = self.scale
        if self.magnitude is not None:
            options = [self.magnitude.offset, self.magnitude.own, self.magnitude.similar]
            arrays |= {"factor": np.array(options), "factor_coefficient": self.magnitude.coefficient_T}
        if self.of_others is not None:
            arrays |= {"others": self.of_others.nodes_N, "others_change": self.of_others.change_NG.astype(np.float16)}
        if self.head is not None:
            arrays |= {f"{_HEAD}{name}": array for name, array in self.head.arrays().items()}
        if self.basis is not None:
            arrays |= {f"{_BASIS}{name}": array for name, array in self.basis.arrays().items()}
        if self.uncertainty is not None:
            arrays |= {f"{_SD}{name}": array for name, array in self.uncertainty.arrays().items()}
        if self.elsewhere is not None:
            parts = self.elsewhere.arrays(_starting(arrays, _SD))
            arrays |= {f"{_ELSEWHERE}{name}": array for name, array in parts.items()}
        return arrays if self.measured is None else arrays | self.measured.arrays()

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], report: Mapping[str, Any] | None = None) -> GenePrior:
        """The prior that :meth:`arrays` describes; KeyError or ValueError for arrays that do not fit together."""
        if "pooled_trained" in arrays:
            arrays = _with_settings_in_one(arrays)
        trained_T, target_SG = arrays["trained"], np.atleast_2d(arrays["target"])
        shape = (len(arrays["column"]), len(trained_T))
        genes = GeneSimilarity(trained_T, compressed_of(_SIMILARITIES, arrays, "similar_", shape))
        n_genes = len(arrays["offset"])
        if arrays["coefficient"].shape != (len(trained_T), n_genes) or target_SG.shape[1] != n_genes:
            msg = f"the prior's tables disagree: {arrays['coefficient'].shape} coefficients, {n_genes} genes"
            raise ValueError(msg)
        own, similar, slope, network_weight = map(float, arrays["scalars"])
        overall = Effects(
            genes, arrays["offset"], arrays["shared"], arrays.get("each", own), similar, arrays["coefficient"]
        )
        within: tuple[Effects, ...] = ()
        if f"{_WITHIN}scalars" in arrays:
            of_setting = GeneSimilarity(trained_T, compressed_of(_SIMILARITIES, arrays, _WITHIN, shape))
            own_within, similar_within = map(float, arrays[f"{_WITHIN}scalars"])
            tables = (arrays[f"{_WITHIN}{name}"] for name in ("offset", "shared", "coefficient"))
            within = tuple(
                Effects(of_setting, offset_G, shared_G, own_within, similar_within, coefficient_TG)
                for offset_G, shared_G, coefficient_TG in zip(*tables, strict=True)
            )
        magnitude = None
        if "factor" in arrays:
            offset, own_share, similar_share = map(float, arrays["factor"])
            magnitude = Magnitude(offset, own_share, similar_share, arrays["factor_coefficient"])
        _, n_kinds, carries = map(int, arrays.get("settings", (1, 1, 1)))
        uncertainty = None
        of_genes: dict[str, Any] = {"genes": genes, "within": within[0].genes if within else None, "n_kinds": n_kinds}
        if sd_arrays := _starting(arrays, _SD):
            uncertainty = Uncertainty.from_arrays(sd_arrays, **of_genes)
        other = _starting(arrays, _ELSEWHERE)
        elsewhere = Elsewhere.from_arrays(other, sd_arrays, **of_genes) if other else None
        head_arrays = _starting(arrays, _HEAD)
        head = Head.from_arrays(head_arrays, arrays["column"], n_kinds) if head_arrays else None
        if head is not None and len(head.inputs.noise_G) != n_genes:
            msg = f"the prior is for {n_genes} genes and its head for {len(head.inputs.noise_G)}, of another model"
            raise ValueError(msg)
        if "slopes" in arrays:
            slope_K, mean_SG = arrays["slopes"], np.atleast_2d(arrays["mean"])
            mean_share_K = arrays["mean_only"].astype(np.float64)  # in files of earlier versions all or nothing
        else:  # a file of an earlier version: one slope for all conditions, measured ones too
            slope_K, mean_SG = np.full(N_KINDS, slope), np.zeros_like(target_SG)
            mean_share_K = np.zeros(N_KINDS)
        measured, basis = Measured.from_arrays(arrays), None
        if (basis_arrays := _starting(arrays, _BASIS)) and uncertainty is not None and measured is not None:
            basis = Basis.from_arrays(basis_arrays, uncertainty.covariance, measured.sets)
        return cls(
            overall, arrays["column"], target_SG, mean_SG, within, n_kinds, slope_K, mean_share_K, magnitude,
            network_weight, dict(report or {}), uncertainty, head, measured, bool(carries),
            arrays.get("scale"), elsewhere, Residual.from_arrays(arrays, n_genes), basis,
        )  # fmt: skip


def slopes_of_targets(slope_K: np.ndarray, n_settings: int) -> np.ndarray:
    """Factors on the change of perturbed genes themselves, by those on everything.

    With several settings that change is not shrunk with what carries over from one to another.
    """
    return slope_K if n_settings == 1 else np.maximum(slope_K, 1.0)


def _starting(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The arrays whose names begin so, without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _with_settings_in_one(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays of an earlier version, which held one prior of all settings and one of each, in the form of one."""
    pooled, own_similar = _starting(arrays, "pooled_"), _starting(arrays, "own_")
    own = [_starting(arrays, f"own{setting}_") for setting in range(int(arrays["settings"][0]))]
    stacked = {name: np.stack([part[name] for part in own]) for name in ("offset", "shared", "coefficient", "target")}
    scalars = pooled["scalars"].copy()
    scalars[3] = arrays["network_weight"] if "network_weight" in arrays else arrays["gate"]
    slope = float(pooled["slopes"][0] if "slopes" in pooled else scalars[2])
    similar = {name: (pooled | own_similar)[f"similar_{name}"] for name in CSR_ARRAYS}
    within = {name: stacked[name] for name in ("offset", "shared", "coefficient")} | similar
    return {
        **pooled,
        **{name: array for name, array in arrays.items() if name.startswith((_SD, "measured_"))},
        **{f"{_WITHIN}{name}": array for name, array in within.items()},
        f"{_WITHIN}scalars": own[0]["scalars"][:2],
        "scalars": scalars,
        "settings": np.append(arrays["settings"], 0),
        "mean": np.zeros_like(stacked["target"]),
        "target": stacked["target"] * slope / max(slope, 1.0),
    }
