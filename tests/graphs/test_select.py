"""Choice of the strongest neighbours: what the rough choice may not lose."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gears.graphs.graph import candidates, strongest


@given(
    st.integers(1, 5),
    st.integers(1, 60),
    st.integers(0, 12),
    st.sampled_from([0.0, 0.3, 0.8]),
    st.integers(0, 2**32 - 1),
)
def test_the_strongest_are_among_the_candidates(n_targets, n_sources, k, threshold, seed):
    weight_TS = np.random.default_rng(seed).integers(0, 8, (n_targets, n_sources)) / 7  # many ties
    target, source = np.divmod(np.arange(weight_TS.size), n_sources)
    expected = strongest(target, source, weight_TS.ravel(), threshold, k)
    target, source = candidates(weight_TS, threshold, k)
    found = strongest(target, source, weight_TS[target, source], threshold, k)
    for one, two in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_near_ties_at_the_last_place_stay_in(dtype):
    weight_TS = np.array([[0.2, 0.5, 0.5, 0.5, 0.1]], dtype=dtype)
    weight_TS[0, 3] = np.nextafter(weight_TS[0, 3], dtype(1))
    assert candidates(weight_TS, 0.0, 1)[1].tolist() == [1, 2, 3]
    weight_TS = np.array([[0.4, 0.5, 0.3]], dtype=dtype)
    weight_TS[0, 0] = np.nextafter(weight_TS[0, 0], dtype(0))  # the threshold, but for rounding
    assert candidates(weight_TS, 0.4, 3)[1].tolist() == [0, 1]


def test_few_of_many_are_looked_at():
    weight_TS = np.random.default_rng(0).random((20, 20_000))
    assert len(candidates(weight_TS, 0.0, 20)[0]) < 20 * 30
