"""Training on a pretended GPU: the results of the CPU, and what a step costs a GPU.

The budgets are upper bounds, measured; they may only fall. They do not depend on the sizes of screen and model.
"""

from __future__ import annotations

from typing import Any

import pytest
from pretending import pretended

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# The CPU has no gradient scaling: rounding differs.
DIFFERENT = {"float16": 5e-3}
BUDGETS: dict[str, dict[str, Any]] = {
    "cells": {"operators": 430, "copies": 4},
    "moments": {"operators": 437, "copies": 2},
    "cells --model uncertainty=True": {"operators": 572, "copies": 4},
    "moments --model uncertainty=True": {"operators": 577, "copies": 2},
    "cells --train use_amp=True": {"operators": 520, "copies": 4},
    "moments --train reproducible=True": {"operators": 5561, "copies": 24},  # twelve shards
    "head": {"operators": 55, "copies": 1},
}
STEPS = 16


def test_every_mode_is_that_of_the_cpu() -> None:
    for name, found in pretended("modes.py").items():
        assert found.pop("mixed") == {}, f"{name}: operations that mix devices"
        assert max(found.values()) <= DIFFERENT.get(name, 1e-6), f"{name}: {found}"


@pytest.mark.parametrize("options", BUDGETS)
def test_a_step_asks_for_no_more_than_its_budget(options: str) -> None:
    budget = BUDGETS[options]
    found = pretended("counting.py", *options.split(), "--steps", STEPS)
    assert found["operators_per_step"] <= budget["operators"]
    assert found["mixed"] == {}
    copies = found["copies"]
    # an epoch over moments, or of the head, ends within these steps: its evaluation and its sums are read as well
    epochs = 0 if options.startswith("cells") else 1
    assert sum(found["waits"].values()) <= 1 + 2 * epochs
    assert copies.get("blocking", 0) <= epochs
    assert copies["to_device"] <= STEPS * budget["copies"] + epochs


def test_nothing_is_asked_of_gpus_where_it_should_not_be() -> None:
    found = pretended("places.py")
    assert not any(found["chosen"].values()), (
        "choosing devices initialises CUDA in the process that starts workers"
    )
    assert not found["refused"]["initialised"]
    assert "visible: 0, 1" in found["refused"]["message"]
    for name, counts in found["on the CPU"].items():
        assert not any(counts.values()), f"a run on the CPU, {name}: {counts}"
    assert found["pinned"] > 0
    assert found["copied to prepare"] == 0
    ranked = found["ranked on two"]
    assert ranked["same"]
    assert ranked["kernels"] > 0
    assert ranked["mixed"] == {}
    assert found["under torchrun"] == ["cuda:1", "cuda:1", "cuda:0", "cpu"]


def test_what_is_advised_where_the_memory_is_full_lowers_the_peak() -> None:
    peak = pretended("memory.py")
    assert peak["moments, 16"] < 0.8 * peak["moments, 32"]
    assert peak["cells, 2 x 16"] < 0.85 * peak["cells, 32"]
    assert peak["cells, 32, use_amp"] > peak["cells, 32"], "mixed precision now helps: advise it"
