"""Interactions: how the effect of two or three perturbed genes departs from the sum of their effects."""

from __future__ import annotations

import numpy as np

from gears.simulate._design import stage_generator
from gears.simulate._options import MASKING, PRODUCTS, SATURATING, SYNERGY_SUPPRESSION, SimulationOptions

ADDITIVE, SYNERGY, SUPPRESSION = "additive", "synergy", "suppression"
# s.d. of the random part of an interaction, beside the genes' tendencies (s.d. 1 each).
_INTERACTION_NOISE = 0.5
# A combination in a network is additive if its effect departs from the sum by at most this share of the sum's norm.
DEPARTURE = 0.2
# GO scores of a gene whose products give the effect of a combination.
_N_SCORES = 2


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

    Additive: the effect departs from the sum of the single effects by at most :data:`DEPARTURE` of the sum's norm.
    Synergy: it departs more, and has the larger norm. Suppression: it has the smaller one.
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
