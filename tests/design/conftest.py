"""A small screen with pairs, and its prior."""

import pytest
from driving import pert_data_of
from small_models import trained_on

from gears.simulate import simulated_screen


@pytest.fixture(scope="session")
def design_screen(tmp_path_factory):
    adata, truth = simulated_screen(n_genes=60, n_singles=24, n_pairs=20, cells_per_condition=40, n_control=200, seed=5)
    return pert_data_of(tmp_path_factory.mktemp("design"), adata, "screen", split="simulation"), truth


@pytest.fixture(scope="session")
def pert_data(design_screen):
    return design_screen[0]


@pytest.fixture(scope="session")
def model(pert_data):
    return trained_on(pert_data)
