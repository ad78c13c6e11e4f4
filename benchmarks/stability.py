"""How much training amplifies rounding: two runs whose start differs by 1e-7 in one number.

    python benchmarks/run.py stability --priors None auto --epochs 20 --files SCREEN.h5ad

For each screen, prior and setting of learning rate, schedule and epochs: differences of predicted changes of validation
and test conditions between the two runs (largest and median), beside the median standard error of the measured changes,
and the error on the validation conditions (mean square over genes) with a 95 % interval of its paired difference from
the first setting. With `prior=auto` the predictions are those of the model as it is used, with its head, whose start
is changed as well, and with the weight that the network got.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import anndata
import numpy as np
import torch
from measuring import Result, table
from screens import Screen, interval, resampled_means

from gears import GEARS, PertData
from gears.data.splits._split import perturbed_in
from gears.model.layers import SharedHead
from gears.simulate import simulated_screen
from gears.training import _head as head

NUDGE = 1e-7
SETTINGS: dict[str, dict[str, Any]] = {
    "lr 1e-2, one-cycle (default)": {},
    "lr 3e-3, one-cycle": {"lr": 3e-3},
    "lr 1e-3, one-cycle": {"lr": 1e-3},
    "lr 1e-2, cosine": {"schedule": "cosine"},
    "lr 3e-3, one-cycle, twice the epochs": {"lr": 3e-3, "longer": 2},
}
SIMULATED = {
    "simulated, mostly additive": {"interaction_share": 0.1, "seed": 3},
    "simulated, with interactions": {"interaction_share": 0.6, "seed": 4},
}
SIZE = {"n_genes": 200, "n_singles": 60, "n_pairs": 40, "cells_per_condition": 20, "n_control": 200}


class NudgedHead(SharedHead):
    """A head whose first weight is 1e-7 larger."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        with torch.no_grad():
            self.weights[0].view(-1)[0] += NUDGE


def trained(data: PertData, *, nudged: bool, **options: Any) -> dict[str, Any]:
    """Predicted changes of a run, (validation conditions, G) and (test conditions, G), and the network weight."""
    model = GEARS(data, device="cpu")
    model.model_initialize(hidden_size=64, seed=1)
    if nudged:
        with torch.no_grad():
            model.model.gene_emb.weight[0, 0] += NUDGE
    with mock.patch.object(head, "SharedHead", NudgedHead if nudged else SharedHead):
        model.train(**options, verbose=False, evaluate_test=False)
    found = {part: model.predict(perturbed_in(data.split, part)).delta_UG for part in ("val", "test")}
    prior = model.parts.prior
    return {**found, "weight": None if prior is None else prior.network_weight}


def of_setting(data: PertData, prior: str | None, epochs: int, setting: dict[str, Any]) -> dict[str, Any]:
    """Differences of two runs, and the validation error of each condition."""
    options = dict(setting)
    epochs *= options.pop("longer", 1)
    one, two = (
        trained(data, nudged=nudged, prior=prior, epochs=epochs, early_stopping=None, **options)
        for nudged in (False, True)
    )
    apart = np.concatenate([np.abs(one[part] - two[part]).ravel() for part in ("val", "test")])
    statistics, screen = data.screen.statistics, data.screen
    ids = [screen.id_of(condition) for condition in perturbed_in(data.split, "val")]
    return {
        "largest": float(apart.max()),
        "median": float(np.median(apart)),
        "error_U": ((one["val"] - statistics.delta(np.array(ids))) ** 2).mean(axis=1),
        "weights": (one["weight"], two["weight"]),
    }


def standard_error(data: PertData) -> float:
    """Median standard error of the measured changes of validation and test conditions, genes without a count aside."""
    screen = data.screen
    ids = [screen.id_of(condition) for part in ("val", "test") for condition in perturbed_in(data.split, part)]
    statistics, control = screen.statistics, int(screen.control_id)
    variance_UG = np.asarray(statistics.m2[ids], dtype=np.float64)
    n_U1 = np.asarray(statistics.n[ids], dtype=np.float64)[:, None]
    of_control_G = np.asarray(statistics.m2[control], dtype=np.float64) / float(statistics.n[control])
    error_UG = np.sqrt(variance_UG / n_U1 + of_control_G)
    return float(np.median(error_UG[error_UG > 0]))


def stability(
    files: tuple[Path, ...] = (),
    no_simulated: bool = False,
    priors: tuple[str, ...] = ("None", "auto"),
    settings: tuple[int, ...] = tuple(range(len(SETTINGS))),
    epochs: int = 20,
    small: bool = False,
) -> Iterator[Result]:
    """Differences of two runs by screen, prior and setting."""
    rows: list[dict[str, Any]] = []
    size = SIZE | ({"n_genes": 60, "n_singles": 20, "n_pairs": 10} if small else {})
    screens = [
        Screen(name, None, simulated_screen(**size, **options)[0])
        for name, options in ({} if no_simulated else SIMULATED).items()
    ]
    for screen in [*screens, *(Screen(path.stem, None, anndata.read_h5ad(path)) for path in files)]:
        with screen.prepared() as data:
            data.prepare_split("simulation", seed=1)
            se = standard_error(data)
            for prior in priors:
                found: list[dict[str, Any]] = []
                for label in (list(SETTINGS)[number] for number in settings):
                    found.append(of_setting(data, None if prior == "None" else prior, epochs, SETTINGS[label]))
                    row = {"screen": screen.name, "prior": prior, "setting": label}
                    rows.append(row | shown(found[-1], found[0], se))
                    print(rows[-1], flush=True)
                    record = {"epochs": epochs, "rows": rows}
                    yield Result("How much training amplifies rounding", table(rows), record)


def shown(found: dict[str, Any], first: dict[str, Any], se: float) -> dict[str, Any]:
    """Figures of a row."""
    low, high = interval(resampled_means(found["error_U"] - first["error_U"]))
    weights = [f"{weight:g}" for weight in found["weights"] if weight is not None]
    return {
        "largest": found["largest"],
        "median": found["median"],
        "standard error": se,
        "median / standard error": found["median"] / se,
        "validation error": float(found["error_U"].mean()),
        "its difference from the first, 95 %": "" if found is first else f"{low:+.1e} to {high:+.1e}",
        "network weights": " and ".join(weights),
    }
