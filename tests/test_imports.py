"""What `import gears` and a worker process pay for: no package that only one feature needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

OF_ONE_FEATURE = {"scanpy", "jinja2", "pooch", "matplotlib"}


@pytest.mark.parametrize("imported", ["gears", "gears.jobs.job"])
def test_packages_of_one_feature_are_imported_where_they_are_used(imported: str, tmp_path: Path) -> None:
    check = (
        f"import sys, {imported}\n"
        f"from gears import GEARS, PertData\n"
        f"heavy = {OF_ONE_FEATURE!r} & set(sys.modules)\n"
        "sys.exit(f'imported {sorted(heavy)}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
