"""Training on a pretended GPU: the results of the CPU, and what a step costs a GPU.

The budgets are upper bounds, measured; they may only fall. They do not depend on the sizes of screen and model.
"""

from typing import Any

import pytest
from pretending import pretended

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# The CPU has no gradient scaling: rounding differs.
DIFFERENT = {"float16": 5e-3}
# Operators and copies of a step; the names are those of fakecuda/checks.py.
BUDGETS = {
    "cells": (430, 4),
    "moments": (437, 2),
    "cells, uncertainty": (572, 4),
    "moments, uncertainty": (577, 2),
    "cells, use_amp": (520, 4),
    "moments, reproducible": (5561, 24),  # twelve shards
    "head": (55, 1),
}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return pretended("checks.py")


def test_every_mode_is_that_of_the_cpu(found: dict[str, Any]) -> None:
    for name, differences in found["modes"].items():
        assert differences.pop("mixed") == {}, f"{name}: operations that mix devices"
        assert max(differences.values()) <= DIFFERENT.get(name, 1e-6), f"{name}: {differences}"


@pytest.mark.parametrize("case", BUDGETS)
def test_a_step_asks_for_no_more_than_its_budget(case: str, found: dict[str, Any]) -> None:
    counts, (operators, copies) = found["steps"][case], BUDGETS[case]
    assert counts["operators_per_step"] <= operators
    assert counts["mixed"] == {}
    assert sum(counts["waits"].values()) <= 1
    assert counts["copies"].get("blocking", 0) == 0
    assert counts["copies"]["to_device"] <= counts["steps"] * copies


def test_nothing_is_asked_of_gpus_where_it_should_not_be(found: dict[str, Any]) -> None:
    places = found["places"]
    assert not any(places["chosen"].values()), "choosing devices initialises CUDA in the process that starts workers"
    assert not places["refused"]["initialised"]
    assert "visible: 0, 1" in places["refused"]["message"]
    for name, counts in places["on the CPU"].items():
        assert not any(counts.values()), f"a run on the CPU, {name}: {counts}"
    assert places["pinned"] > 0
    assert places["copied to prepare"] == 0
    ranked = places["ranked on two"]
    assert ranked["same"]
    assert ranked["kernels"] > 0
    assert ranked["mixed"] == {}
    assert places["under torchrun"] == ["cuda:1", "cuda:1", "cuda:0", "cpu"]


def test_what_is_advised_where_the_memory_is_full_lowers_the_peak(found: dict[str, Any]) -> None:
    peak = found["memory"]
    assert peak["moments, 16"] < 0.8 * peak["moments, 32"]
    assert peak["cells, 2 x 16"] < 0.85 * peak["cells, 32"]
    assert peak["cells, 32, use_amp"] > peak["cells, 32"], "mixed precision now helps: advise it"
