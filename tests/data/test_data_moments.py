"""Moments equal to their definition; differential expression equal to scanpy, scipy and the published lists."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse, stats

from gears.data._published import published_uns
from gears.data.screen._files import STATISTICS
from gears.data.screen._moments import ConditionMoments, condition_moments
from gears.data.screen._statistics import ConditionStatistics, rank_genes, rank_rows, welch_t
from gears.data.screen.prepare import prepare_screen


def statistics_of(means: list[list[float]], variances: list[list[float]], n: list[int]) -> ConditionStatistics:
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
    scanpy.tl.rank_genes_groups(adata, "condition", method="t-test", reference="ctrl", rankby_abs=True, use_raw=False)
    scores, names = adata.uns["rank_genes_groups"]["scores"], adata.uns["rank_genes_groups"]["names"]
    ranking = rank_genes(toy_screen.statistics, toy_screen.gene_names, 30)
    for label in scores.dtype.names:
        i = toy_screen.id_of(label)
        ours = dict(zip(ranking.order[i].tolist(), ranking.scores[i].tolist(), strict=True))
        theirs = dict(zip(map(toy_screen.gene_ids.index, names[label]), scores[label], strict=True))
        np.testing.assert_allclose([ours[g] for g in theirs], list(theirs.values()), rtol=2e-5, atol=1e-6)
        assert [toy_screen.gene_ids[g] for g in ranking.order[i, :10]] == names[label].tolist()[:10]


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


def direct(dense: np.ndarray, ids: np.ndarray, n_conditions: int) -> dict[str, np.ndarray]:
    """Moments from their definition, in extended precision."""

    def mean_of(x: np.ndarray) -> np.ndarray:
        return x.mean(axis=0) if len(x) else np.zeros(dense.shape[1])

    rows = [dense[ids == i].astype(np.longdouble) for i in range(n_conditions)]
    means = [mean_of(x) for x in rows]
    found = {"mean": np.array(means, dtype=float)}
    for order in (2, 3, 4):
        powers = [(x - mean) ** order for x, mean in zip(rows, means, strict=True)]
        found[f"m{order}"] = np.array([mean_of(x) for x in powers], dtype=float)
    found["nonzero"] = np.array([mean_of(x != 0) for x in rows], float)
    return found


def test_small_spread_about_a_large_mean_is_kept():
    """Raw float32 sums of powers lose all of it."""
    rng = np.random.default_rng(1)
    dense = (9 + 1e-3 * rng.standard_normal((4000, 3))).astype(np.float32)
    ids = np.zeros(4000, dtype=int)
    moments = condition_moments(sparse.csr_matrix(dense), ids, 1, chunk_values=500)
    expected = direct(dense, ids, 1)
    np.testing.assert_allclose(moments.central(2), expected["m2"], rtol=1e-9)
    np.testing.assert_allclose(moments.central(4), expected["m4"], rtol=1e-9)
    raw = (dense**4).mean(axis=0) - 4 * (dense**3).mean(axis=0) * dense.mean(axis=0)
    raw = raw + 6 * (dense**2).mean(axis=0) * dense.mean(axis=0) ** 2 - 3 * dense.mean(axis=0) ** 4
    assert np.all(np.abs(raw - expected["m4"][0]) > 1e3 * expected["m4"][0])


def hard_screen(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Sparse, near-constant, constant and negative genes; conditions of 1, 2 and many cells, one empty."""
    rng = np.random.default_rng(seed)
    n = np.array([25, 1, 2, 0, 40])
    ids = rng.permutation(np.repeat(np.arange(5), n))
    dense = np.zeros((len(ids), 7))
    dense[:, 0] = rng.gamma(2.0, 1.0, len(ids)) * (rng.random(len(ids)) < 0.3)
    dense[:, 1] = 5 + 1e-5 * rng.standard_normal(len(ids))
    dense[:, 2] = np.float32(1.1)
    dense[:, 3] = np.where(rng.random(len(ids)) < 0.5, np.nextafter(np.float32(3), np.float32(4)), 3)
    dense[:, 4] = rng.integers(0, 4, len(ids))
    dense[:, 5] = rng.standard_normal(len(ids))
    return dense.astype(np.float32), ids


def assert_moments_within(moments: ConditionMoments, dense: np.ndarray, ids: np.ndarray, control_id: int = 0) -> None:
    """The k-th moment to 1e-10 (|mean| + s.d.)^k, shares exactly."""
    n_conditions = len(moments.n)
    assert moments.n.tolist() == np.bincount(ids, minlength=n_conditions).tolist()
    expected = direct(dense, ids, n_conditions)
    scale = np.abs(expected["mean"]) + np.sqrt(expected["m2"])
    assert np.all(np.abs(moments.mean - expected["mean"]) <= 1e-10 * scale)
    for order in (2, 3, 4):
        error = np.abs(moments.central(order) - expected[f"m{order}"])
        assert np.all(error <= 1e-10 * scale**order), order
    np.testing.assert_allclose(moments.share("nonzero"), expected["nonzero"], rtol=1e-15)
    wide = dense.astype(np.longdouble)
    off = wide - wide[ids == control_id].mean(axis=0)
    off[np.abs(off) < 1e-15] = 0  # the last digits of the extended mean itself
    for share, there in ((moments.share("above"), off > 0), (moments.share("below"), off < 0)):
        for i in np.unique(ids):
            np.testing.assert_allclose(share[i], there[ids == i].mean(axis=0), rtol=1e-15)


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), chunk_values=st.integers(1, 400), parts=st.integers(1, 6), data=st.data())
def test_any_chunks_merged_in_any_order_are_exact(seed, chunk_values, parts, data):
    dense, ids = hard_screen(seed)
    matrix = sparse.csr_matrix(dense)
    whole = condition_moments(matrix, ids, 5, control_id=0, chunk_values=chunk_values)
    assert_moments_within(whole, dense, ids)

    cells = np.random.default_rng(seed).permutation(len(ids))
    pieces = []
    for rows in np.array_split(cells, parts):
        pieces.append(ConditionMoments(5, dense.shape[1], whole.centre))
        pieces[-1].update(matrix[rows], ids[rows])
    total = ConditionMoments(5, dense.shape[1], whole.centre)
    for i in data.draw(st.permutations(range(parts))):
        total.merge_conditions(np.arange(5), pieces[i])
    assert_moments_within(total, dense, ids)
    np.testing.assert_array_equal(total.share("above"), whole.share("above"))
    np.testing.assert_array_equal(total.share("below"), whole.share("below"))


def test_screen_keeps_shares_about_its_control_mean(toy_template, tmp_path, quick_workers):
    one = prepare_screen(toy_template, tmp_path / "one")
    two = prepare_screen(toy_template, tmp_path / "two", workers=2)
    assert one.content_hash == two.content_hash
    for name in STATISTICS:
        left, right = getattr(one.statistics, name), getattr(two.statistics, name)
        np.testing.assert_allclose(left, right, rtol=1e-12, atol=1e-14)
    cells = one.cells.rows(np.arange(len(one.cells))).astype(np.float64)
    mu_G = one.statistics.mean[one.control_id]
    for i in range(len(one.conditions)):
        sign = np.sign(cells[one.cells_of(i)] - mu_G)
        np.testing.assert_allclose((sign > 0).mean(axis=0), one.statistics.above[i], atol=1e-15)
        np.testing.assert_allclose((sign < 0).mean(axis=0), one.statistics.below[i], atol=1e-15)
    kept = one.without([one.conditions[3]])
    np.testing.assert_array_equal(kept.statistics.above, np.delete(one.statistics.above, 3, axis=0))
