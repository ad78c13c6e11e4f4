"""Standard deviation of the predicted mean change of every gene under any condition.

::

    sd_pg^2 = v_p (size_p / typical size)^(2 b) ((1 - w) s_g + w s c_pg^2 / mean_g c_pg^2) + (t own_pg)^2

with v_p the posterior variance of the condition (:mod:`gears.priors._posterior`), size_p the effect size that is
expected of it (geometric mean of that of :mod:`gears.priors._magnitude` and that of the predicted change c_pg), s_g
the scale of each gene and s their mean. own_pg is the predicted change of a perturbed gene itself; c_pg is without it.

Everything but v_p is found by :mod:`gears.priors._calibration`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gears.core._intervals import LEVELS
from gears.priors._kernels import AdditiveCovariance, GeneSimilarity, Omitted, settings_of, sizes_of
from gears.priors._magnitude import Tendency, predicted_log_size
from gears.priors._measured import Measured
from gears.priors._posterior import ConditionCovariance, Posterior
from gears.priors.true_change import TrueChange


@dataclass(frozen=True)
class Uncertainty:
    """Standard deviation of the mean changes that a prior predicts; the module has the formula."""

    # covariance, posterior: prior covariance, and what the training conditions explain of it; None for a prior that is
    # the mean alone
    covariance: ConditionCovariance
    posterior: Posterior | None
    gene_G: np.ndarray  # scale of each gene, s_g
    share: float  # share of the variance that lies where the predicted change does, w
    size: Tendency  # process of log effect sizes
    exponents: np.ndarray
    """B, typical log size, the range of log sizes that training conditions have, and a factor on the variance: one row
    for conditions whose genes were all perturbed in training, one for others, (2, 5); (2, 4) in files of earlier
    versions, whose scales hold the factor."""
    least: float  # smallest mean squared change
    target: float  # error of the predicted change of a perturbed gene itself as a share of it, t
    true_change: TrueChange | None = None
    """Distribution of the true change, given the predicted one and its standard deviation; None in files of earlier
    versions."""
    control_G: np.ndarray | None = None
    """Sampling variance of the control mean, of each setting (S, G) where there are several; None in files of earlier
    versions."""
    held_level: float = 1.0
    """Share of the mean measured change that predictions hold. The error of the control mean is part of that change:
    what predictions hold of it is an error of changes, the rest one of means.
    With several settings :meth:`Posterior.held` says it."""
    widths: np.ndarray = field(default_factory=lambda: np.ones((2, len(LEVELS))))
    """Width of the interval of each of :data:`gears.core._intervals.LEVELS` beside a Gaussian's, rows as
    `exponents`, (2, L); 1 in files of earlier versions."""

    def widths_of(self, sets: Sequence[Sequence[int]], measured: Measured | None = None) -> np.ndarray:
        """Row of `widths` of each condition, (U, L); errors of measured ones are Gaussian."""
        width_UL = self.widths[unseen(sets, self.covariance.overall.genes).astype(np.int64)]
        if measured is not None:
            width_UL[measured.rows(sets) >= 0] = 1.0
        return np.asarray(width_UL)

    setting_S: np.ndarray | None = None
    """Factor on the variance of each setting; None for 1, as in files of earlier versions."""

    def __call__(
        self, sets: Sequence[Sequence[int]], change_UG: np.ndarray, own_UG: np.ndarray, measured: Measured | None = None
    ) -> np.ndarray:
        """Standard deviations, (U, G).

        `sets`: perturbation-graph nodes of each condition; 0 for the control, which has none.
        `change_UG`, `own_UG`: predicted changes, and the part of them that is the change of perturbed genes themselves.
        `measured`: training conditions, which are known from the others and from their own cells.
        """
        variance_U = self.variance(sets, change_UG, own_UG)
        if measured is not None:
            row_U = measured.rows(sets)
            variance_U = np.where(row_U < 0, variance_U, measured.variance_C[row_U])
        square_UG = self.spread(sets, change_UG, own_UG, variance_U) ** 2
        if measured is not None:
            square_UG = measured.known_better(row_U, square_UG)
            if self.covariance.within is not None and (unmeasured_UG := measured.unmeasured(sets)) is not None:
                # nothing shows the level of a gene in a setting that does not measure it
                level_G = self.covariance.within.shared * self.gene_G
                square_UG += np.outer(sizes_of(sets) ** 2, level_G) * unmeasured_UG
        if self.control_G is not None:
            of_control = (1 - self._held(sets, measured)) ** 2 * self._control(sets)
            square_UG += np.where(sizes_of(sets)[:, None] > 0, of_control, 0.0)
        return np.sqrt(square_UG, out=square_UG)

    def control_sd(self, sets: Sequence[Sequence[int]], measured: Measured | None = None) -> np.ndarray | None:
        """Standard error of the control mean, as far as predicted changes hold it; None where it is not known.

        (G,), or for settings with control cells of their own (U, G).
        """
        if self.control_G is None:
            return None
        return np.asarray(self._held(sets, measured) * np.sqrt(self._control(sets)))

    def _held(self, sets: Sequence[Sequence[int]], measured: Measured | None) -> np.ndarray | float:
        """Share of the error of the control mean that predicted changes hold, of several settings (U, 1).

        A measured condition holds all of it as far as it is predicted as measured.
        """
        if self.posterior is None or self.posterior.held_RK is None:
            return self.held_level
        held_U = self.posterior.held(self.covariance, sets)
        if measured is not None:
            held_U += (1 - held_U) * measured.shares(sets, self.gene_G.mean())
        return held_U[:, None]

    def _control(self, sets: Sequence[Sequence[int]]) -> np.ndarray:
        assert self.control_G is not None
        if self.control_G.ndim == 1:
            return self.control_G
        return self.control_G[settings_of(sets, self.covariance.n_kinds)]

    def variance(
        self,
        sets: Sequence[Sequence[int]],
        change_UG: np.ndarray,
        own_UG: np.ndarray,
        variance_U: np.ndarray | None = None,
        unseen_U: np.ndarray | None = None,
    ) -> np.ndarray:
        """Variance of each condition for an average gene, by its expected size, (U,).

        `variance_U` is that by the covariance alone, and `unseen_U` says whether a gene is new; by default those of
        conditions that were not measured.
        """
        if variance_U is None:
            variance_U = condition_variance(self.covariance, self.posterior, sets)
        if unseen_U is None:
            unseen_U = unseen(sets, self.covariance.overall.genes)
        genes, mean_U = self.covariance.overall.genes, self._mean_square(change_UG, own_UG)
        expected_U = expected_log_size(predicted_log_size(self.size, sets, genes), mean_U)
        if self.setting_S is not None:
            variance_U = variance_U * self.setting_S[settings_of(sets, self.covariance.n_kinds)]
        return variance_U * size_factor(self.exponents, expected_U, unseen_U)

    def spread(
        self, sets: Sequence[Sequence[int]], change_UG: np.ndarray, own_UG: np.ndarray, variance_U: np.ndarray
    ) -> np.ndarray:
        """Standard deviation of every gene, (U, G), from the variance of each condition for an average one, (U,)."""
        square_UG = (change_UG - own_UG) ** 2
        square_UG *= (self.share * self.gene_G.mean() / self._mean_square(change_UG, own_UG))[:, None]
        square_UG += (1 - self.share) * self.gene_G
        square_UG *= variance_U[:, None]
        square_UG += (self.target * own_UG) ** 2
        square_UG[sizes_of(sets) == 0] = 0.0
        return np.sqrt(square_UG, out=square_UG)

    def still(self, change_UG: np.ndarray) -> np.ndarray:
        """Share of each variance that does not follow the predicted change, (U, G), without perturbed genes' own."""
        still_G = (1 - self.share) * self.gene_G
        mean_U1 = np.maximum((change_UG**2).mean(axis=1, keepdims=True), self.least)
        return np.asarray(still_G / (still_G + self.share * self.gene_G.mean() * change_UG**2 / mean_U1))

    def _mean_square(self, change_UG: np.ndarray, own_UG: np.ndarray) -> np.ndarray:
        return np.maximum(((change_UG - own_UG) ** 2).mean(axis=1), self.least)

    def report(self) -> dict[str, Any]:
        """What was chosen, in plain values."""
        return {
            "exponents_of_size": self.exponents[:, 0].tolist(),
            "share_where_change_is": self.share,
            "share_of_target": self.target,
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything but the similarities of genes, as arrays for a file."""
        covariance, within = self.covariance, self.covariance.within
        parts = [covariance.overall, *([] if within is None else [within])]
        arrays = {
            "covariance": np.array([[part.shared, part.own, part.similar] for part in parts]),
            "unexplained": np.array([covariance.level, covariance.nugget, covariance.multiple]),
            "used": covariance.used_R,
            "carried": covariance.carried_SS,
            "gene": self.gene_G,
            "scalars": np.array(
                [self.share, self.least, self.target, self.size.offset, self.size.own, self.size.similar]
            ),
            "size": self.size.coefficient_T,
            "exponents": self.exponents,
            "widths": self.widths,
        }
        if (omitted := covariance.overall.omitted) is not None:
            arrays |= {"omitted": omitted.variance_T, "count": omitted.count_T}
        if covariance.scale_S is not None:
            arrays["scale"] = covariance.scale_S
        if self.true_change is not None:
            arrays |= self.true_change.arrays()
        if self.control_G is not None:
            arrays |= {"control": self.control_G, "held_level": np.array(self.held_level)}
        if self.setting_S is not None:
            arrays["setting"] = self.setting_S
        return arrays if self.posterior is None else arrays | self.posterior.arrays()

    @classmethod
    def from_arrays(
        cls,
        arrays: Mapping[str, np.ndarray],
        genes: GeneSimilarity,
        within: GeneSimilarity | None = None,
        n_kinds: int = 1,
    ) -> Uncertainty:
        """What :meth:`arrays` describes, with the similarities of genes over all conditions and within settings."""

        def part(number: int, similarity: GeneSimilarity) -> AdditiveCovariance:
            shared, own, similar = map(float, arrays["covariance"][number])
            return AdditiveCovariance(similarity, shared, own, similar)

        overall = part(0, genes)
        if "omitted" in arrays:
            overall = dataclasses.replace(overall, omitted=Omitted(arrays["omitted"], arrays["count"]))
        level, nugget, multiple = map(float, arrays["unexplained"])
        covariance = ConditionCovariance(
            overall,
            level,
            nugget,
            multiple,
            arrays["used"],
            None if within is None else part(1, within),
            arrays["carried"],
            n_kinds,
            arrays.get("scale"),
        )
        share, least, target, offset, own, similar = map(float, arrays["scalars"])
        size = Tendency(offset, own, similar, arrays["size"])
        posterior = Posterior.from_arrays(arrays) if "factor" in arrays else None
        n_columns, n_trained = len(covariance.used_R), len(genes.trained_T)
        if len(size.coefficient_T) != n_trained or (posterior and posterior.factor_FR.shape[1] != n_columns):
            msg = f"the tables of the prior's sd disagree: {n_columns} columns in use, {n_trained} trained genes"
            raise ValueError(msg)
        true_change = TrueChange.from_arrays(arrays) if "true_groups" in arrays else None
        return cls(
            covariance,
            posterior,
            arrays["gene"],
            share,
            size,
            arrays["exponents"],
            least,
            target,
            true_change,
            arrays.get("control"),
            float(arrays.get("held_level", 1.0)),
            arrays.get("widths", np.ones((2, len(LEVELS)))),
            arrays.get("setting"),
        )


def condition_variance(
    covariance: ConditionCovariance, posterior: Posterior | None, sets: Sequence[Sequence[int]]
) -> np.ndarray:
    """Posterior variance of each condition for an average gene, (U,), with what no other condition predicts."""
    explained_U = covariance.variance(sets) if posterior is None else posterior(covariance, sets)
    return explained_U + covariance.unexplained(sets)


def expected_log_size(predicted_U: np.ndarray, mean_square_U: np.ndarray) -> np.ndarray:
    """Log effect size that is expected, (U,): the mean of that by the genes and that of the predicted change."""
    return 0.5 * (predicted_U + 0.5 * np.log(mean_square_U))


def size_factor(exponents: np.ndarray, log_size_U: np.ndarray, unseen_U: np.ndarray) -> np.ndarray:
    """Factor on the variance of each condition by its expected size, (U,), which stays within the range of training."""
    exponent_U, typical_U, low_U, high_U, *factor_U = exponents[unseen_U.astype(np.int64)].T
    by_size_U = np.exp(2 * exponent_U * (np.clip(log_size_U, low_U, high_U) - typical_U))
    return np.asarray(by_size_U * factor_U[0] if factor_U else by_size_U)


def unseen(sets: Sequence[Sequence[int]], genes: GeneSimilarity) -> np.ndarray:
    """Whether a gene of each set was not perturbed in training, (U,) bool."""
    return np.asarray(genes.members(sets).getnnz(axis=1) < sizes_of(sets))
