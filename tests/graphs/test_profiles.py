"""Correlation profiles of genes over control cells."""

import numpy as np
import pytest
from scipy import sparse
from test_effects import cosines

from gears.data.screen._cells import CellMatrix
from gears.graphs._profiles import correlation_profiles


def stored(folder, values_NG):
    """Cells on disk, as in a prepared screen."""
    folder.mkdir()
    CellMatrix.write(folder, sparse.csr_matrix(values_NG.astype(np.float32)))
    return CellMatrix(folder, values_NG.shape[1])


def modules(n_cells, n_genes=60, n_modules=3, seed=0):
    """Cells whose genes follow one of a few programmes, and the programme of each gene."""
    draw = np.random.default_rng(seed)
    module_G = np.arange(n_genes) % n_modules
    activity_NM = draw.standard_normal((n_cells, n_modules))
    return 5 + 0.5 * activity_NM[:, module_G] + draw.standard_normal((n_cells, n_genes)), module_G


def test_with_all_components_cosines_are_those_of_whole_correlation_profiles(tmp_path):
    values_NG, _ = modules(200)
    found = correlation_profiles(stored(tmp_path / "cells", values_NG), [np.arange(200)], n_components=60)
    expected = cosines(np.corrcoef(values_NG.T))
    np.testing.assert_allclose(cosines(found), expected, atol=2e-4)


def test_contexts_do_not_make_genes_similar(tmp_path):
    draw = np.random.default_rng(1)
    values_NG = 5 + draw.standard_normal((400, 40))
    values_NG[200:, :20] += 6  # half of the genes differ between the two contexts
    cells = stored(tmp_path / "cells", values_NG)
    mixed = cosines(correlation_profiles(cells, [np.arange(400)]))
    within = cosines(correlation_profiles(cells, [np.arange(200), np.arange(200, 400)]))
    assert mixed[:20, :20].min() > 0.9
    assert np.abs(within[:20, :20] - np.eye(20)).mean() < 0.3


def test_constant_genes_have_no_profile_and_change_no_other(tmp_path):
    values_NG, _ = modules(100, n_genes=30)
    with_constant = np.concatenate([values_NG, np.full((100, 1), 0.1), np.zeros((100, 1))], axis=1)
    found = correlation_profiles(stored(tmp_path / "one", with_constant), [np.arange(100)], n_components=30)
    without = correlation_profiles(stored(tmp_path / "two", values_NG), [np.arange(100)], n_components=30)
    assert np.isnan(found[30:]).all()
    np.testing.assert_allclose(cosines(found[:30]), cosines(without), atol=2e-4)


@pytest.mark.parametrize("n_cells", [1, 2])
def test_a_control_of_hardly_any_cells(tmp_path, n_cells):
    values_NG, _ = modules(5)
    found = correlation_profiles(stored(tmp_path / "cells", values_NG), [np.arange(n_cells)])
    assert len(found) == values_NG.shape[1]
    assert np.isnan(found).all() == (n_cells < 2)
