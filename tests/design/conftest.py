"""A small screen with pairs, and its prior."""

import pytest
from small_models import trained_on

from gears import PertData
from gears.simulate import simulated_screen


@pytest.fixture(scope="session")
def design_screen(tmp_path_factory):
    adata, truth = simulated_screen(n_genes=60, n_singles=24, n_pairs=20, cells_per_condition=40, n_control=200, seed=5)
    data = PertData(tmp_path_factory.mktemp("design"), default_pert_graph=False)
    data.new_data_process("screen", adata)
    data.prepare_split("simulation", seed=1)
    return data, truth


@pytest.fixture(scope="session")
def pert_data(design_screen):
    return design_screen[0]


@pytest.fixture(scope="session")
def model(pert_data):
    return trained_on(pert_data)
