"""How far it is through the package: files and functions that run on four walks. The numbers may only fall."""

import os
import subprocess
import sys
from pathlib import Path

WALKS = Path(__file__).parents[1] / "tools" / "walks.py"
MOST: dict[str, tuple[int, int | None]] = {
    "label to loss": (79, 966),
    "GPU ids to trained model": (92, None),  # which functions wait for workers depends on the moment
    "condition to figure": (20, 155),
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
    longer = []
    for name, *numbers in rows:
        for number, most in zip(map(int, numbers), MOST[name], strict=True):
            if most is not None and number > most:
                longer.append(f"{name}: {number} files or functions; at most {MOST[name]}")
    assert not longer
