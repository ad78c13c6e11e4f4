"""Trainings with ``reproducible=True`` as checksums; in the tests' process and in spawned ones."""

import hashlib
import json
from pathlib import Path
from typing import Any

from exact_cases import group

from gears import GEARS, PertData
from gears.distributed import cleanup_ddp
from gears.training._workers import plain_state

CASES: dict[str, dict[str, Any]] = {
    "cells": {
        "objective": "cells", "prior": None, "batch_size": 32, "clip_norm": 0.5, "use_ema": True,
        "accumulation_steps": 2, "model": {"uncertainty": True, "uncertainty_kind": "nll"},
    },
    "moments": {"prior": None, "batch_size": 18, "use_amp": True},
    "prior": {"batch_size": 18},
}  # fmt: skip
"""Options by case; ``batch_size`` is that of all workers."""


def opened(folder: Path) -> PertData:
    """The screen of the tests with its split."""
    data = PertData(folder, default_pert_graph=False)
    data.load("small")
    data.prepare_split("simulation", train_gene_set_size=0.8, combo_seen2_train_frac=0.8, seed=3)
    return data


def trained(data: PertData, name: str, rank: int = 0, world_size: int = 1, **more: Any) -> dict[str, str]:
    """Checksums of a run's weights, history and predictions."""
    options = {"reproducible": True, "steps": 4, "verbose": False, "evaluate_test": False, **CASES[name], **more}
    size = options.pop("batch_size") // world_size // options.get("accumulation_steps", 1)
    data.dataloader = {}
    if options.get("objective") == "cells":
        data.get_dataloader_distributed(size, None, world_size, rank, 0)
    gears = GEARS(data, device="cpu")
    gears.model_initialize(hidden_size=16, **options.pop("model", {}))
    result = gears.train(**options, batch_size=size)
    history = [{key: v for key, v in record.items() if key != "seconds"} for record in result.history]
    weights = [plain_state(module).values() for module in (gears.model, gears.best_model)]
    predicted = gears.predict(gears.pert_list[:20]).delta_UG
    return {
        "weights": _sha256(*(tensor.numpy().tobytes() for state in weights for tensor in state)),
        "history": _sha256(json.dumps(history).encode()),
        "predictions": _sha256(predicted.tobytes()),
    }


def work(rank: int, world_size: int, folder: str, results: str) -> None:
    """Each case by all workers, begun here and continued from a checkpoint of one worker."""
    cleanup_ddp()
    out, data = Path(results), opened(Path(folder))
    with group(out, rank, world_size):
        found = {
            name: {
                "begun": trained(data, name, rank, world_size),
                "resumed": trained(data, name, rank, world_size, save_path=str(out / name), resume=True),
            }
            for name in CASES
        }
    (out / f"found-{rank}.json").write_text(json.dumps(found))


def _sha256(*parts: bytes) -> str:
    checksum = hashlib.sha256()
    for part in parts:
        checksum.update(part)
    return checksum.hexdigest()
