"""Damaged files of every kind that the package writes: a refusal that names the file, or no effect at all."""

import os
import random
from pathlib import Path

import pytest
from driving import found_by
from mutating import Bench
from readers import READERS

DRIVER = Path(__file__).with_name("mutating.py")


@pytest.fixture(scope="module")
def bench(toy_template, tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("bench"), toy_template)


@pytest.mark.parametrize("name", sorted(READERS))
def test_damage_is_named_or_without_effect(bench, name):
    draw = random.Random(f"{name} 1")
    found = [bench.try_once(READERS[name], draw, fork=False) for _ in range(8)]
    assert not [f"{done} -> {verdict}" for done, verdict in found if verdict.startswith("WRONG")]
    # a cache is built again instead
    assert any(verdict == "refused" for _, verdict in found) or name == "cache"


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork a process")
def test_six_hundred_damaged_files(toy_template, tmp_path):
    """Each in a process with a limit of time and memory."""
    toy_template.write_h5ad(tmp_path / "toy.h5ad")
    found = found_by(DRIVER, tmp_path / "bench", tmp_path / "toy.h5ad", 600, 3)
    assert found["tries"] == 600
    assert found["wrong"] == []
