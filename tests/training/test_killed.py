"""Runs killed at random moments: what is on disk is whole, and the run ends as one that was never killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from anndata import AnnData
from driving import found_by

from gears import PertData

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork a process")
DRIVER = Path(__file__).with_name("killed.py")


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workers", [1, 2])
def test_killed_at_fifty_random_moments(workers: int, small_screen_adata: AnnData, tmp_path: Path) -> None:
    """The small form: distributed/test_kills_and_faults.py."""
    PertData(tmp_path, default_pert_graph=False).new_data_process("small", small_screen_adata)
    found = found_by(DRIVER, tmp_path, workers, 50, 7)
    assert found["kills"] == 50
    assert found["with a checkpoint"] > 10
    assert found["within a write"] > 0, "no kill hit a write: the moments show nothing"
