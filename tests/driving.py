"""Drivers of tests that kill processes: scripts that say what they found in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def found_by(driver: Path, *arguments: Any) -> dict[str, Any]:
    """Run a driver in a process of its own, show its line, and return what it says."""
    done = subprocess.run(
        [sys.executable, str(driver), *map(str, arguments)],
        capture_output=True, text=True, timeout=1500, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    print(line)
    found: dict[str, Any] = json.loads(line[6:])
    return found


def cut_off(path: Path, within: str) -> None:
    """Leave no checkpoint after the first one within an epoch."""
    files = sorted((path / "checkpoints").iterdir())
    last = next(file for file in files if file.name.startswith(within) and "step-0000000" not in file.name)
    for file in files[files.index(last) + 1 :]:
        file.unlink()
