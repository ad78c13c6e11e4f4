"""Effects of perturbations: Gaussian with a GO kernel, made sparse or of low rank; interactions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from gears.graphs.annotation import GeneAnnotation
from gears.graphs.go import jaccard
from gears.simulate.design import Design, stage_generator
from gears.simulate.options import SimulationOptions

ADDITIVE, SYNERGY, SUPPRESSION = "additive", "synergy", "suppression"
# s.d. of the random part of an interaction, beside the genes' tendencies (s.d. 1 each).
_INTERACTION_NOISE = 0.5
# Genes with the same terms have the same row in the kernel, which then has no Cholesky factor.
_JITTER = 1e-6


@dataclass(frozen=True)
class Effects:
    """Log-fold changes of expected counts, before normalisation to the cell's total.

    Parameters
    ----------
    similarity_PP
        GO Jaccard similarity of the perturbed genes, 1 on the diagonal.
    gene_PG
        Effect of each perturbed gene alone.
    condition_CG
        Effect of each condition, interactions included.
    kinds
        (C,) kind of interaction, "" for conditions with fewer than two genes.
    """

    similarity_PP: np.ndarray
    gene_PG: np.ndarray
    condition_CG: np.ndarray
    kinds: tuple[str, ...]


def make_effects(options: SimulationOptions, design: Design, annotation: GeneAnnotation) -> Effects:
    """Draw the effects of all conditions."""
    rows = annotation.rows(design.perturbed)
    similarity_PP = jaccard(rows, rows)
    np.fill_diagonal(similarity_PP, 1.0)  # also for genes without terms
    kernel_PP = options.go_strength * similarity_PP + (1 - options.go_strength) * np.eye(len(similarity_PP))
    spread_PG = _spread_effects(options, kernel_PP)
    target_PG = np.zeros_like(spread_PG)
    column = {gene: i for i, gene in enumerate(design.genes)}
    for row, gene in enumerate(design.perturbed):
        if gene in column:
            target_PG[row, column[gene]] = options.target_effect
            # with a target effect the target's change is known exactly; without one a low rank stays exact
            if options.target_effect != 0:
                spread_PG[row, column[gene]] = 0
    members_CP = design.members_CP
    kinds = _interaction_kinds(options, members_CP, kernel_PP)
    factor = {ADDITIVE: 1.0, SYNERGY: 1 + options.interaction_size}
    factor[SUPPRESSION] = 1 / factor[SYNERGY]
    factor_C = np.array([factor.get(kind, 1.0) for kind in kinds])
    # the effect on the target itself does not depend on the partner
    condition_CG = factor_C[:, None] * (members_CP @ spread_PG) + members_CP @ target_PG
    return Effects(similarity_PP, spread_PG + target_PG, condition_CG, kinds)


def _spread_effects(options: SimulationOptions, kernel_PP: np.ndarray) -> np.ndarray:
    """(P, G) effects on genes other than the target."""
    rng = stage_generator(options.seed, "effects")
    n_perturbed, n_genes = len(kernel_PP), options.genes
    common = options.common_effect
    factor_PP = np.linalg.cholesky((1 - common) * kernel_PP + common + _JITTER * np.eye(n_perturbed))
    strength_P = np.exp(options.strength_sd * rng.standard_normal(n_perturbed))
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


def _interaction_kinds(
    options: SimulationOptions, members_CP: np.ndarray, kernel_PP: np.ndarray
) -> tuple[str, ...]:
    """Highest mean tendency: synergy; lowest: suppression; the share in between: additive."""
    rng = stage_generator(options.seed, "interactions")
    n_perturbed = len(kernel_PP)
    factor_PP = np.linalg.cholesky(kernel_PP + _JITTER * np.eye(n_perturbed))
    tendency_P = factor_PP @ rng.standard_normal(n_perturbed)
    noise_C = _INTERACTION_NOISE * rng.standard_normal(len(members_CP))
    size_C = members_CP.sum(axis=1)
    multiple = np.flatnonzero(size_C > 1)
    kinds = np.array([ADDITIVE if size > 1 else "" for size in size_C], dtype=object)
    if not len(multiple):
        return tuple(kinds)
    score = (members_CP[multiple] @ tendency_P) / np.sqrt(size_C[multiple]) + noise_C[multiple]
    order = multiple[np.argsort(score, kind="stable")]
    n_changed = round(options.interaction_share * len(multiple))
    n_suppressed = n_changed // 2
    kinds[order[:n_suppressed]] = SUPPRESSION
    kinds[order[len(order) - (n_changed - n_suppressed) :]] = SYNERGY
    return tuple(kinds)
