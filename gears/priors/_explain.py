"""Which training conditions a prediction of the prior is made of, and with which weights.

The prediction of a condition u for gene g is linear in the changes y_g (C,) that the prior was fitted to::

    prediction = level + k B_g y_g,    B_g = sum_m share_mg s_m P_mg,    P_mg = (s_m K + noise_g N)^-1

with k (C,) the covariance of u with the training conditions, and P around the level (:mod:`gears.priors._regression`).
k is a sum over what conditions have in common: perturbed genes (``own``), genes that a similarity holds for alike (one
term each), and the number of genes (``shared``). So ``k B`` are the weights of the measured changes, term by term. A
term that does not link two conditions (k_c = 0) can still give c a weight, as what c says of the level of all: such
weights are counted with ``shared``.

Without condition c, at the same variances and shares of the strengths, the prediction is

    prediction - sum_m share_mg r_mc (P_mg y_g)_c / (P_mg)_cc,    r_m = d prediction / d y_g at strength m

In the eigenvectors V of N^-1/2 K N^-1/2 all strengths of all genes need one product of (R, K) and (K, G) for R
conditions. The plain version inverts dense matrices and fits again (``tests/priors/test_decomposition.py``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from gears.files._mapped import compressed_arrays, compressed_of
from gears.priors._kernels import NAMES, AdditiveCovariance, settings_of, sizes_of, specific_covariance
from gears.priors._posterior import ConditionCovariance
from gears.priors._regression import STRENGTHS, Spectrum

Sets = Sequence[Sequence[int]]
OWN = NAMES[2]
_TABLES = ("rest", "noise_C", "noise_G", "n_C", "share", "weights")


@dataclass(frozen=True)
class Functional:
    """A linear function of the changes of the C training conditions: ``direct y + query B y``."""

    query_C: np.ndarray
    direct_C: np.ndarray

    def times(self, factor: float) -> Functional:
        return Functional(factor * self.query_C, factor * self.direct_C)

    def plus(self, other: Functional) -> Functional:
        return Functional(self.query_C + other.query_C, self.direct_C + other.direct_C)


@dataclass(frozen=True, eq=False)
class Basis:
    """What the prior's regression was made from: enough to say which conditions a prediction rests on."""

    covariance: ConditionCovariance  # of any condition with the training conditions
    sets: tuple[tuple[int, ...], ...]  # perturbation-graph nodes of each of the C conditions
    rest_CG: np.ndarray  # their changes without those of perturbed genes, by the factor of their setting, float32
    # noise_C, noise_G: the sampling variance of each condition and gene is the product of these
    noise_C: np.ndarray
    noise_G: np.ndarray
    n_C: np.ndarray  # cells of each condition
    share_MG: np.ndarray  # posterior weight of each strength for each gene
    # names, weight_2K: similarities of genes that have a weight, the largest first, and their variances over all
    # conditions and within settings
    names: tuple[str, ...]
    weight_2K: np.ndarray
    tables: Mapping[str, sparse.csr_matrix]
    """Similarity of all nodes to the trained ones by each of `names` but the first, which is the rest of their mean."""
    is_level_halved: bool = False
    """Whether half of the level counts once for each perturbed gene (:meth:`gears.priors._prior.Effects.of`)."""

    def without(self, row: int) -> Basis:
        """The same without a condition."""
        kept = np.arange(len(self.sets)) != row
        return dataclasses.replace(
            self, sets=tuple(one for one, is_kept in zip(self.sets, kept.tolist(), strict=True) if is_kept),
            rest_CG=self.rest_CG[kept], noise_C=self.noise_C[kept], n_C=self.n_C[kept],
        )  # fmt: skip

    @cached_property
    def spectrum(self) -> Spectrum:
        """Eigenvalues of the covariance of the training conditions."""
        covariance, setting_C = self.covariance, settings_of(self.sets, self.covariance.n_kinds)
        parts = [(covariance.overall, np.ones((len(self.sets),) * 2, dtype=bool))]
        if covariance.within is not None:
            parts.append((covariance.within, setting_C[:, None] == setting_C))
        signal_CC = sum(
            same_CC * specific_covariance(self.sets, part.genes, part.shared, part.own, part.similar)
            for part, same_CC in parts
        )
        signal_CC[np.diag_indices(len(signal_CC))] += covariance.nugget + covariance.multiple * (
            sizes_of(self.sets) > 1
        )
        return Spectrum.of(signal_CC, self.noise_C, covariance.level or None)

    @cached_property
    def _along_KG(self) -> np.ndarray:
        """Changes along the eigenvectors."""
        return np.asarray((self.spectrum.vectors_CK / self.spectrum.root_C[:, None]).T @ self.rest_CG)

    @cached_property
    def _gain_KG(self) -> np.ndarray:
        """B of every gene along the eigenvectors."""
        gain_KG = np.zeros((len(self.spectrum.values_K), len(self.noise_G)))
        for strength, share_G in zip(STRENGTHS, self.share_MG, strict=True):
            genes = np.flatnonzero(share_G)
            variance_KA = strength * self.spectrum.values_K[:, None] + self.noise_G[genes]
            gain_KG[:, genes] += strength * share_G[genes] / variance_KA
        return gain_KG

    @property
    def mean_CG(self) -> np.ndarray:
        """Mean change of the conditions of each one's setting."""
        setting_C = settings_of(self.sets, self.covariance.n_kinds)
        mean_CG = np.empty(self.rest_CG.shape)
        for setting in np.unique(setting_C).tolist():
            mean_CG[setting_C == setting] = self.rest_CG[setting_C == setting].mean(axis=0, dtype=np.float64)
        return mean_CG

    @property
    def level(self) -> Functional:
        """The level of all conditions."""
        spectrum, none_C = self.spectrum, np.zeros(len(self.sets))
        if spectrum.level is not None:
            return Functional(np.full(len(self.sets), spectrum.level), none_C)
        weight_C = 1 / spectrum.root_C**2
        return Functional(-spectrum.weighed_C / weight_C.sum(), weight_C / weight_C.sum())

    def links(self, sets: Sets) -> dict[str, np.ndarray]:
        """Covariance of conditions with the training conditions by what they have in common, (U, C) each.

        Their genes (``own``), alike genes by the name of the similarity, and the number of genes (``shared``).
        """
        covariance = self.covariance
        total = self._links(covariance.overall, self.weight_2K[0], sets)
        if covariance.within is not None:
            n_kinds = covariance.n_kinds
            setting_U, setting_C = settings_of(sets, n_kinds), settings_of(self.sets, n_kinds)
            taken_UC = covariance.carried_SS[setting_U][:, setting_C]
            for name, part_UC in self._links(covariance.within, self.weight_2K[1], sets).items():
                total[name] += taken_UC * part_UC
        return total

    def _links(self, part: AdditiveCovariance, weight_K: np.ndarray, sets: Sets) -> dict[str, np.ndarray]:
        genes = part.genes
        held_UT, member_TC = genes.membership(sets), genes.members(self.sets).T
        same_T = np.asarray(genes.similar_PT[genes.trained_T].diagonal())
        alike_UT = {self.names[0]: part.similar * (genes.similarity(sets) - same_T * held_UT)}
        for name, weight in zip(self.names[1:], weight_K[1:].tolist(), strict=True):
            other = dataclasses.replace(genes, similar_PT=self.tables[name])
            itself_T = np.asarray(self.tables[name][genes.trained_T].diagonal())
            alike_UT[name] = weight * (other.similarity(sets) - itself_T * held_UT)
            alike_UT[self.names[0]] -= alike_UT[name]
        by_name = {OWN: (part.own + part.similar * same_T) * held_UT, **alike_UT}
        links = {name: np.asarray(link_UT @ member_TC) for name, link_UT in by_name.items()}
        for name, link_UC in links.items():  # what is left of a difference is rounding
            scale = np.abs(by_name[name]).max(initial=0.0) or part.similar or 1.0
            link_UC[np.abs(link_UC) < 1e-9 * scale] = 0.0
        return links | {"shared": part.shared * np.outer(sizes_of(sets), sizes_of(self.sets))}

    def value(self, function: Functional) -> np.ndarray:
        """Value of a function of the changes for every gene, (G,)."""
        along_K = (function.query_C / self.spectrum.root_C) @ self.spectrum.vectors_CK
        value_G = along_K @ (self._gain_KG * self._along_KG)
        return value_G + function.direct_C @ self.rest_CG if function.direct_C.any() else value_G

    def weights(self, query_C: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Weights of some conditions' changes in ``query B y`` for every gene, (R, G)."""
        spectrum = self.spectrum
        along_K = (query_C / spectrum.root_C) @ spectrum.vectors_CK
        return np.asarray((spectrum.vectors_CK[rows] * along_K / spectrum.root_C[rows, None]) @ self._gain_KG)

    def removed(self, function: Functional, rows: np.ndarray) -> np.ndarray:
        """By how much a function changes where each of some conditions is not there, (R, G)."""
        spectrum = self.spectrum
        vectors_RK, root_R1 = spectrum.vectors_CK[rows], spectrum.root_C[rows, None]
        along_K1 = ((function.query_C / spectrum.root_C) @ spectrum.vectors_CK)[:, None]
        total_RG = np.zeros((len(rows), len(self.noise_G)))
        for strength, share_G in zip(STRENGTHS, self.share_MG, strict=True):
            genes = np.flatnonzero(share_G)
            precision_KA = 1 / (strength * spectrum.values_K[:, None] + self.noise_G[genes])
            slope_RA = strength * (vectors_RK @ (along_K1 * precision_KA)) / root_R1 + function.direct_C[rows, None]
            solved_RA = vectors_RK @ (self._along_KG[:, genes] * precision_KA) * root_R1
            total_RG[:, genes] -= share_G[genes] * slope_RA * solved_RA / (vectors_RK**2 @ precision_KA)
        return total_RG

    def typical_weights(self, sets: Sets, excluded_U: np.ndarray) -> np.ndarray:
        """Weights of the training conditions for a gene of average signal and noise, (U, C).

        Of those that share genes or alike genes with a condition; `excluded_U` are rows that are held out of each
        prediction, -1 for none.
        """
        spectrum, weight_UC = self.spectrum, np.zeros((len(sets), len(self.sets)))
        scaled_CK = spectrum.vectors_CK / spectrum.root_C[:, None]
        gain_CC = scaled_CK / (spectrum.values_K + float(self.noise_G.mean())) @ scaled_CK.T
        out = np.flatnonzero(excluded_U >= 0)
        for name, link_UC in self.links(sets).items():
            if name == "shared":
                continue
            part_UC = link_UC @ gain_CC
            rows = excluded_U[out]
            part_UC[out] -= (part_UC[out, rows] / gain_CC[rows, rows])[:, None] * gain_CC[rows]
            weight_UC += np.where(link_UC != 0, part_UC, 0.0)
        weight_UC[out, excluded_U[out]] = 0.0
        return weight_UC

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything but covariance and sets, as arrays for a file."""
        tables = (
            self.rest_CG.astype(np.float32), self.noise_C, self.noise_G, self.n_C, self.share_MG, self.weight_2K,
        )  # fmt: skip
        arrays = dict(zip(_TABLES, tables, strict=True)) | {
            "names": np.array(self.names), "halved": np.array(self.is_level_halved),
        }  # fmt: skip
        for number, name in enumerate(self.names[1:]):
            arrays |= compressed_arrays(f"table{number}_", self.tables[name].astype(np.float32))
        return arrays

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, np.ndarray], covariance: ConditionCovariance, sets: tuple[tuple[int, ...], ...]
    ) -> Basis:
        """What :meth:`arrays` describes; ValueError for arrays that do not fit together."""
        rest_CG, noise_C, noise_G, n_C, share_MG, weight_2K = (arrays[name] for name in _TABLES)
        shapes = {rest_CG.shape, (len(noise_C), len(noise_G)), (len(n_C), share_MG.shape[1])}
        if shapes != {(len(sets), len(noise_G))} or len(share_MG) != len(STRENGTHS):
            msg = f"the prior's tables of measured changes disagree: {sorted(shapes)}, {len(sets)} conditions"
            raise ValueError(msg)
        names = tuple(map(str, arrays["names"].tolist()))
        shape = covariance.overall.genes.similar_PT.shape
        tables = {
            name: compressed_of("the prior's table of similarities", arrays, f"table{number}_", shape)
            for number, name in enumerate(names[1:])
        }
        halved = bool(arrays["halved"])
        return cls(covariance, sets, rest_CG, noise_C, noise_G, n_C, share_MG, names, weight_2K, tables, halved)
