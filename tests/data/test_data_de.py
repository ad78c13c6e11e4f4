"""Differential expression: equal to scanpy, to scipy and to the published lists."""

import json

import numpy as np
import pytest
from scipy import stats

from gears.data.published import published_uns
from gears.data.screen.statistics import ConditionStatistics, rank_genes, rank_rows, welch_t


def statistics_of(
    means: list[list[float]], variances: list[list[float]], n: list[int]
) -> ConditionStatistics:
    """From sample variances; the first row is the control."""
    n_C = np.array(n, dtype=float)
    m2 = np.array(variances) * ((n_C - 1) / n_C)[:, None]
    zeros = np.zeros_like(m2)
    control_of = np.zeros(len(n), dtype=np.int64)
    return ConditionStatistics(n_C, np.array(means), m2, *[zeros] * 5, control_of)


def test_t_is_scipys():
    rng = np.random.default_rng(0)
    means, variances = rng.random((5, 40)), rng.random((5, 40)) + 0.01
    n = [30, 2, 7, 100, 12]
    t = welch_t(statistics_of(means.tolist(), variances.tolist(), n), np.arange(1, 5))
    for row in range(1, 5):
        both = [(means[i], np.sqrt(variances[i]), n[i]) for i in (row, 0)]
        expected = stats.ttest_ind_from_stats(*both[0], *both[1], equal_var=False).statistic
        np.testing.assert_allclose(t[row - 1], expected, rtol=1e-12)


def test_ties_go_by_gene_name():
    t = np.array([[1.0, -1.0 - 1e-12, 3.0, 1.0]])
    assert rank_rows(t, ["D", "C", "A", "B"], 4).tolist() == [[2, 3, 1, 0]]


def test_ranking_equals_scanpy(toy_template, toy_screen):
    import scanpy

    adata = toy_template.copy()
    adata.uns["log1p"] = {"base": None}
    adata.obs["condition"] = adata.obs["condition"].astype("category")
    scanpy.tl.rank_genes_groups(
        adata, "condition", method="t-test", reference="ctrl", rankby_abs=True, use_raw=False
    )
    scores, names = adata.uns["rank_genes_groups"]["scores"], adata.uns["rank_genes_groups"]["names"]
    ranking = rank_genes(toy_screen.statistics, toy_screen.gene_names, 30)
    for label in scores.dtype.names:
        i = toy_screen.id_of(label)
        ours = dict(zip(ranking.order[i].tolist(), ranking.scores[i].tolist(), strict=True))
        theirs = dict(zip(map(toy_screen.gene_ids.index, names[label]), scores[label], strict=True))
        np.testing.assert_allclose([ours[g] for g in theirs], list(theirs.values()), rtol=2e-5, atol=1e-6)
        assert [toy_screen.gene_ids[g] for g in ranking.order[i, :10]] == names[label].tolist()[:10]


def test_top_genes(toy_screen):
    ranking = toy_screen.de
    some = toy_screen.id_of("GX03+ctrl")
    assert ranking.top(some).dtype == np.int64
    assert len(ranking.top(some)) == 20
    assert len(ranking.top(some, 500)) == 30  # no more genes than there are
    assert len(ranking.top(toy_screen.control_id)) == 0
    scores = np.abs(ranking.scores[some])
    assert np.all(np.diff(scores) <= 1e-9)
    with pytest.raises(ValueError, match="rank_genes"):
        rank_genes(toy_screen.statistics, toy_screen.gene_names, 5).top(1, 10)


@pytest.mark.shared
def test_published_gene_lists_come_out(norman, shared):
    reference = json.loads((shared / "reference" / "norman_subset_de_and_metrics.json").read_text())
    uns = published_uns(norman)
    assert set(uns["rank_genes_groups_cov_all"]) == set(reference["rank_genes_groups_cov_all_top50"])
    for name, genes in reference["rank_genes_groups_cov_all_top50"].items():
        ranked = uns["rank_genes_groups_cov_all"][name]
        assert len(ranked) == 500
        assert ranked[:20] == genes[:20]
    for key in ("top_non_dropout_de_20", "top_non_zero_de_20", "non_zeros_gene_idx", "non_dropout_gene_idx"):
        assert set(uns[key]) == set(reference[key])
        for name, expected in reference[key].items():
            assert uns[key][name].tolist() == expected, (key, name)
