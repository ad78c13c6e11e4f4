"""Posterior variance of the change of any condition, for a gene of average signal and noise.

With A = K + N the covariance of the C training conditions (signal and noise), P its inverse around a free level, and
k the covariance of a new condition with the training conditions, universal kriging gives

    variance = k_new,new - k' P k + a - 2 b' k,    b = a A^-1 1,    a = 1 / (1' A^-1 1)

(with a shrunk level P is the inverse of A itself, and a = b = 0). Covariances are linear in the genes, k = Z u with Z
(C, R) the genes of the training conditions and u (R,) the similarity of the new condition to them. So only Z' P Z
(R, R) and Z' b (R,) are kept. In the eigenvectors of :class:`gears.priors._regression.Spectrum`, P = N^-1/2 V diag(1 /
variance) V' N^-1/2, and Z' P Z is a product of a factor with itself. Where features replace the covariance, the
directions orthogonal to V have one variance, and Z' P Z is a sparse matrix minus such a product.
The plain version inverts the dense matrices (``tests/priors/test_posterior.py``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import linalg, sparse

from gears.conditions import contexts_of
from gears.files._mapped import compressed_arrays, compressed_of
from gears.priors._kernels import AdditiveCovariance, settings_of, sizes_of

if TYPE_CHECKING:
    from gears.priors._evidence import EvidenceWeights
    from gears.priors._regression import Spectrum


@dataclass(frozen=True)
class ConditionCovariance:
    """Covariance of any condition with the training conditions, by columns that these are members of."""

    overall: AdditiveCovariance  # covariance over all conditions
    level: float  # variance of what all conditions share, where it is shrunk; 0 where the level is free
    # nugget, multiple: variance of every condition alone, and in addition of those of several genes
    nugget: float
    multiple: float
    used_R: np.ndarray
    """Columns in use among all columns: genes and number of genes over all conditions, the level, and genes and number
    of genes of each setting."""
    within: AdditiveCovariance | None = None
    """Covariance within settings, or None for a screen with one setting."""
    carried_SS: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    """Which settings' own part a condition of each setting takes, and how much of it: 1 on the diagonal, except for
    settings without training conditions, (S, S)."""
    n_kinds: int = 1  # number of perturbation types; settings are numbered ``context x n_kinds + kind``
    scale_S: np.ndarray | None = None
    """Factor of each setting on its changes; None for 1, as in files of earlier versions."""

    def _scale(self, sets: Sequence[Sequence[int]]) -> np.ndarray | float:
        return 1.0 if self.scale_S is None else self.scale_S[settings_of(sets, self.n_kinds)]

    @classmethod
    def of(
        cls,
        sets: Sequence[Sequence[int]],
        overall: AdditiveCovariance,
        level: float,
        unexplained: EvidenceWeights,
        **more: Any,
    ) -> tuple[ConditionCovariance, sparse.csr_matrix]:
        """The covariance with training conditions, and which columns these are members of, CSR (C, R)."""
        every = cls(overall, level, unexplained.nugget, unexplained.multiple, np.empty(0, dtype=np.int64), **more)
        member_CR = every._members(sets)
        used_R = np.flatnonzero(member_CR.getnnz(axis=0))
        return dataclasses.replace(every, used_R=used_R), sparse.csr_matrix(member_CR[:, used_R])

    def _members(self, sets: Sequence[Sequence[int]]) -> sparse.csr_matrix:
        blocks = [self.overall.members(sets), np.ones((len(sets), 1))]
        if self.within is not None:
            member_CT, setting_C = self.within.members(sets), settings_of(sets, self.n_kinds)
            blocks += [
                sparse.diags((setting_C == setting).astype(float)) @ member_CT
                for setting in range(len(self.carried_SS))
            ]
        return sparse.csr_matrix(sparse.hstack(blocks, format="csr"))

    def columns(self, sets: Sequence[Sequence[int]]) -> np.ndarray:
        """Covariance of sets with each column, (U, R)."""
        found = list(self.blocks(sets))
        if self.within is None:
            return found[0][2]
        column_UR = np.zeros((len(sets), len(self.used_R)))
        for rows, at, part in found:
            column_UR[np.ix_(rows, at)] = part
        return column_UR

    def blocks(self, sets: Sequence[Sequence[int]]) -> Iterator[tuple[Any, Any, np.ndarray]]:
        """Rows of one setting, the columns that are not 0 there, and :meth:`columns` of these, block by block."""
        overall_UT = self.overall.columns(sets)
        width = overall_UT.shape[1]
        bounds = width + 1 + width * np.arange(len(self.carried_SS) + 1)
        starts = np.searchsorted(self.used_R, bounds)
        overall = self.used_R[: starts[0]]
        level_U1 = np.full((len(sets), 1), self.level)
        if self.within is None:
            yield slice(None), slice(None), np.hstack([overall_UT, level_U1])[:, overall]
            return
        setting_U = settings_of(sets, self.n_kinds)
        column_UT = self.within.columns(sets)
        for setting in np.unique(setting_U).tolist():
            rows = np.flatnonzero(setting_U == setting)
            parts, at = [np.hstack([overall_UT[rows], level_U1[rows]])[:, overall]], [np.arange(starts[0])]
            for other in np.flatnonzero(self.carried_SS[setting]).tolist():
                at.append(np.arange(starts[other], starts[other + 1]))
                used = self.used_R[at[-1]] - bounds[other]
                parts.append(column_UT[np.ix_(rows, used)] * self.carried_SS[setting, other])
            part = np.hstack(parts)
            yield rows, np.concatenate(at), part if self.scale_S is None else part * self.scale_S[setting]

    def variance(self, sets: Sequence[Sequence[int]]) -> np.ndarray:
        """Variance of the part of each condition that the columns describe, (U,)."""
        variance_U = self.overall.variance(sets) + self.level
        if self.within is not None:
            variance_U = self._scale(sets) ** 2 * (variance_U + self.within.variance(sets))
        return variance_U

    def unexplained(self, sets: Sequence[Sequence[int]]) -> np.ndarray:
        """Variance of each condition alone, (U,)."""
        return self._scale(sets) ** 2 * (self.nugget + self.multiple * (sizes_of(sets) > 1))


@dataclass(frozen=True)
class Posterior:
    """How well the training conditions predict the change of any other condition."""

    factor_FR: np.ndarray  # factor of the explained variance, (F, R) float32
    direct_RR: sparse.csr_matrix | None
    """Where the covariance is made of features: the sparse part of the explained variance, from which that of the
    factor is subtracted; else None."""
    level_R: np.ndarray  # covariance of a free level with the change that similarity 1 to each column adds
    level: float  # variance of a free level, 0 where the level is shrunk
    held_RK: np.ndarray | None = None
    """What similarity 1 to each column takes of the error of each context's control mean; None with one setting, and in
    files of earlier versions."""

    @classmethod
    def of(
        cls, spectrum: Spectrum, member_CR: sparse.csr_matrix, typical: float, error_CK: np.ndarray | None = None
    ) -> Posterior:
        """From the spectrum of the training conditions.

        `typical`: sampling variance of an average gene.
        `error_CK`: what an error of the control mean of each context is in the change of each condition.
        """
        noise = typical * spectrum.noise
        white_CR = sparse.csr_matrix(sparse.diags(1 / spectrum.root_C) @ member_CR)
        along_KR = np.asarray((white_CR.T @ spectrum.vectors_CK).T)
        variance_K = spectrum.values_K + noise
        direct_RR = None
        if spectrum.n_rest:
            rest = spectrum.rest + noise
            mirror_R = white_CR.T @ (1 / spectrum.root_C) / np.linalg.norm(1 / spectrum.root_C)
            direct_RR = sparse.csr_matrix(white_CR.T @ white_CR / rest)
            factor_FR = np.vstack([np.sqrt(1 / rest - 1 / variance_K)[:, None] * along_KR, mirror_R / np.sqrt(rest)])
        else:
            factor_FR = along_KR / np.sqrt(variance_K)[:, None]
            if len(factor_FR) > factor_FR.shape[1]:
                factor_FR = linalg.qr(factor_FR, mode="r", check_finite=False)[0][: factor_FR.shape[1]]
        level, level_R = 0.0, np.zeros(member_CR.shape[1])
        if spectrum.level is None:
            level, level_C = _free_level(spectrum, variance_K, typical)
            level_R = np.asarray(member_CR.T @ level_C)
        held_RK = None if error_CK is None else np.asarray(member_CR.T @ spectrum.solved(error_CK, noise))
        return cls(factor_FR.astype(np.float32), direct_RR, level_R, level, held_RK)

    def __call__(self, covariance: ConditionCovariance, sets: Sequence[Sequence[int]]) -> np.ndarray:
        """Posterior variance of conditions, (U,), without what no other condition predicts."""
        variance_U = covariance.variance(sets) + self.level
        for rows, at, similar_NR in covariance.blocks(sets):
            explained_N = ((similar_NR @ self.factor_FR[:, at].T) ** 2).sum(axis=1)
            if self.direct_RR is not None:
                explained_N = ((similar_NR @ self.direct_RR[at][:, at]) * similar_NR).sum(axis=1) - explained_N
            variance_U[rows] = variance_U[rows] - 2 * similar_NR @ self.level_R[at] - explained_N
        return np.maximum(variance_U, 0.0)

    def held(self, covariance: ConditionCovariance, sets: Sequence[Sequence[int]]) -> np.ndarray:
        """Share of the error of its context's control mean that the prediction of each condition holds, (U,)."""
        assert self.held_RK is not None
        held_U, context_U = np.zeros(len(sets)), contexts_of(sets)
        for rows, at, similar_NR in covariance.blocks(sets):
            if (context := context_U[rows[0]]) < self.held_RK.shape[1]:
                held_U[rows] = similar_NR @ self.held_RK[at, context]
        return np.clip(held_U, 0.0, 1.0)

    def arrays(self) -> dict[str, np.ndarray]:
        arrays = {"factor": self.factor_FR, "level_column": self.level_R, "level": np.array(self.level)}
        if self.held_RK is not None:
            arrays["held"] = self.held_RK
        if self.direct_RR is not None:
            arrays |= compressed_arrays("direct_", self.direct_RR)
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Posterior:
        factor_FR, direct_RR = arrays["factor"], None
        if "direct_data" in arrays:
            n_columns = factor_FR.shape[1]
            what = "the prior's table of explained variances"
            direct_RR = compressed_of(what, arrays, "direct_", (n_columns, n_columns))
        return cls(factor_FR, direct_RR, arrays["level_column"], float(arrays["level"]), arrays.get("held"))


def left_out_variance(spectrum: Spectrum, noise_C: np.ndarray, typical: float) -> np.ndarray:
    """Posterior variance of each training condition given the others, (C,), without its sampling noise."""
    noise = typical * spectrum.noise
    precision_C = spectrum.vectors_CK**2 @ (1 / (spectrum.values_K + noise))
    if spectrum.n_rest:
        precision_C += spectrum.across_C / (spectrum.rest + noise)
    return np.asarray(spectrum.root_C**2 / precision_C - typical * noise_C)


def _free_level(spectrum: Spectrum, variance_K: np.ndarray, typical: float) -> tuple[float, np.ndarray]:
    """Variance of the free level, and the weight of each condition in its estimate, (C,)."""
    weight_C = 1 / spectrum.root_C**2
    white_C = spectrum.weighed_C / spectrum.root_C
    along_K = spectrum.vectors_CK.T @ white_C
    solved_C = spectrum.vectors_CK @ (along_K / variance_K)
    if spectrum.n_rest:
        rest_C = spectrum.across(white_C[:, None], along_K[:, None])[:, 0]
        solved_C += rest_C / (spectrum.rest + typical * spectrum.noise)
    level_C = (weight_C - solved_C / spectrum.root_C) / weight_C.sum()
    return float((spectrum.weighed_C @ level_C + typical) / weight_C.sum()), level_C
