"""Train, predict and save in many modes on a pretended GPU and on the CPU, and compare.

    python tests/fakecuda/modes.py [NAME ...]      all modes, or those named

One JSON object: for each mode the largest relative difference in training losses, validation errors and predicted
changes, and the operations that mixed devices.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fakecuda

# isort: split

import numpy as np
import torch
from screens import prepared

from gears import GEARS, PertData

GPU = "cuda:1"  # not the first: what goes to the default device by mistake meets another one


@dataclass(frozen=True)
class Mode:
    """One way to train: options of the training and of the model, and the screen."""

    train: dict[str, Any]
    model: dict[str, Any] = field(default_factory=dict)
    screen: str = "small"


def cells(steps: int = 4, **more: Any) -> dict[str, Any]:
    return {"objective": "cells", "prior": None, "steps": steps, **more}


def moments(steps: int = 4, **more: Any) -> dict[str, Any]:
    return {"objective": "moments", "prior": None, "steps": steps, "batch_size": 6, **more}


UNCERTAIN = {"uncertainty": True}
MODES = {
    "two epochs of accumulation, moving average, clipping": Mode(
        cells(6, use_ema=True, accumulation_steps=3, clip_norm=1.0)
    ),
    "uncertainty": Mode(moments(), UNCERTAIN),
    "published uncertainty, contexts": Mode(
        cells(), {**UNCERTAIN, "uncertainty_kind": "gears", "direction": "sign"}, screen="lines"
    ),
    "evidence, contexts": Mode(moments(), {"loss": "evidence", "mask_target": True}, screen="lines"),
    "prior": Mode({"steps": 4, "dtype": "float64"}),
    "bfloat16": Mode(cells(use_amp=True)),
    "float16": Mode(cells(use_amp=True, amp_dtype="float16", init_scale=2.0**10, lr=1e-3)),
    "saved, resumed": Mode(moments(4, checkpoint_every_steps=2)),
}


def made(data: PertData, mode: Mode, device: str) -> GEARS:
    model = GEARS(data, device=device)
    model.model_initialize(hidden_size=16, seed=1, **mode.model)
    return model


def outcome(mode: Mode, device: str, folder: Path, *, resumed: bool) -> dict[str, Any]:
    """What a mode leaves on one device."""
    data = prepared(folder, mode.screen)
    options = {**mode.train, "verbose": False, "evaluate_test": False}
    if resumed:
        options["save_path"] = str(folder / f"saved-{device.replace(':', '')}")
    fakecuda.reset()
    model = made(data, mode, device)
    result = model.train(**options)
    if resumed:
        options["steps"] += 2
        made(data, mode, device).train(**options, resume=True)
        model = GEARS.from_pretrained(options["save_path"], device=device)
    genes = [list(one.genes) for one in data.screen.conditions if not one.is_control][:4]
    weights = next(iter(model.model.parameters()))
    assert weights.device == torch.device(device), f"the model is on {weights.device}, not on {device}"
    return {
        "losses": [epoch["train_loss"] for epoch in result.history],
        "validation": [epoch.get("val_mse", float("nan")) for epoch in result.history],
        "changes": model.predict(genes).delta_UG,
        "mixed": fakecuda.report()["mixed"],
    }


def difference(found: Any, expected: Any) -> float:
    """Largest difference, relative to the largest expected value; NaN equals NaN."""
    a, b = np.asarray(found, float), np.asarray(expected, float)
    if a.shape != b.shape:
        return float("inf")
    there = ~(np.isnan(a) & np.isnan(b))
    scale = max(np.abs(b[there]).max(initial=0.0), 1e-9)
    return float((np.abs(a - b)[there] / scale).max(initial=0.0))


def compare(name: str, folder: Path) -> dict[str, Any]:
    """Differences between both devices by quantity."""
    resumed = name == "saved, resumed"
    expected, found = (outcome(MODES[name], device, folder, resumed=resumed) for device in ("cpu", GPU))
    differences = {what: difference(found[what], expected[what]) for what in ("losses", "validation", "changes")}
    return {**differences, "mixed": found["mixed"]}


def main(folder: Path, names: list[str]) -> dict[str, Any]:
    return {name: compare(name, folder) for name in names or MODES}


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("gears").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        print("FOUND " + json.dumps(main(Path(folder), sys.argv[1:])))
