"""Moments: equal to the definition, whatever the chunks, and robust where raw sums are not."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from gears.data.screen.files import STATISTICS
from gears.data.screen.moments import ConditionMoments, condition_moments
from gears.data.screen.prepare import prepare_screen


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
    np.testing.assert_array_equal(total.above, whole.above)
    np.testing.assert_array_equal(total.below, whole.below)


def test_screen_keeps_shares_about_its_control_mean(toy_template, tmp_path):
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
