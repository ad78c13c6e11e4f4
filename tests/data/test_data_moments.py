"""Moments: equal to the definition, whatever the chunks, and robust where raw sums are not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from gears.data.screen.cells import CellMatrix
from gears.data.screen.files import STATISTICS
from gears.data.screen.moments import ConditionMoments, condition_chunks, condition_moments
from gears.data.screen.prepare import prepare_screen

if TYPE_CHECKING:
    from anndata import AnnData


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


def sample(
    seed: int, n_cells: int = 60, n_genes: int = 7, n_conditions: int = 4
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    dense = (rng.gamma(2.0, 1.0, (n_cells, n_genes)) * (rng.random((n_cells, n_genes)) < 0.4)).astype(
        np.float32
    )
    return dense, rng.integers(0, n_conditions, n_cells)


def test_merging_something_empty_changes_nothing() -> None:
    dense, ids = sample(5)
    moments = condition_moments(sparse.csr_matrix(dense), ids, 4)
    before = [moments.mean.copy(), *(moments.central(k).copy() for k in (2, 3, 4))]
    moments.merge_conditions(np.arange(4), ConditionMoments(4, dense.shape[1]))
    for old, new in zip(before, [moments.mean, *(moments.central(k) for k in (2, 3, 4))], strict=True):
        np.testing.assert_array_equal(old, new)


def test_small_spread_about_a_large_mean_is_kept() -> None:
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


def test_a_constant_gene_has_no_variance_at_all() -> None:
    dense = np.full((50, 2), np.float32(1.1))
    moments = condition_moments(sparse.csr_matrix(dense), np.zeros(50, dtype=int), 1)
    assert np.all(moments.central(2) < 1e-30)


def test_chunks_cover_every_cell_once_and_hold_few_conditions() -> None:
    dense, ids = sample(2, n_cells=200, n_conditions=40)
    chunks = list(condition_chunks((dense != 0).sum(axis=1), ids, 7, chunk_values=70))
    assert sorted(np.concatenate(chunks).tolist()) == list(range(200))
    assert max(len(np.unique(ids[rows])) for rows in chunks) <= 70 // 7


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


def assert_moments_within(
    moments: ConditionMoments, dense: np.ndarray, ids: np.ndarray, control_id: int = 0
) -> None:
    """The k-th moment to 1e-10 (|mean| + s.d.)^k, shares exactly."""
    n_conditions = len(moments.n)
    assert moments.n.tolist() == np.bincount(ids, minlength=n_conditions).tolist()
    expected = direct(dense, ids, n_conditions)
    scale = np.abs(expected["mean"]) + np.sqrt(expected["m2"])
    assert np.all(np.abs(moments.mean - expected["mean"]) <= 1e-10 * scale)
    for order in (2, 3, 4):
        error = np.abs(moments.central(order) - expected[f"m{order}"])
        assert np.all(error <= 1e-10 * scale**order), order
    np.testing.assert_allclose(moments.nonzero, expected["nonzero"], rtol=1e-15)
    wide = dense.astype(np.longdouble)
    off = wide - wide[ids == control_id].mean(axis=0)
    off[np.abs(off) < 1e-15] = 0  # the last digits of the extended mean itself
    for share, there in ((moments.above, off > 0), (moments.below, off < 0)):
        for i in np.unique(ids):
            np.testing.assert_allclose(share[i], there[ids == i].mean(axis=0), rtol=1e-15)


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), chunk_values=st.integers(1, 400), parts=st.integers(1, 6), data=st.data())
def test_any_chunks_merged_in_any_order_are_exact(
    seed: int, chunk_values: int, parts: int, data: st.DataObject
) -> None:
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
    np.testing.assert_array_equal(total.above, whole.above)
    np.testing.assert_array_equal(total.below, whole.below)


def assert_same(left: ConditionMoments, right: ConditionMoments) -> None:
    scale = np.abs(right.mean) + np.sqrt(right.central(2))
    assert np.all(np.abs(left.mean - right.mean) <= 1e-10 * scale)
    for order in (2, 3, 4):
        assert np.all(np.abs(left.central(order) - right.central(order)) <= 1e-10 * scale**order)
    for name in ("nonzero", "above", "below", "n"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))


def test_processes_give_the_same(tmp_path: Path) -> None:
    dense, ids = hard_screen(1)
    matrix = sparse.csr_matrix(dense)
    CellMatrix.write(tmp_path, [matrix])
    expected = condition_moments(matrix, ids, 5, control_id=0)
    for cells in (matrix, CellMatrix(tmp_path, dense.shape[1])):
        found = condition_moments(cells, ids, 5, control_id=0, chunk_values=60, workers=2)
        assert_same(found, expected)


def test_screen_keeps_shares_about_its_control_mean(toy_template: AnnData, tmp_path: Path) -> None:
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
