"""The toy screen with a split, for the tests of training."""

import pytest
from anndata import AnnData
from driving import pert_data_of

from gears import PertData


@pytest.fixture(scope="module")
def pert_data(toy_template: AnnData, toy_go: dict, tmp_path_factory: pytest.TempPathFactory) -> PertData:
    """One for each module: 14 conditions of the toy screen, split by simulation with seed 1."""
    return pert_data_of(tmp_path_factory.mktemp("toy"), toy_template.copy(), gene2go=toy_go, split="simulation")
