"""Effects of perturbations: Gaussian with a GO kernel, made sparse or of low rank; along modules; by a network."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from gears.graphs._annotation import GeneAnnotation
from gears.graphs._go import jaccard
from gears.simulate._design import Design, stage_generator
from gears.simulate._interactions import combine_effects, draw_kinds, kinds_by_departure
from gears.simulate._modules import STRENGTH_SD, Modules
from gears.simulate._network import Network
from gears.simulate._options import SimulationOptions

# Genes with the same terms have the same row in the kernel, which then has no Cholesky factor.
_JITTER = 1e-6


@dataclass(frozen=True)
class SimulatedEffects:
    """Log-fold changes of expected counts, before normalisation to the cell's total."""

    similarity_PP: np.ndarray  # GO Jaccard similarity of the perturbed genes, 1 on the diagonal
    gene_PG: np.ndarray  # effect of each perturbed gene alone
    condition_CG: np.ndarray  # effect of each condition, interactions included
    kinds: tuple[str, ...]
    """(C,) kind of interaction (:mod:`gears.simulate._interactions`), "" for conditions with fewer than two genes."""


def make_effects(
    options: SimulationOptions,
    design: Design,
    annotation: GeneAnnotation,
    source: Modules | Network | None = None,
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
    options: SimulationOptions,
    design: Design,
    network: Network,
    similarity_PP: np.ndarray,
    null_P: np.ndarray,
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
