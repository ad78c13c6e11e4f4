"""The toy screen with a split, for the tests of training."""

import pytest
from anndata import AnnData

from gears import PertData


@pytest.fixture(scope="module")
def pert_data(toy_template: AnnData, toy_go: dict, tmp_path_factory: pytest.TempPathFactory) -> PertData:
    """One for each module: 14 conditions of the toy screen, split by simulation with seed 1."""
    data = PertData(tmp_path_factory.mktemp("toy"), gene2go=toy_go, default_pert_graph=False)
    data.new_data_process("toy", toy_template.copy())
    data.prepare_split("simulation", seed=1)
    return data
