"""Many predictions, many rounds of everything: all end, and nothing grows."""

import os
import sys
from pathlib import Path

import pytest
from anndata import AnnData
from driving import found_by

SCRIPT = Path(__file__).with_name("soaking.py")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts open files as Linux does")


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_soak_of_minutes(tmp_path):
    """GEARS_SOAK seconds (60): open files, threads, children and memory as after the third round."""
    seconds = int(os.environ.get("GEARS_SOAK", "60"))
    found = found_by(SCRIPT, tmp_path, seconds)
    assert found["rounds"] > 10
    warm, end = found["warm"], found["end"]
    assert end["memory"] - warm["memory"] < 30.0, found
    for name in ("files", "threads", "children"):
        assert end[name] <= warm[name], (name, found)


KILLING = Path(__file__).with_name("killing.py")


def killed(adata: AnnData, folder: Path, moments: int) -> dict[str, dict[str, int]]:
    adata.write_h5ad(folder / "toy.h5ad")
    return found_by(KILLING, folder, folder / "toy.h5ad", moments, 5)


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
