"""How far it is through the package: files and functions that run on four walks. The numbers may only fall."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

WALKS = Path(__file__).parents[1] / "tools" / "walks.py"
MOST = {
    "label to loss": (88, 1009),
    "GPU ids to trained model": (90, 10_000),  # which functions wait for workers depends on the moment
    "condition to figure": (26, 196),
    "train to loss": (4, 7),
}
"""Most files and functions of each walk."""


def test_walks_do_not_get_longer(tmp_path: Path) -> None:
    """In a process and a home of its own: what a cache holds is a function that does not run."""
    environment = os.environ | {"HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(WALKS)]
    output = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in output.splitlines()[2:]]
    assert {name for name, *_ in rows} == MOST.keys()
    assert not [
        f"{name}: {n_files} files, {n_functions} functions; at most {MOST[name]}"
        for name, n_files, n_functions in rows
        if int(n_files) > MOST[name][0] or int(n_functions) > MOST[name][1]
    ]
