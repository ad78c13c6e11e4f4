"""A new line: with its controls alone, and with 1 to 10 conditions of its own.

    python benchmarks/run.py new_lines --seeds 10 11 12     simulated lines with known truth (settings.py)
    python benchmarks/run.py mcfaline --data FOLDER         the three lines of mcfaline2023_subset.h5ad

``new_lines``: five lines train, of the sixth `known` conditions; thirty others are predicted, the same for every
number. ``error`` is the sum of squared errors over that of squared true changes of a condition, ``pearson_ref`` the
correlation of its predicted and true departures from the mean change in the other lines. Differences from none are
paired over conditions, with 95 % intervals.

``mcfaline``: decisive metrics of the model less those of ``train_mean`` (the mean change of the other conditions, in
this line where it trains there), signs turned so that positive is better, with 95 % intervals over conditions: lines
held out in turn, single conditions of single lines, and a line with 0, 1, 3 and 5 of its conditions in training (the
same four are tested). Seeds draw these.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import settings
from measuring import Result, table
from screens import gained, interval, resampled_means

from gears import GEARS, PertData
from gears.evaluation import DECISIVE
from gears.evaluation.metrics import get_metric

OWN = (0, 1, 3, 5, 10)
SCORED = 10  # of the first conditions any may train, the others are scored


def _lines(kind: str, seed: int, n_known: int) -> settings.Screen:
    """Six lines that mostly share effects, or mostly have their own; `n_known` conditions of the last train."""
    share, own = (0.85, 0.5) if kind == "shared" else (0.5, 0.85)
    shared = settings.draw(seed, 40, 300)
    screen = settings.of_lines(
        seed, 6, lambda line: share * shared + own * settings.draw(seed + 100 * line + 7, 40, 300)
    )
    screen.held_out = {("L5", "", gene) for gene in settings.names(40)[n_known:]}
    return screen


def of_line(kind: str, seed: int, n_known: int) -> pd.DataFrame:
    """Errors and correlations of the scored conditions of the new line."""
    screen = _lines(kind, seed, n_known)
    adata, measured = settings.sampled(screen, seed)
    units = [("L5", "", gene) for gene in settings.names(40)[SCORED:]]
    true_UG = np.array([screen.truth(unit) for unit in units])
    elsewhere_G = np.mean([change for unit, change in measured.items() if unit[0] != "L5"], axis=0)
    with tempfile.TemporaryDirectory() as folder:
        model = settings.fitted(screen, adata, folder)
        predicted = model.predict([settings.condition_of(unit, False) for unit in units])
    change_UG = predicted.delta_UG
    hit_UG = np.abs(change_UG - true_UG) <= settings.Z_90 * predicted.sd_change
    return pd.DataFrame(
        {
            "lines": kind,
            "known": n_known,
            "seed": seed,
            "unit": [unit[2] for unit in units],
            "error": ((change_UG - true_UG) ** 2).sum(axis=1) / (true_UG**2).sum(axis=1),
            "pearson_ref": [
                float(np.corrcoef(one - elsewhere_G, true - elsewhere_G)[0, 1])
                for one, true in zip(change_UG, true_UG, strict=True)
            ],
            "held": hit_UG.mean(axis=1),
        }
    )


def new_lines(*, known: tuple[int, ...] = OWN, seeds: tuple[int, ...] = (10, 11, 12)) -> Iterator[Result]:
    """Lines that share effects, and such as mostly have their own, by number of known conditions."""
    logging.getLogger("gears").setLevel(logging.ERROR)
    rows: list[dict[str, Any]] = []
    for kind in ("shared", "own"):
        parts = [of_line(kind, seed, n_known) for n_known in known for seed in seeds]
        values = pd.concat(parts).set_index(["known", "seed", "unit"])
        none = values.loc[known[0]]
        for n_known in known:
            here = values.loc[n_known].reindex(none.index)
            row: dict[str, Any] = {"lines": kind, "own conditions": n_known}
            for metric, sign in (("error", -1.0), ("pearson_ref", 1.0)):
                row[metric] = float(here[metric].mean())
                gain_U = sign * (here[metric] - none[metric]).to_numpy()
                row[f"{metric}, gain over {known[0]}"], row[f"{metric} is"] = gained(gain_U) if n_known else ("", "")
            rows.append(row | {"held by 90 % intervals": float(here["held"].mean())})
        yield Result("A new line with conditions of its own", table(rows), {"rows": rows})


def mcfaline(*, data: Path = Path("data"), seeds: tuple[int, ...] = (1, 2, 3)) -> Iterator[Result]:
    """Lines held out, units held out, and lines with some conditions of their own."""
    logging.getLogger("gears").setLevel(logging.ERROR)
    adata = anndata.read_h5ad(data / "mcfaline2023_subset.h5ad")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        screen = PertData.from_adata(adata, data_path=folder, context_key="cell_type", verbose=False)
        for name, splits in _mcfaline_splits(screen, seeds).items():
            values = pd.concat([_scores(screen, split) for split in splits], ignore_index=True)
            rows += [{"test": name} | row for row in _against_train_mean(values)]
            yield Result("Three lines of McFaline", table(rows), {"rows": rows})


def _mcfaline_splits(screen: PertData, seeds: tuple[int, ...]) -> dict[str, list[dict[str, Any]]]:
    labels = [condition for condition in screen.screen.conditions if not condition.is_control]
    lines = sorted({condition.context for condition in labels})
    splits: dict[str, list[dict[str, Any]]] = {
        "lines held out": [{"split": "context_held_out", "test_contexts": [line], "seed": 1} for line in lines],
        "units held out": [
            {"split": "unit_held_out", "seed": seed, "combo_single_split_test_set_fraction": 0.25} for seed in seeds
        ],
    }
    for n_known in (0, 1, 3, 5):
        splits[f"{n_known} own conditions"] = []
        for line in lines:
            here = sorted(one.name for one in labels if one.context == line)
            others = sorted(one.name for one in labels if one.context != line)
            for seed in seeds:
                order = np.random.default_rng(seed).permutation(here).tolist()
                known = order[:n_known] + others  # the prior is fitted to training and validation conditions
                parts = {"train": known[:-1], "val": known[-1:], "test": order[-4:]}
                splits[f"{n_known} own conditions"].append({"split": "custom", "split_dict": parts})
    return splits


def _scores(screen: PertData, split: dict[str, Any]) -> pd.DataFrame:
    screen.prepare_split(**split)
    model = GEARS(screen, device="cpu")
    model.model_initialize(hidden_size=8, mask_target=True)
    model.train(epochs=0, verbose=False, evaluate_test=False)
    values = model.evaluate("test", baselines=["train_mean"], name="model")
    assert values is not None
    return values


def _against_train_mean(values: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for metric in DECISIVE:
        found = values[(values["metric"] == metric) & values["condition"].str.contains("@")]
        wide = [part.reset_index(drop=True)["value"] for _, part in found.groupby("method", sort=True)]
        names = sorted(found["method"].unique())
        if len(wide) < 2:
            continue
        mean, model = (wide[names.index(name)].to_numpy() for name in ("train_mean", "model"))
        sign = 1.0 if get_metric(metric).higher_is_better else -1.0
        is_known_U = np.isfinite(model)
        mean, model = np.nan_to_num(mean[is_known_U]), model[is_known_U]
        low, high = interval(resampled_means(model))
        gain_U = sign * (model - mean)
        gain, verdict = gained(gain_U)
        yield {
            "metric": metric, "model": f"{model.mean():.3f} ({low:.3f}, {high:.3f})",
            "train mean": float(np.mean(mean)), "gain": gain, "is": verdict, "conditions": len(gain_U),
        }  # fmt: skip
