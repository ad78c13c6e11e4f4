"""Runs killed at random moments: what is on disk is whole, and the run ends as one that was never killed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from driving import found_by

from gears import PertData

if TYPE_CHECKING:
    from anndata import AnnData

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork a process")
DRIVER = Path(__file__).with_name("killed.py")


def killed(adata: AnnData, folder: Path, workers: int, moments: int) -> dict[str, Any]:
    data = PertData(folder, default_pert_graph=False)
    data.new_data_process("small", adata)
    return found_by(DRIVER, folder, workers, moments, 7)


@pytest.mark.slow
def test_two_workers_killed_at_two_random_moments(small_screen_adata: AnnData, tmp_path: Path) -> None:
    assert killed(small_screen_adata, tmp_path, 2, 2)["kills"] == 2


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workers", [1, 2])
def test_killed_at_fifty_random_moments(workers: int, small_screen_adata: AnnData, tmp_path: Path) -> None:
    found = killed(small_screen_adata, tmp_path, workers, 50)
    assert found["kills"] == 50
    assert found["with a checkpoint"] > 10
    assert found["within a write"] > 0, "no kill hit a write: the moments show nothing"
