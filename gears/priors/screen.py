"""The prior of a screen: its training conditions as the prior sees them, and what it is judged by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import sparse

from gears.conditions import Condition
from gears.data.screen import PreparedScreen
from gears.data.statistics import variance_within
from gears.evaluation.metrics import condition_metrics
from gears.evaluation.rows import changes, pearson_rows
from gears.evaluation.truth import Truth
from gears.graphs import GeneAnnotation
from gears.graphs.go import jaccard
from gears.mapped import release, row_blocks
from gears.priors.data import PriorData
from gears.priors.fit import Criterion, mean_of_others
from gears.priors.kernels import GeneSimilarity

MOST_JUDGED, FEWEST_JUDGED, JUDGED_VALUES = 2000, 200, 10_000_000
"""Conditions whose predictions decide among candidates: of more a fixed sample is taken, of so many values (conditions
x genes) fewer, but not fewer than the second."""
_ROWS = 2048
_BLOCK_VALUES = 1 << 17  # conditions x genes of a block


def prior_data(
    screen: PreparedScreen,
    conditions: Sequence[Condition],
    nodes: Sequence[Sequence[int]],
    pert_names: Sequence[str],
    annotation: GeneAnnotation,
    vectors_PH: np.ndarray | None = None,
) -> PriorData:
    """Training conditions of a prepared screen.

    Parameters
    ----------
    screen
        The prepared screen; only its table of statistics is read.
    conditions, nodes
        The perturbed training conditions and their perturbation-graph nodes.
    pert_names
        Names of all P nodes.
    annotation
        GO annotation, for the similarity of genes.
    vectors_PH
        Vectors of all nodes, for a second similarity; NaN where a node has none.
    """
    statistics = screen.statistics
    ids = np.array([screen.id_of(condition) for condition in conditions], dtype=np.int64)
    control_mean_G = np.asarray(statistics.mean[screen.control_id], dtype=np.float64)
    return data_of(
        screen, ids, statistics.delta(ids), control_mean_G, nodes, pert_names, annotation, vectors_PH
    )


def data_of(
    screen: PreparedScreen,
    ids: np.ndarray,
    delta_CG: np.ndarray,
    control_mean_G: np.ndarray,
    nodes: Sequence[Sequence[int]],
    pert_names: Sequence[str],
    annotation: GeneAnnotation,
    vectors_PH: np.ndarray | None = None,
) -> PriorData:
    """Training conditions, by their rows in the screen's table of statistics, with changes that are known already."""
    statistics = screen.statistics
    column = {gene: place for place, gene in enumerate(screen.gene_names)}
    return PriorData(
        tuple(tuple(members) for members in nodes),
        delta_CG,
        variance_within(statistics, ids),
        np.asarray(statistics.n[ids], dtype=np.float64),
        control_mean_G,
        np.array([column.get(str(name), -1) for name in pert_names], dtype=np.int64),
        go_similarity(annotation, pert_names, nodes),
        () if vectors_PH is None else (vector_similarity(vectors_PH, nodes),),
    )


def vector_similarity(vectors_PH: np.ndarray, nodes: Sequence[Sequence[int]]) -> GeneSimilarity:
    """Cosine of the vectors of all nodes and those that occur in `nodes`; a gene is 1 to itself.

    A node without a vector (NaN or all zero) is like no other.
    """
    trained_T = np.unique(np.array([node for members in nodes for node in members], dtype=np.int64))
    vectors_PH = np.nan_to_num(np.asarray(vectors_PH, dtype=np.float64))
    length_P1 = np.linalg.norm(vectors_PH, axis=1, keepdims=True)
    unit_PH = np.divide(vectors_PH, length_P1, out=np.zeros_like(vectors_PH), where=length_P1 > 0)
    cosine_PT = unit_PH @ unit_PH[trained_T].T
    cosine_PT[trained_T, np.arange(len(trained_T))] = 1.0
    return GeneSimilarity(trained_T, sparse.csr_matrix(cosine_PT))


def go_similarity(
    annotation: GeneAnnotation, pert_names: Sequence[str], nodes: Sequence[Sequence[int]]
) -> GeneSimilarity:
    """Jaccard similarity of GO terms of all nodes to those that occur in `nodes`; a gene is 1 to itself."""
    trained_T = np.unique(np.array([node for members in nodes for node in members], dtype=np.int64))
    names = [str(name) for name in pert_names]
    of_trained = annotation.rows([names[node] for node in trained_T])
    blocks = []
    for start in range(0, len(names), _ROWS):
        block = jaccard(annotation.rows(names[start : start + _ROWS]), of_trained)
        here = (trained_T >= start) & (trained_T < start + _ROWS)
        block[trained_T[here] - start, np.flatnonzero(here)] = 1.0
        blocks.append(sparse.csr_matrix(block))
    return GeneSimilarity(trained_T, sparse.csr_matrix(sparse.vstack(blocks, format="csr")))


def judge(screen: PreparedScreen, conditions: Sequence[Condition], known_mean_UG: np.ndarray) -> Criterion:
    """Error of predicted changes of `conditions`, for choices among predictions; lower is better.

    The sum of mse and mse_top20_de, each as a share of the train mean's, less pearson_delta and
    pearson_delta_ref (undefined ones count 0), all averaged over conditions: what the
    evaluation looks at, at equal weight. Without a ranking of differential genes the terms
    over these are left out.

    Parameters
    ----------
    screen
        The prepared screen; only its table of statistics is read.
    conditions
        The U conditions whose predictions are compared.
    known_mean_UG
        The train mean of each prediction, (U, G): mean of the conditions that it is made from, without
        the condition itself, since a mean that held it would be beaten by its own opposite.
    """
    return criterion_of(Truth.of(screen, conditions, conditions), known_mean_UG)


def criterion_of(truth: Truth, known_mean_UG: np.ndarray) -> Criterion:
    """The criterion of :func:`judge` against a truth, block by block of conditions: small arrays stay in the cache."""
    errors = ["mse", "mse_top20_de"] if truth.has_de else ["mse"]
    base = np.nanmean(condition_metrics(known_mean_UG, truth, errors), axis=0)
    step = max(1, _BLOCK_VALUES // max(1, known_mean_UG.shape[1]))
    blocks = []
    for start in range(0, len(known_mean_UG), step):
        rows = slice(start, start + step)
        blocks.append((rows, truth.subset(rows), *changes(truth.mean_UG[rows], known_mean_UG[rows])))

    def criterion(delta_UG: np.ndarray) -> float:
        values, specific = [], []
        for rows, part, specific_UG, noise_of_truth in blocks:
            predicted_UG = np.maximum(truth.control_mean_G + delta_UG[rows], 0.0)
            values.append(condition_metrics(predicted_UG, part, [*errors, "pearson_delta"]))
            departure_UG, noise = changes(predicted_UG, known_mean_UG[rows])
            specific.append(pearson_rows(departure_UG, specific_UG, noise_a=noise, noise_b=noise_of_truth))
        mean = np.nan_to_num(np.concatenate(values)).mean(axis=0)
        shares = mean[: len(errors)] / np.where(base > 0, base, 1.0)
        return float(shares.sum() - mean[-1] - np.nan_to_num(np.concatenate(specific)).mean())

    return criterion


def most_judged(n_genes: int) -> int:
    """Conditions of as many genes whose predictions decide, at most."""
    return max(FEWEST_JUDGED, min(MOST_JUDGED, JUDGED_VALUES // max(1, n_genes)))


def means_without(
    screen: PreparedScreen, conditions: Sequence[Condition], rows: np.ndarray | None = None
) -> np.ndarray:
    """Mean of all others' profiles for some of several conditions, (R, G) float64; of one alone its own."""
    if rows is None or len(rows) == len(conditions):
        return mean_of_others(profiles(screen, conditions))
    total_G = mean_of(screen, conditions) * len(conditions)
    own_RG = profiles(screen, [conditions[row] for row in rows.tolist()])
    return np.asarray((total_G - own_RG) / (len(conditions) - 1))


def mean_of(screen: PreparedScreen, conditions: Sequence[Condition]) -> np.ndarray:
    """Mean profile of several conditions, each counting once, (G,) float64."""
    total_G = np.zeros(len(screen.gene_names))
    for rows in row_blocks(len(conditions), len(total_G)):
        total_G += profiles(screen, conditions[rows]).sum(axis=0)
    return total_G / len(conditions)


def profiles(screen: PreparedScreen, conditions: Sequence[Condition]) -> np.ndarray:
    """Mean expression of each condition, (C, G) float64."""
    ids = [screen.id_of(condition) for condition in conditions]
    profiles_CG = np.asarray(screen.statistics.mean[ids], dtype=np.float64)
    release(screen.statistics.mean)
    return profiles_CG
