"""Fixtures of the data room."""

import pytest

from gears.data.screen.prepare import prepare_screen


@pytest.fixture(scope="session")
def toy_screen(toy_template, tmp_path_factory):
    """The toy screen, prepared once; tests must not write into it."""
    return prepare_screen(toy_template, tmp_path_factory.mktemp("toy") / "toy")


@pytest.fixture(scope="session")
def norman(shared, tmp_path_factory):
    """The real subset of the Norman screen, prepared once."""
    from anndata import read_h5ad

    adata = read_h5ad(shared / "data" / "norman2019_subset.h5ad")
    return prepare_screen(adata, tmp_path_factory.mktemp("norman") / "norman")
