"""Damaged files of every kind that the package reads: a refusal that names the file, or no effect at all."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from mutating import Bench
from readers import READERS

DRIVER = Path(__file__).with_name("mutating.py")
IN_HDF5 = ("h5ad", "ten_x")
"""Should damage bring HDF5's own library down, it takes a fork down, not the tests."""


@pytest.fixture(scope="module")
def bench(toy_template, tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("bench"), toy_template)


@pytest.mark.parametrize("name", sorted(READERS))
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_damage_is_named_or_without_effect(bench, name):
    draw, fork = random.Random(f"{name} 1"), name in IN_HDF5 and hasattr(os, "fork")
    found = [bench.try_once(READERS[name], draw, fork=fork) for _ in range(8)]
    assert not [f"{done} -> {verdict}" for done, verdict in found if verdict.startswith("WRONG")]
    # a cache is built again instead
    assert any(verdict == "refused" for _, verdict in found) or name == "cache"


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork a process")
def test_six_hundred_damaged_files(toy_template, tmp_path):
    """Each in a process with a limit of time and memory."""
    toy_template.write_h5ad(tmp_path / "toy.h5ad")
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(tmp_path / "bench"), str(tmp_path / "toy.h5ad"), "600", "3"],
        capture_output=True, text=True, timeout=3500, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("FOUND "))[6:])
    print({key: value for key, value in found.items() if key != "wrong"})
    assert found["tries"] == 600
    assert found["wrong"] == []
