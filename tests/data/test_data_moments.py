"""Moments equal to their definition; differential expression equal to scanpy, scipy and the published lists."""

import json

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from driving import pert_data_of
from scipy import sparse

from gears.data._published import published_uns
from gears.data.screen._files import STATISTICS
from gears.data.screen._statistics import rank_genes, rank_rows
from gears.data.screen.prepare import prepare_screen


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


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_moments_of_hard_genes_are_exact(seed, merged, tmp_path, monkeypatch):
    """Sparse, near-constant, constant and negative genes; conditions of 1, 2 and many cells; blocks of some cells."""
    monkeypatch.setattr("gears.data.reading._blocks.BLOCK_VALUES", 60)
    rng = np.random.default_rng(seed)
    ids = rng.permutation(np.repeat(np.arange(4), [25, 1, 2, 40]))
    dense = np.zeros((len(ids), 7))
    dense[:, 0] = rng.gamma(2.0, 1.0, len(ids)) * (rng.random(len(ids)) < 0.3)
    dense[:, 1] = 5 + 1e-5 * rng.standard_normal(len(ids))
    dense[:, 2] = np.float32(1.1)
    dense[:, 3] = np.where(rng.random(len(ids)) < 0.5, np.nextafter(np.float32(3), np.float32(4)), 3)
    dense[:, 4], dense[:, 5] = rng.integers(0, 4, len(ids)), rng.standard_normal(len(ids))
    dense = dense.astype(np.float32)
    labels = np.array(["ctrl", "A+ctrl", "B+ctrl", "C+ctrl"])
    obs = pd.DataFrame({"condition": labels[ids], "cell_type": "a"}, index=[f"c{i}" for i in range(len(ids))])
    adata = AnnData(
        sparse.csr_matrix(dense), obs=obs, var=pd.DataFrame({"gene_name": list("ABCDEFG")}, list("ABCDEFG"))
    )
    how = {"skip_calc_de": True, "scale": "scaled"} | ({"moments": tmp_path / "hard.moments.h5ad"} if merged else {})
    screen = pert_data_of(tmp_path / "work", adata, "hard", **how).screen
    order = [screen.id_of(label) for label in labels]
    expected = direct(dense, ids, 4)
    scale = np.abs(expected["mean"]) + np.sqrt(expected["m2"])
    for name, power in (("mean", 1), ("m2", 2), ("m3", 3), ("m4", 4)):
        error = np.abs(getattr(screen.statistics, name)[order] - expected[name])
        assert np.all(error <= 1e-10 * scale**power), name
    np.testing.assert_allclose(screen.statistics.nonzero[order], expected["nonzero"], rtol=1e-15)


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
