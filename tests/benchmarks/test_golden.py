"""Loss curves stay where they are; the script compares those of 1, 2 and 4 workers."""

from __future__ import annotations

import copy
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def golden() -> ModuleType:
    path = list(sys.path)
    spec = importlib.util.spec_from_file_location("golden_curves", FOLDER / "golden.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


@pytest.fixture(scope="module")
def kept(golden: ModuleType) -> dict:
    return json.loads(golden.KEPT.read_text())["curves"]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As the curves were kept: sums in another order move those of float32."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_curves_of_one_process_are_as_kept(golden: ModuleType, kept: dict, tmp_path: Path) -> None:
    golden.prepare(tmp_path)
    for case in golden.CASES:
        assert golden.moved(case, golden.curve(tmp_path, case), kept[case]) == ""


def test_a_small_change_is_seen(golden: ModuleType, kept: dict) -> None:
    case = "cells float64"
    changed = copy.deepcopy(kept[case])
    changed["train_loss"][2] *= 1 + 1e-5
    assert golden.moved(case, changed, kept[case]).startswith("moved by 1.0e-05")
    changed = {**kept[case], "best_epoch": 99}
    assert golden.moved(case, changed, kept[case]).startswith("best epoch 99, kept")
