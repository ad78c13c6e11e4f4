"""Analysis functions of cell-gears on condition means, with its key names.

They differ from ``cell-gears`` 0.1.2 for undefined values: a correlation with a constant is NaN (there 0) and excluded
from averages, the control has no differential genes (there a score of 0), and conditions with fewer than 20 genes are
scored on those genes. New code uses :mod:`gears.evaluation`, which scores means without the cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from gears.conditions import Condition
from gears.evaluation._rows import own_noise, pearson_rows
from gears.evaluation.metrics._published import sign_distance

if TYPE_CHECKING:
    from anndata import AnnData

Results = Mapping[str, np.ndarray]
Scores = dict[str, dict[str, float]]
N_TOP = 20
HIGH_EXPRESSION = 0.5  # below this mean a fold change is not meaningful
FOLDS = {"downreg_0.33": (0.0, 0.333), "downreg_0.1": (0.0, 0.1), "upreg_3": (3.0, np.inf), "upreg_10": (10.0, np.inf)}


def compute_metrics(results: Results) -> tuple[dict[str, float], Scores]:
    """Squared error and correlation of condition means, per condition and averaged.

    Parameters
    ----------
    results
        ``pert_cat`` (N,), ``pred`` and ``truth`` (N, G), ``pred_de`` and ``truth_de`` (N, n_top).

    Returns
    -------
    metrics
        ``mse``, ``mse_de``, ``pearson``, ``pearson_de``: means over conditions, undefined values excluded.
    metrics_pert
        The same per condition label; NaN where undefined, as the ``_de`` forms are for the control.
    """
    labels = np.asarray(results["pert_cat"])
    per_condition: Scores = {}
    for label in np.unique(labels):
        cells = labels == label
        scores = _mse_and_pearson(_mean(results["pred"], cells), _mean(results["truth"], cells), "")
        if Condition.parse(str(label)).is_control:
            scores |= {"mse_de": np.nan, "pearson_de": np.nan}
        else:
            scores |= _mse_and_pearson(_mean(results["pred_de"], cells), _mean(results["truth_de"], cells), "_de")
        per_condition[str(label)] = scores
    means = pd.DataFrame(per_condition).mean(axis=1).reindex(["mse", "mse_de", "pearson", "pearson_de"])
    return {str(name): float(mean) for name, mean in means.items()}, per_condition


def non_dropout_analysis(adata: AnnData, test_res: Results) -> Scores:
    """Directions, ranges and errors over the top genes that are no drop-outs, per condition label.

    `adata` is the processed screen with the published ``uns`` gene lists, `test_res` as for :func:`compute_metrics`.
    """
    lists = {"non_zero": "non_zeros_gene_idx", "non_dropout": "non_dropout_gene_idx"}
    return _list_analysis(adata, test_res, "top_non_dropout_de_20", "non_dropout", lists)


def non_zero_analysis(adata: AnnData, test_res: Results) -> Scores:
    """The same as :func:`non_dropout_analysis` over the top genes with a mean above zero."""
    return _list_analysis(adata, test_res, "top_non_zero_de_20", "non_zero", {})


def deeper_analysis(
    adata: AnnData,
    test_res: Results,
    de_column_prefix: str = "rank_genes_groups_cov",
    most_variable_genes: Sequence[int] | np.ndarray | None = None,
) -> Scores:
    """Directions, ranges, correlations of changes and fold-change gaps, per condition label.

    Parameters
    ----------
    adata
        The processed screen; ``uns[f"{de_column_prefix}_all"]`` holds the ranking of each condition.
    test_res
        Results as :func:`compute_metrics` takes them.
    de_column_prefix
        See `adata`.
    most_variable_genes
        Gene indices; by default the 200 with the largest variance across condition means.
    """
    context = _Context(adata)
    if most_variable_genes is None:
        labels = context.labels
        mean_LG = np.array([context.mean_of(labels == label) for label in dict.fromkeys(labels)])
        most_variable_genes = np.argsort(mean_LG.std(axis=0))[-200:]
    variable = np.asarray(most_variable_genes, dtype=np.int64)
    analysis: Scores = {}
    for label, truth, true_G, pred_G in _conditions(test_res):
        change = (pred_G - context.control_G, true_G - context.control_G)
        scores = {"frac_correct_direction_all": float((sign_distance(*change) == 0).mean())}
        scores["pearson_delta"] = _pearson(*change)
        scores |= _fold_change_gaps(pred_G, true_G, context.control_G)
        scores |= _scores_over(pred_G, true_G, context.control_G, variable, "_top200_hvg")
        ranking = context.genes(f"{de_column_prefix}_all", label)
        if ranking is not None:
            scores |= _ranked_scores(pred_G, truth, context.control_G, ranking)
        analysis[label] = scores
    return analysis


class _Context:
    """Control mean, gene positions and full condition names of a processed screen."""

    def __init__(self, adata: AnnData) -> None:
        self.adata = adata
        self.labels = adata.obs["condition"].astype(str).to_numpy()
        self.full_name = dict(zip(self.labels, adata.obs["condition_name"].astype(str), strict=True))
        self.position = {gene: index for index, gene in enumerate(adata.var.index)}
        self.control_G = self.mean_of(np.array([Condition.parse(label).is_control for label in self.labels]))

    def genes(self, key: str, label: str) -> np.ndarray | None:
        """Gene positions of a condition's list in ``uns``; None without a list, such as for the control."""
        if key not in self.adata.uns:
            msg = f"adata.uns has no {key!r}; process the screen without skip_calc_de"
            raise KeyError(msg)
        listed = self.adata.uns[key].get(self.full_name.get(label, ""))
        if listed is None:
            return None
        return np.array([self.position.get(gene, gene) for gene in listed], dtype=np.int64)

    def mean_of(self, cells: np.ndarray) -> np.ndarray:
        return np.asarray(self.adata.X[cells].mean(axis=0, dtype=np.float64)).ravel()


def _list_analysis(adata: AnnData, test_res: Results, key: str, suffix: str, direction_lists: dict[str, str]) -> Scores:
    context = _Context(adata)
    analysis: Scores = {}
    for label, truth, true_G, pred_G in _conditions(test_res):
        genes = context.genes(key, label)
        scores: dict[str, float] = {}
        if genes is not None:
            distance_G = sign_distance(pred_G - context.control_G, true_G - context.control_G)
            scores |= _directions(distance_G[genes], f"top{N_TOP}_{suffix}")
            for name, list_key in direction_lists.items():
                listed = context.genes(list_key, label)
                scores |= {} if listed is None else _directions(distance_G[listed], name)
            scores |= _range_scores(pred_G[genes], truth[:, genes], f"_{suffix}")
            scores |= _scores_over(pred_G, true_G, context.control_G, genes, f"_top{N_TOP}_de_{suffix}")
        analysis[label] = scores
    return analysis


def _ranked_scores(
    pred_G: np.ndarray, truth: np.ndarray, control_G: np.ndarray, ranking: np.ndarray
) -> dict[str, float]:
    true_G = truth.mean(axis=0, dtype=np.float64)
    distance_G = sign_distance(pred_G - control_G, true_G - control_G)
    top = ranking[:N_TOP]
    scores = {"pearson_delta_de": _pearson((pred_G - control_G)[top], (true_G - control_G)[top])}
    for n in (20, 50, 100, 200):
        scores[f"frac_correct_direction_{n}"] = float((distance_G[ranking[:n]] == 0).mean())
        scores |= _scores_over(pred_G, true_G, control_G, ranking[:n], f"_top{n}_de")
    expressed = top[(truth[:, top] != 0).any(axis=0)]
    if len(expressed):
        scores["frac_correct_direction_20_nonzero"] = float((distance_G[expressed] == 0).mean())
    return scores | _range_scores(pred_G[top], truth[:, top], "")


def _range_scores(pred_K: np.ndarray, truth_NK: np.ndarray, suffix: str) -> dict[str, float]:
    """Where predicted means fall within the cells' values; genes that are 0 in every cell are excluded."""
    low_K, high_K = truth_NK.min(axis=0), truth_NK.max(axis=0)
    expressed_K = (low_K != 0) | (high_K != 0)
    if not expressed_K.any():
        return {}
    scores = {f"frac_in_range{suffix}": _share_between(pred_K, low_K, high_K, expressed_K)}
    for low, high in ((45, 55), (40, 60), (25, 75)):
        low_K, high_K = np.quantile(truth_NK, [low / 100, high / 100], axis=0)
        scores[f"frac_in_range_{low}_{high}{suffix}"] = _share_between(pred_K, low_K, high_K, expressed_K)
    std_K = truth_NK.std(axis=0, dtype=np.float64)
    spread_K = std_K > 0
    if spread_K.any():
        mean_K = truth_NK.mean(axis=0, dtype=np.float64)
        sigma = np.abs(pred_K - mean_K)[spread_K] / std_K[spread_K]
        scores[f"mean_sigma{suffix}"] = float(sigma.mean())
        scores[f"std_sigma{suffix}"] = float(sigma.std())
        for limit in (1, 2):
            scores[f"frac_sigma_below_{limit}{suffix}"] = float((sigma <= limit).mean())
    return scores


def _fold_change_gaps(pred_G: np.ndarray, true_G: np.ndarray, control_G: np.ndarray) -> dict[str, float]:
    defined_G = (true_G >= HIGH_EXPRESSION) & (control_G > 0)
    fold = true_G[defined_G] / control_G[defined_G]
    gap = np.abs(pred_G[defined_G] / control_G[defined_G] - fold)
    scores = {"fold_change_gap_all": float(gap.mean())} if len(gap) else {}
    for name, (low, high) in FOLDS.items():
        between = (fold > low) & (fold < high)
        if between.any():
            scores[f"fold_change_gap_{name}"] = float(gap[between].mean())
    return scores


def _scores_over(
    pred_G: np.ndarray, true_G: np.ndarray, control_G: np.ndarray, genes: np.ndarray, suffix: str
) -> dict[str, float]:
    pred, true, control = pred_G[genes], true_G[genes], control_G[genes]
    delta = {f"pearson_delta{suffix}": _pearson(pred - control, true - control)}
    return delta | _mse_and_pearson(pred, true, suffix)


def _mse_and_pearson(pred: np.ndarray, true: np.ndarray, suffix: str) -> dict[str, float]:
    return {f"mse{suffix}": float(((pred - true) ** 2).mean()), f"pearson{suffix}": _pearson(pred, true)}


def _pearson(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a[None, :], b[None, :]
    return float(pearson_rows(a, b, noise_a=own_noise(a), noise_b=own_noise(b))[0])


def _directions(apart: np.ndarray, name: str) -> dict[str, float]:
    distances = {"correct": 0, "opposite": 2, "0/1": 1}
    return {
        f"frac_{name_of_direction}_direction_{name}": float((apart == distance).mean()) if len(apart) else np.nan
        for name_of_direction, distance in distances.items()
    }


def _share_between(pred_K: np.ndarray, low_K: np.ndarray, high_K: np.ndarray, included_K: np.ndarray) -> float:
    return float(((pred_K >= low_K) & (pred_K <= high_K))[included_K].mean())


def _conditions(results: Results) -> Iterable[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    """Per label: its cells' true values (n, G), their mean and the mean prediction (G,)."""
    labels = np.asarray(results["pert_cat"])
    for label in np.unique(labels):
        cells = labels == label
        truth = np.asarray(results["truth"])[cells]
        yield str(label), truth, _mean(results["truth"], cells), _mean(results["pred"], cells)


def _mean(values: np.ndarray, cells: np.ndarray) -> np.ndarray:
    return np.asarray(values)[cells].mean(axis=0, dtype=np.float64)
