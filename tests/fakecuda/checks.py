"""What the tests look at on the pretended GPU, in one process: importing torch and the package costs most.

python tests/fakecuda/checks.py
"""

from __future__ import annotations

import json
import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any

import fakecuda  # noqa: F401  (before torch)

# isort: split

import counting
import memory
import modes
import places
import torch
from screens import prepared

STEPS = 1
UNCERTAIN = {"uncertainty": True}
COUNTED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "cells": ({}, {"objective": "cells"}),
    "moments": ({}, {"objective": "moments"}),
    "cells, uncertainty": (UNCERTAIN, {"objective": "cells"}),
    "moments, uncertainty": (UNCERTAIN, {"objective": "moments"}),
    "cells, use_amp": ({}, {"objective": "cells", "use_amp": True}),
    "moments, reproducible": ({}, {"objective": "moments", "reproducible": True}),
    "head": ({}, {"prior": "auto", "steps": 1}),  # the steps of the network stay the same
}
"""Options of the model and of the training."""


def main(folder: Path) -> dict[str, Any]:
    for name in ("places", "modes", "memory", "steps"):
        (folder / name).mkdir()
    found: dict[str, Any] = {
        "places": places.main(folder / "places"),
        "modes": modes.main(folder / "modes", []),
        "memory": memory.main(folder / "memory"),
    }
    data = prepared(folder / "steps", "counted", batch_size=32)
    found["steps"] = {name: counting.per_step(data, STEPS, *options) for name, options in COUNTED.items()}
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("gears").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        print("FOUND " + json.dumps(main(Path(folder))))
