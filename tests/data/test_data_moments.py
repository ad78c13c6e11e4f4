"""Moments: equal to the definition, whatever the chunks, and robust where raw sums are not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from gears.data.moments import ConditionMoments, condition_chunks, condition_moments


def direct(dense: np.ndarray, ids: np.ndarray, n_conditions: int) -> dict[str, np.ndarray]:
    """Moments from their definition, in extended precision."""
    rows = [dense[ids == i].astype(np.longdouble) for i in range(n_conditions)]
    means = [x.mean(axis=0) if len(x) else np.zeros(dense.shape[1]) for x in rows]
    found = {"mean": np.array(means, dtype=float)}
    for order in (2, 3, 4):
        found[f"m{order}"] = np.array(
            [
                ((x - mean) ** order).mean(axis=0) if len(x) else np.zeros(dense.shape[1])
                for x, mean in zip(rows, means, strict=True)
            ],
            dtype=float,
        )
    found["nonzero"] = np.array(
        [(x != 0).mean(axis=0) if len(x) else np.zeros(dense.shape[1]) for x in rows], float
    )
    return found


def assert_equal(
    moments: ConditionMoments, expected: dict[str, np.ndarray], tolerance: float = 1e-12
) -> None:
    np.testing.assert_allclose(moments.mean, expected["mean"], rtol=tolerance, atol=tolerance)
    for order in (2, 3, 4):
        np.testing.assert_allclose(
            moments.central(order), expected[f"m{order}"], rtol=tolerance, atol=tolerance
        )
    np.testing.assert_allclose(moments.nonzero, expected["nonzero"], rtol=tolerance)


def sample(
    seed: int, n_cells: int = 60, n_genes: int = 7, n_conditions: int = 4
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    dense = (rng.gamma(2.0, 1.0, (n_cells, n_genes)) * (rng.random((n_cells, n_genes)) < 0.4)).astype(
        np.float32
    )
    return dense, rng.integers(0, n_conditions, n_cells)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), chunk_values=st.integers(1, 300))
def test_moments_equal_their_definition_for_any_chunk_size(seed: int, chunk_values: int) -> None:
    dense, ids = sample(seed)
    moments = condition_moments(sparse.csr_matrix(dense), ids, 4, chunk_values=chunk_values)
    assert_equal(moments, direct(dense, ids, 4))
    assert moments.n.tolist() == np.bincount(ids, minlength=4).tolist()


def test_merging_in_any_order_gives_the_same() -> None:
    dense, ids = sample(3)
    parts = []
    for cells in np.array_split(np.random.default_rng(0).permutation(len(ids)), 5):
        part = ConditionMoments(4, dense.shape[1])
        part.update(sparse.csr_matrix(dense[cells]), ids[cells])
        parts.append(part)
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1]):
        total = ConditionMoments(4, dense.shape[1])
        for i in order:
            total.merge(parts[i])
        assert_equal(total, direct(dense, ids, 4))


def test_merging_something_empty_changes_nothing() -> None:
    dense, ids = sample(5)
    moments = condition_moments(sparse.csr_matrix(dense), ids, 4)
    before = [moments.mean.copy(), *(moments.central(k).copy() for k in (2, 3, 4))]
    moments.merge(ConditionMoments(4, dense.shape[1]))
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
    chunks = list(condition_chunks(sparse.csr_matrix(dense), ids, chunk_values=70))
    assert sorted(np.concatenate(chunks).tolist()) == list(range(200))
    assert max(len(np.unique(ids[rows])) for rows in chunks) <= 70 // 7


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="one id per row"):
        ConditionMoments(2, 3).update(sparse.csr_matrix((4, 3)), np.zeros(5, dtype=int))
    with pytest.raises(ValueError, match="cannot merge"):
        ConditionMoments(2, 3).merge(ConditionMoments(2, 4))
