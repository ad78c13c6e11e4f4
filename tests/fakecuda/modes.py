"""Train, predict and save in many modes on a pretended GPU and on the CPU, and compare.

    python tests/fakecuda/modes.py [NAME ...]      all modes, or those named; --list names them

One JSON object: for each mode the largest relative difference in training losses, validation errors and predicted
changes, and the operations that mixed devices.
"""

from __future__ import annotations

import argparse
import json
import logging
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


def cells(epochs: int = 1, **more: Any) -> dict[str, Any]:
    return {"objective": "cells", "prior": None, "epochs": epochs, **more}


def moments(epochs: int = 1, **more: Any) -> dict[str, Any]:
    return {"objective": "moments", "prior": None, "epochs": epochs, "batch_size": 6, **more}


UNCERTAIN = {"uncertainty": True}
MODES = {
    "cells": Mode(cells(2)),
    "moments": Mode(moments(2)),
    "uncertainty, cells": Mode(cells(), UNCERTAIN),
    "uncertainty, moments": Mode(moments(), UNCERTAIN),
    "published uncertainty": Mode(cells(), {**UNCERTAIN, "uncertainty_kind": "gears", "direction": "sign"}),
    "evidence": Mode(moments(), {"loss": "evidence", "mask_target": True}),
    "prior": Mode({"epochs": 1, "dtype": "float64"}),
    "moving average": Mode(cells(use_ema=True)),
    "bfloat16": Mode(cells(use_amp=True)),
    "float16": Mode(cells(use_amp=True, amp_dtype="float16", init_scale=2.0**10, lr=1e-3)),
    "accumulation, clipping": Mode(cells(accumulation_steps=3, clip_norm=1.0)),
    "saved, resumed": Mode(moments(3, checkpoint_every=1)),
    "contexts": Mode(moments(), screen="lines"),
    "contexts, cells": Mode(cells(), screen="lines"),
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
        options["epochs"] += 1
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
    differences = {
        what: difference(found[what], expected[what]) for what in ("losses", "validation", "changes")
    }
    return {**differences, "mixed": found["mixed"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="modes (all)")
    parser.add_argument("--list", action="store_true", help="list the modes")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(MODES))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = {name: compare(name, Path(folder)) for name in arguments.names or MODES}
    print("FOUND " + json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("gears").setLevel(logging.ERROR)
    main()
