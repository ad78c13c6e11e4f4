"""Preparing and saving killed at random moments (training and resuming: tests/training/test_killed.py)."""

import sys
from pathlib import Path

import pytest
from anndata import AnnData
from driving import found_by

DRIVER = Path(__file__).with_name("killing.py")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and replaces folders in one step as Linux does")


def killed(adata: AnnData, folder: Path, moments: int) -> dict[str, dict[str, int]]:
    adata.write_h5ad(folder / "toy.h5ad")
    return found_by(DRIVER, folder, folder / "toy.h5ad", moments, 5)


@pytest.mark.slow
def test_killed_while_preparing_and_saving(toy_template, tmp_path):
    found = killed(toy_template, tmp_path, 3)
    for states in found.values():
        assert states.get("first", 0) + states.get("second", 0) == 3


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_killed_a_hundred_times(toy_template, tmp_path):
    found = killed(toy_template, tmp_path, 50)
    for states in found.values():
        assert states["first"] + states["second"] == 50
        assert states["within a write"] > 5, "few kills hit a write: the moments show nothing"
