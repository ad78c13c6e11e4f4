"""What perturbations do: effects with a GO kernel, along modules or by a network, and interactions of genes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import sparse, stats

from gears.graphs._annotation import GeneAnnotation
from gears.graphs._go import jaccard
from gears.simulate._design import Design, stage_generator
from gears.simulate._options import MASKING, PRODUCTS, SATURATING, SYNERGY_SUPPRESSION, SimulationOptions

# Genes with the same terms have the same row in the kernel, which then has no Cholesky factor.
_JITTER = 1e-6
ADDITIVE, SYNERGY, SUPPRESSION = "additive", "synergy", "suppression"
# s.d. of the random part of an interaction, beside the genes' tendencies (s.d. 1 each).
_INTERACTION_NOISE = 0.5
# A combination in a network is additive if its effect departs from the sum by at most this share of the sum's norm.
DEPARTURE = 0.2
# GO scores of a gene whose products give the effect of a combination.
_N_SCORES = 2


@dataclass(frozen=True)
class SimulatedEffects:
    """Log-fold changes of expected counts, before normalisation to the cell's total."""

    similarity_PP: np.ndarray  # GO Jaccard similarity of the perturbed genes, 1 on the diagonal
    gene_PG: np.ndarray  # effect of each perturbed gene alone
    condition_CG: np.ndarray  # effect of each condition, interactions included
    kinds: tuple[str, ...]
    """(C,) kind of interaction (:mod:`gears.simulate._effects`), "" for conditions with fewer than two genes."""


def make_effects(
    options: SimulationOptions, design: Design, annotation: GeneAnnotation, source: Modules | Network | None = None
) -> SimulatedEffects:
    """Draw the effects of all conditions; `source` is what they follow beside, or instead of, GO."""
    rows = annotation.rows(design.perturbed)
    similarity_PP = jaccard(rows, rows)
    np.fill_diagonal(similarity_PP, 1.0)  # also for genes without terms
    order_P = stage_generator(options.seed, "nulls").permutation(options.n_singles)
    null_P = order_P < round(options.null_share * options.n_singles)  # the perturbations without effect
    if isinstance(source, Network):
        return _network_effects(options, design, source, similarity_PP, null_P)
    kernel_PP = options.go_strength * similarity_PP + (1 - options.go_strength) * np.eye(len(similarity_PP))
    spread_PG = _spread_effects(options, kernel_PP)
    if source is not None:
        spread_PG = source.add_to(options, design, spread_PG)
    target_PG = np.zeros_like(spread_PG)
    column = {gene: i for i, gene in enumerate(design.genes)}
    for row, gene in enumerate(design.perturbed):
        target_PG[row, column[gene]] = options.target_effect
        # with a target effect the target's change is known exactly; without one a low rank stays exact
        if options.target_effect != 0:
            spread_PG[row, column[gene]] = 0
    spread_PG[null_P] = 0
    target_PG[null_P] = 0
    members_CP = design.members_CP
    factor_PP = np.linalg.cholesky(kernel_PP + _JITTER * np.eye(len(kernel_PP)))
    kinds = draw_kinds(options, members_CP, factor_PP, null_P)
    spread_PG, spread_CG = combine_effects(options, kinds, members_CP, spread_PG, factor_PP)
    # the effect on the target itself does not depend on the partner
    return SimulatedEffects(similarity_PP, spread_PG + target_PG, spread_CG + members_CP @ target_PG, kinds)


def _network_effects(
    options: SimulationOptions, design: Design, network: Network, similarity_PP: np.ndarray, null_P: np.ndarray
) -> SimulatedEffects:
    null_genes = {gene for gene, is_null in zip(design.perturbed, null_P, strict=True) if is_null}
    held = [tuple(gene for gene in c.genes if gene not in null_genes) for c in design.conditions]
    condition_CG = network.effects(held, options.target_effect)
    # the control, then the singles in the order of the perturbed genes
    gene_PG = condition_CG[1 : 1 + len(design.perturbed)]
    target_PG = np.array(design.perturbed, dtype=str)[:, None] == np.array(design.genes, dtype=str)
    kinds = kinds_by_departure(condition_CG, design.members_CP, gene_PG, target_PG)
    return SimulatedEffects(similarity_PP, gene_PG, condition_CG, kinds)


def _spread_effects(options: SimulationOptions, kernel_PP: np.ndarray) -> np.ndarray:
    """(P, G) effects on genes other than the target."""
    rng = stage_generator(options.seed, "effects")
    n_perturbed, n_genes = len(kernel_PP), options.genes
    common = options.common_effect
    factor_PP = np.linalg.cholesky((1 - common) * kernel_PP + common + _JITTER * np.eye(n_perturbed))
    strength_P = np.exp(STRENGTH_SD * rng.standard_normal(n_perturbed))
    if options.low_rank is not None:
        rank = options.low_rank
        score_PK = factor_PP @ rng.standard_normal((n_perturbed, rank))
        loading_KG = rng.standard_normal((rank, n_genes)) / math.sqrt(rank)
        responds_G = rng.random(n_genes) < options.effect_share
        return options.effect_size * strength_P[:, None] * (score_PK @ (loading_KG * responds_G))
    latent_PG = factor_PP @ rng.standard_normal((n_perturbed, n_genes))
    return options.effect_size * strength_P[:, None] * soft_threshold(latent_PG, options.effect_share)


def soft_threshold(latent: np.ndarray, share: float) -> np.ndarray:
    """Soft-threshold standard normal values so that `share` of them are not 0, with root mean square 1 of these."""
    if share == 0:
        return np.zeros_like(latent)
    cut = float(stats.norm.isf(share / 2))
    # E[(|z| - cut)^2] over |z| > cut
    square = 1 + cut**2 - cut * stats.norm.pdf(cut) / (share / 2)
    return np.sign(latent) * np.maximum(np.abs(latent) - cut, 0) / math.sqrt(square)


def draw_kinds(
    options: SimulationOptions, members_CP: np.ndarray, factor_PP: np.ndarray, null_P: np.ndarray
) -> tuple[str, ...]:
    """Kind of each condition, by the mean tendency of its genes, which have covariance ``factor @ factor.T``.

    Highest: synergy; lowest: suppression; in between: additive. Masking or saturating: the highest. Additive, too, are
    combinations in which fewer than two genes have an effect.
    """
    rng = stage_generator(options.seed, "interactions")
    tendency_P = factor_PP @ rng.standard_normal(len(factor_PP))
    noise_C = _INTERACTION_NOISE * rng.standard_normal(len(members_CP))
    size_C = members_CP.sum(axis=1)
    kinds = np.array([ADDITIVE if size > 1 else "" for size in size_C], dtype=object)
    several = np.flatnonzero(members_CP[:, ~null_P].sum(axis=1) > 1)
    score = (members_CP[several] @ tendency_P) / np.sqrt(size_C[several]) + noise_C[several]
    order = several[np.argsort(score, kind="stable")]
    n_changed = round(options.interaction_share * len(order))
    if options.interaction_kinds == SYNERGY_SUPPRESSION:
        n_suppressed = n_changed // 2
        kinds[order[:n_suppressed]] = SUPPRESSION
        kinds[order[len(order) - (n_changed - n_suppressed) :]] = SYNERGY
    else:
        kinds[order[len(order) - n_changed :]] = options.interaction_kinds
    return tuple(kinds)


def combine_effects(
    options: SimulationOptions,
    kinds: tuple[str, ...],
    members_CP: np.ndarray,
    effect_PG: np.ndarray,
    factor_PP: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Effects of single genes, (P, G), and of conditions, (C, G), from effects that have not levelled off yet.

    Genes have covariance ``factor @ factor.T`` in what combinations by products follow.
    """
    levels_off = options.interaction_kinds == SATURATING
    single_PG = _levelled(options, effect_PG) if levels_off else effect_PG
    factor = {SYNERGY: 1 + options.interaction_size, SUPPRESSION: 1 / (1 + options.interaction_size)}
    factor_C = np.array([factor.get(kind, 1.0) for kind in kinds])
    combined_CG = factor_C[:, None] * (members_CP @ single_PG)
    norm_P = np.linalg.norm(single_PG, axis=1)
    if PRODUCTS in kinds:
        products = np.array(kinds) == PRODUCTS
        combined_CG[products] = _of_products(options, members_CP[products], factor_PP)
    for row, kind in enumerate(kinds):
        if kind == MASKING:
            members = np.flatnonzero(members_CP[row])
            combined_CG[row] = single_PG[members[norm_P[members].argmax()]]
        elif kind == SATURATING:
            combined_CG[row] = _levelled(options, members_CP[row] @ effect_PG)
    return single_PG, combined_CG


def _of_products(options: SimulationOptions, members_CP: np.ndarray, factor_PP: np.ndarray) -> np.ndarray:
    """Effects of combinations, (C, G): the products of their genes' scores times the scores' loadings on genes."""
    rng = stage_generator(options.seed, "products")
    score_PK = factor_PP @ rng.standard_normal((len(factor_PP), _N_SCORES))
    score_PK -= score_PK.mean(axis=0)  # a gene alone says nothing about the products that it is in
    score_PK /= np.maximum(np.abs(score_PK).mean(axis=0), 1e-12)
    loading_KG = rng.standard_normal((_N_SCORES, options.genes)) / np.sqrt(_N_SCORES)
    responds_G = rng.random(options.genes) < options.effect_share
    product_CK = np.where(members_CP[:, :, None] > 0, score_PK, 1.0).prod(axis=1)
    return options.interaction_size * options.effect_size * product_CK @ (loading_KG * responds_G)


def _levelled(options: SimulationOptions, effect: np.ndarray) -> np.ndarray:
    """Effects that approach ``effect_size / interaction_size``."""
    if options.interaction_size == 0 or options.effect_size == 0:
        return effect
    ceiling = options.effect_size / options.interaction_size
    return ceiling * np.tanh(effect / ceiling)


def kinds_by_departure(
    condition_CG: np.ndarray, members_CP: np.ndarray, gene_PG: np.ndarray, target_PG: np.ndarray
) -> tuple[str, ...]:
    """Kind of each condition from its effect on genes that it does not perturb; `target_PG` marks perturbed genes.

    Additive where it departs from the sum of the single effects by at most :data:`DEPARTURE` of the sum's norm, else
    synergy where its norm is larger, suppression where it is smaller.
    """
    kinds = []
    for effect_G, members_P in zip(condition_CG, members_CP, strict=True):
        other_G = ~target_PG[members_P > 0].any(axis=0)
        sum_G = members_P @ gene_PG * other_G
        size = float(np.linalg.norm(sum_G))
        if members_P.sum() < 2:
            kinds.append("")
        elif np.linalg.norm(effect_G * other_G - sum_G) <= DEPARTURE * size:
            kinds.append(ADDITIVE)
        else:
            kinds.append(SYNERGY if np.linalg.norm(effect_G * other_G) > size else SUPPRESSION)
    return tuple(kinds)


# Exponent of the tail of out-degrees: few hubs, and most genes have about half the mean.
_TAIL = 1.5
# A hub regulates at most this share of the genes.
_MOST_TARGETS = 0.25
_STEPS = 3
# In units of effect_size: regulation below the threshold changes nothing, and none changes more than the ceiling.
_THRESHOLD, _CEILING = 0.4, 2.0
_MODULES_OF_A_GENE = 2
STRENGTH_SD = 0.25
"""S.d. of the log strength of perturbations."""


@dataclass(frozen=True)
class Network:
    """A directed signed network of N genes: the G measured ones, then perturbed genes that are not measured.

    The log changes x of the genes follow ``x <- noise + effect_size respond(x @ weight)``, a few times, where `respond`
    sets small values to 0 and levels off for large ones, and perturbed genes are held at their change.
    """

    genes: tuple[str, ...]  # names of the N genes
    n_measured: int  # G
    weight_NN: sparse.csr_matrix
    """Weights of regulators (rows) on targets (columns), standard normal where there is an edge."""
    cell_sd: float  # s.d. over cells of the noise of each gene's log expression.
    effect_size: float
    """Root mean square log change of a target by unit log change of one regulator, threshold and ceiling apart."""

    @classmethod
    def draw(cls, options: SimulationOptions, design: Design) -> Network:
        """Draw targets and weights; out-degrees have a Pareto tail, cut at a quarter of the genes."""
        rng = stage_generator(options.seed, "network")
        genes = (*design.genes, *sorted(set(design.perturbed) - set(design.genes)))
        n = len(genes)
        tail_N = 1 + rng.pareto(_TAIL, n)
        degree_N = np.rint(options.network_degree * tail_N / tail_N.mean()).astype(np.int64)
        degree_N = np.minimum(degree_N, max(int(_MOST_TARGETS * n), 1))
        # n - 1 candidates each: every gene but itself
        targets = [rng.choice(n - 1, degree, replace=False) for degree in degree_N]
        columns = np.concatenate([target + (target >= row) for row, target in enumerate(targets)])
        weights = rng.standard_normal(len(columns))
        bounds = np.concatenate([[0], np.cumsum(degree_N)])
        weight_NN = sparse.csr_matrix((weights, columns, bounds), shape=(n, n))
        return cls(genes, len(design.genes), weight_NN, options.cell_sd, options.effect_size)

    def cells(self, rng: np.random.Generator, n_cells: int) -> np.ndarray:
        """Log change of each measured gene in `n_cells` cells, (n_cells, G): noise, passed on by the network."""
        noise_BN = self.cell_sd * rng.standard_normal((n_cells, len(self.genes)))
        return self._propagate(noise_BN, np.zeros(noise_BN.shape, dtype=bool))

    def effects(self, perturbed: list[tuple[str, ...]], change: float) -> np.ndarray:
        """Log change of each measured gene where some genes are held at a log change, (C, G)."""
        index = {gene: i for i, gene in enumerate(self.genes)}
        held_CN = np.zeros((len(perturbed), len(self.genes)), dtype=bool)
        for row, genes in enumerate(perturbed):
            held_CN[row, [index[gene] for gene in genes]] = True
        return self._propagate(change * held_CN, held_CN)

    def _propagate(self, outside_BN: np.ndarray, held_BN: np.ndarray) -> np.ndarray:
        change_BN = outside_BN
        for _ in range(_STEPS):
            response_BN = self.effect_size * _respond(change_BN @ self.weight_NN)
            change_BN = np.where(held_BN, outside_BN, outside_BN + response_BN)
        return change_BN[:, : self.n_measured]


def _respond(regulation: np.ndarray) -> np.ndarray:
    passed = np.maximum(np.abs(regulation) - _THRESHOLD, 0)
    return np.sign(regulation) * _CEILING * np.tanh(passed / _CEILING)


@dataclass(frozen=True)
class Modules:
    """Co-expression modules of the measured genes."""

    loading_GK: np.ndarray
    """Loading of each measured gene on each of K modules; each row has length 1 and at most two values other than
    0."""
    cell_sd: float  # s.d. over cells of the log expression of a gene.

    @classmethod
    def draw(cls, options: SimulationOptions) -> Modules:
        rng = stage_generator(options.seed, "modules")
        shape = (options.genes, options.n_modules)
        member_GK = rng.permuted(np.tile(np.arange(options.n_modules), (options.genes, 1)), axis=1)
        loading_GK = rng.standard_normal(shape) * (member_GK < _MODULES_OF_A_GENE)
        return cls(loading_GK / np.linalg.norm(loading_GK, axis=1, keepdims=True), options.cell_sd)

    def cells(self, rng: np.random.Generator, n_cells: int) -> np.ndarray:
        """Log change of each gene in `n_cells` cells, (n_cells, G): module activities times loadings."""
        activity_BK = self.cell_sd * rng.standard_normal((n_cells, self.loading_GK.shape[1]))
        return activity_BK @ self.loading_GK.T

    def add_to(self, options: SimulationOptions, design: Design, effect_PG: np.ndarray) -> np.ndarray:
        """Replace `module_share` of the variance of measured genes' effects by effects along their modules, (P, G).

        A gene's perturbation changes its modules in proportion to its loadings, so that its effect is proportional to
        the covariances of genes with it over control cells: the same sign for activation, the opposite for repression.
        """
        strength_P = stage_generator(options.seed, "modules", block=1).standard_normal(len(effect_PG))
        strength_P = np.exp(STRENGTH_SD * strength_P)
        # The mean square of a product of two loadings is 1 / K; that of the other effects is effect_share.
        size = options.effect_size * math.sqrt(options.effect_share * options.n_modules)
        size = math.copysign(size, options.target_effect)
        column = {gene: i for i, gene in enumerate(design.genes)}
        result_PG = effect_PG.copy()
        for row, gene in enumerate(design.perturbed):
            module_G = size * strength_P[row] * (self.loading_GK @ self.loading_GK[column[gene]])
            result_PG[row] = (
                math.sqrt(1 - options.module_share) * effect_PG[row] + math.sqrt(options.module_share) * module_G
            )
        return result_PG
