"""The shared fixtures are what their docstrings say."""

import numpy as np
from scipy import sparse


def test_toy_layout(toy_adata):
    assert toy_adata.shape == (216, 30)
    assert sparse.issparse(toy_adata.X)
    assert toy_adata.X.dtype == np.float32
    counts = toy_adata.obs["condition"].value_counts()
    assert counts["ctrl"] == 60
    assert set(counts.drop("ctrl")) == {12}
    assert len(counts) == 14
    assert toy_adata.var_names[0] == "ENS000"
    assert toy_adata.var["gene_name"].tolist()[-1] == "GX29"


def test_toy_copies_are_independent(toy_adata, toy_template):
    toy_adata.X.data[:] = 0
    toy_adata.obs["condition"] = "x"
    assert toy_template.X.sum() > 0
    assert (toy_template.obs["condition"] == "ctrl").sum() == 60


def test_toy_go(toy_go):
    assert len(toy_go) == 30
    assert all(len(terms) == 5 for terms in toy_go.values())
