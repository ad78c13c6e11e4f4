"""Is the model as good as the best baseline, screen by screen, and better on the average? What does the head add?

    python benchmarks/run.py accuracy --methods prior --repeats 1 --seeds 100 101 102 103 104
    python benchmarks/run.py accuracy --kinds --data FOLDER                    (the real subsets found there)
    python benchmarks/run.py accuracy --methods prior gears published --repeats 1 --epochs-published 3
    python benchmarks/run.py accuracy --situations 0 2 5 --methods prior --name accuracy_from_singles
    python benchmarks/run.py head --seeds 300 301 302 303 304
    python benchmarks/run.py head_genes
    python benchmarks/run.py inner_fits --seeds 400 401

Folds are over conditions; every condition is tested once in each repeat. Figures of a kind, and their intervals, are
over the conditions of all its screens. Methods: ``prior`` is the prior alone, ``gears`` the whole model, ``published``
the network alone on cells, ``moments`` the network alone on moments. Each is compared with baselines that are fitted to
the same conditions. ``--situations`` replaces the folds: training has all singles and so many of the combinations, all
others are tested; kinds with triples are added. What is undefined for one method only, as the reference part of the
train mean, counts 0.

``head``: the head is trained on the training part; with and without it the prior is fitted to the training and
validation parts, as `train` does. ``head_genes``: gain of the head on a screen of many genes, trained on so many genes
drawn in each step. ``inner_fits``: how far inner folds of the head that try what the prior of all conditions
chose are apart from inner folds that try everything; where they are, what each head gains (that of everything, and how
much more the other: 95 %, paired by condition).

Seeds 0 to 9 are for development, those from 100 on (the head: from 300 on) for published tables.
"""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
from measuring import Result, cpu_seconds, table
from screens import (
    COMBINED,
    COMMON,
    KINDS,
    PREPARED,
    SIMULATED,
    Screen,
    folds_of,
    from_singles,
    gained,
    interval,
    known_and_tested,
    resampled_means,
    screens,
    simulation,
)

from gears import Condition, PertData
from gears.data.splits._split import Split
from gears.distributed import World
from gears.evaluation import BASELINES, DECISIVE, compare
from gears.evaluation._fitted import settings_of
from gears.evaluation.metrics import condition_metrics, get_metric
from gears.evaluation.truth import Truth
from gears.evaluation.verdict import MIN_CONDITIONS
from gears.jobs.estimators import GEARSEstimator, PriorEstimator
from gears.priors import _source
from gears.priors._source import perturbed_conditions, prior_of
from gears.simulate import simulated_screen
from gears.training import _head
from gears.training._head import prepare_head, train_head, with_head_of
from gears.training.options import TrainOptions

METRICS = (*DECISIVE, "pearson_delta", "mse_top20_de", "discrimination")
DECISIVE_MEANS = tuple(name for name in DECISIVE if not get_metric(name).needs_sd)
DESCRIBING = ("amplitude_slope",)
PUBLISHED = {"lr": 1e-3, "schedule": "step", "weight_decay": 5e-4}
TRAINING: dict[str, dict[str, Any]] = {
    "gears": {"objective": "moments", "prior": "auto"},
    "moments": {"objective": "moments", "prior": None},
    "published": {"objective": "cells", "prior": None, **PUBLISHED},
}


def packed(values: pd.DataFrame) -> bytes:
    """A table as a compressed CSV file."""
    return gzip.compress(values.to_csv(index=False, float_format="%.6g").encode(), mtime=0)


def sign(metric: str) -> float:
    """1 where higher is better, else -1."""
    return 1.0 if get_metric(metric).higher_is_better else -1.0


def accuracy(
    kinds: tuple[str, ...] = KINDS,
    data: Path | None = None,
    seeds: tuple[int, ...] = (3,),
    methods: tuple[str, ...] = ("prior", "gears"),
    situations: tuple[int, ...] | None = None,
    folds: int = 5,
    repeats: int = 5,
    fold_seed: int = 1,
    epochs_published: int | None = None,
    small: bool = False,
) -> Iterator[Result]:
    """Methods against the best baseline of each screen and metric."""
    if situations and tuple(kinds) == KINDS:
        kinds = (*(name for name, chosen in SIMULATED.items() if (COMMON | chosen)["n_pairs"]), *COMBINED)
    settings = {"folds": folds, "situations": situations, "repeats": repeats, "seeds": list(seeds)}
    tables: dict[str, pd.DataFrame] = {}
    for screen in screens(kinds, data, seeds, small):
        with screen.prepared() as prepared:
            parts = {screen.name: folds_of(prepared, folds, repeats, fold_seed)}
            if situations:
                parts = {
                    f"{screen.name}, singles and {n} combinations": [split]
                    for n, split in from_singles(prepared.screen, situations)
                }
            for name, splits in parts.items():
                values = values_of(prepared, splits, methods, fold_seed, epochs_published)
                values = values.assign(screen=name, screen_seed=str(screen.seed))
                tables[name] = pd.concat([tables.get(name), values], ignore_index=True)
        print(f"{screen.name}, seed {screen.seed}", flush=True)
        files = {".csv.gz": packed(pd.concat(tables.values()))}
        lines = [line for name in methods for line in against_baselines(tables, name)]
        yield Result("Accuracy against the best baseline of each screen", lines + means(tables), settings, files)


def values_of(
    data: PertData, splits: Sequence[Split], methods: Sequence[str], seed: int, epochs: int | None
) -> pd.DataFrame:
    """Values by condition of every method and its baselines (columns split, condition, method, metric, value)."""

    def estimator(name: str, seed: int) -> Any:
        if name == "prior":
            return PriorEstimator(data)
        training = TRAINING[name] | ({"epochs": epochs} if name == "published" else {})
        return GEARSEstimator(data, training=training, seed=seed, device="cpu")

    tables = []
    for name in methods:
        result = compare(
            {name: lambda seed, name=name: estimator(name, seed)},
            data.screen,
            splits,
            seeds=(seed,),
            annotation=data.annotation,
            metrics=(*METRICS, *DESCRIBING),
            baselines=tuple(name for name in BASELINES if not BASELINES[name].uses_held_out),
            n_split_half=0,
        )
        tables.append(result.table.assign(beside=name))
    return pd.concat(tables, ignore_index=True)


def wide(values: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Mean over repeats of each condition of each screen (rows) by method (columns).

    A value that is undefined for some methods counts 0; a condition that is undefined for all is excluded.
    """
    by_condition = values[values["metric"] == metric].pivot_table(
        index=["screen_seed", "condition"], columns="method", values="value", aggfunc="mean", sort=False, dropna=False
    )
    return by_condition.dropna(how="all").fillna(0.0)


def gain(values: pd.DataFrame, name: str, metric: str) -> tuple[str, np.ndarray]:
    """Best baseline, and by condition how much better the method is than it (higher is better)."""
    of_baselines = sign(metric) * values[[column for column in values if column in BASELINES]].mean()
    best = str(of_baselines.idxmax())
    return best, (sign(metric) * (values[name] - values[best])).to_numpy()


def against_baselines(tables: dict[str, pd.DataFrame], name: str) -> list[str]:
    """A method against the best baseline of each screen and metric, and its mean gain over the screens."""
    rows, shares = [], {}
    for screen, values in tables.items():
        for metric in METRICS:
            row = {"screen": screen, "metric": metric}
            of_method = wide(values[values["beside"] == name], metric)
            if of_method.empty or name not in of_method:  # intervals are not stated by every method
                rows.append(row | {"method": "undefined for all conditions"})
                continue
            best, gain_U = gain(of_method, name, metric)
            other, (text, verdict) = float(of_method[best].mean()), gained(gain_U)
            scale = max(abs(other), 1e-12) if metric == "mse_top20_de" else 1.0
            shares.setdefault(metric, []).append(resampled_means(gain_U) / scale)
            verdict = verdict if len(gain_U) >= MIN_CONDITIONS else "too few conditions"
            row |= {"method": f"{of_method[name].mean():.4g}", "best baseline": f"{best} {other:.4g}"}
            rows.append(row | {"gain (95 %)": text, "verdict": verdict})
    lines = [f"## {name}", "", *table(rows), ""]
    lines += ["Average over the screens (mse as a share of the best baseline's):", ""]
    for metric, draws in shares.items():
        low, high = interval(np.mean(draws, axis=0))
        lines.append(f"- {metric}: {np.mean(draws):+.3g} ({low:+.3g}, {high:+.3g})")
    return [*lines, ""]


def means(tables: dict[str, pd.DataFrame]) -> list[str]:
    """All methods and baselines of each screen; a slope is wild where predictions hardly differ: its median."""
    lines = ["## All methods (of the amplitude slope the median)", ""]
    for screen, values in tables.items():
        columns = {
            metric: wide(values, metric).agg("median" if metric in DESCRIBING else "mean")
            for metric in (*METRICS, *DESCRIBING)
        }
        rows = [{"method": name, **row} for name, row in pd.DataFrame(columns).iterrows()]
        lines += [f"### {screen}", "", *table(rows), ""]
    return lines


# --- the head -------------------------------------------------------------------------------------


def head(
    kinds: tuple[str, ...] = KINDS,
    data: Path | None = None,
    seeds: tuple[int, ...] = (3,),
    folds: int = 5,
    small: bool = False,
) -> Iterator[Result]:
    """The head beside the prior alone: gains paired by condition, and the weight that the head gets."""
    tables: list[pd.DataFrame] = []
    for screen in screens(kinds, data, seeds, small):
        tables += list(with_and_without_head(screen, folds))
        print(f"{screen.name}, seed {screen.seed}", flush=True)
        values = pd.concat(tables, ignore_index=True)
        rows = [row for name, part in values.groupby("screen", sort=False) for row in head_rows(name, part)]
        settings = {"folds": folds, "seeds": list(seeds)}
        yield Result("The head beside the prior alone", table(rows), settings, {".csv.gz": packed(values)})


def with_and_without_head(screen: Screen, n_folds: int) -> Iterator[pd.DataFrame]:
    """Metrics of every test condition without and with the head, and the head's weight there, fold by fold."""
    with screen.prepared() as data:
        yield from heads_of_folds(data, screen, n_folds)


def inner_fits(
    kinds: tuple[str, ...] = KINDS,
    seeds: tuple[int, ...] = (3,),
    folds: int = 3,
    small: bool = False,
) -> Iterator[Result]:
    """Inner folds that try what the prior chose, beside inner folds that try everything; the head where they differ."""
    rows: list[dict[str, Any]] = []
    for kind in kinds:
        parts: list[pd.DataFrame] = []
        for screen in screens((kind,), None, seeds, small):
            with screen.prepared() as data:
                for split in folds_of(data, folds):
                    parts += both_inner(data, screen, split)
        rows.append(inner_row(kind, pd.concat(parts, ignore_index=True)))
        print(rows[-1], flush=True)
        settings = {"folds": folds, "seeds": list(seeds), "rows": rows}
        yield Result("The head's inner folds: what the prior chose, beside everything", table(rows), settings)


ALIKE = 1e-4  # root mean square of a difference as a share of that of the values


def both_inner(data: PertData, screen: Screen, split: Split) -> Iterator[pd.DataFrame]:
    """Of a split, how far predictions by the two are apart; where they are, values with both heads, else one row."""
    data.use_split(split)
    conditions, fitted, found, seconds = perturbed_conditions(data, ("train",)), prior_of(data), [], []
    assert fitted is not None
    for patches in (TRY_ALL, []):
        start = cpu_seconds()
        with patched(patches):
            found.append(_source.inner_predictions(data, conditions, fitted).changes)
        seconds.append(cpu_seconds() - start)
    apart = max(
        float(np.sqrt(((one - other) ** 2).mean() / np.maximum((one**2).mean(), np.finfo(float).tiny)))
        for one, other in zip(*(vars(changes).values() for changes in found), strict=True)
    )
    place = {"apart": apart, "seed": str(screen.seed), "fold": split.arguments["fold"]}
    for name, patches, used in zip(INNER, (TRY_ALL, []), seconds, strict=True):
        values = pd.DataFrame([place]) if apart < ALIKE else head_of_split(data, screen, split, patches)
        yield values.assign(inner=name, inner_s=used, **place)


INNER = ("everything", "chosen")
TRY_ALL = [
    # the format is part of the cache's key: inner folds of their own
    patch.object(_source, "FORMAT", "everything is tried"),
    patch.object(_source.Inherited, "from_report", lambda _: None),
]


@contextlib.contextmanager
def patched(patches: Sequence[Any]) -> Iterator[None]:
    """With all of some patches."""
    with contextlib.ExitStack() as stack:
        for one in patches:
            stack.enter_context(one)
        yield


def inner_row(kind: str, values: pd.DataFrame) -> dict[str, Any]:
    """How many splits are alike; on the others the head's weight and gain by both, and the difference, paired."""
    index, row = ["seed", "fold", "condition"], {"screen": kind}
    apart = values.groupby(["seed", "fold"])["apart"].first()
    row |= {"alike": f"{(apart < ALIKE).sum()} of {len(apart)} splits", "furthest apart": float(apart.max())}
    seconds = values.groupby("inner")["inner_s"].mean()
    row["CPU s of inner folds"] = ", ".join(f"{seconds[inner]:.2f}" for inner in INNER)
    if (apart < ALIKE).all():
        return row
    values, gains = values[values["apart"] >= ALIKE], []
    for inner in INNER:
        part = values[values["inner"] == inner]
        prior, head = (part[part["method"] == one].set_index(index) for one in ("prior", "head"))
        gains.append(pd.DataFrame({one: sign(one) * (head[one] - prior[one]) for one in DECISIVE_MEANS}))
        weights = head.groupby("kind")["weight"].mean()
        row[f"weights, {inner}"] = ", ".join(f"{weight:.2f} {of_kind}" for of_kind, weight in weights.items())
    for metric in DECISIVE_MEANS:
        own_U, more_U = (gain[metric].dropna().to_numpy() for gain in (gains[0], gains[1] - gains[0]))
        text, verdict = gained(more_U)
        row[metric] = f"{own_U.mean():+.4f}; " + ("the same" if not more_U.any() else f"{text} {verdict}")
    return row


def heads_of_folds(data: PertData, screen: Screen, n_folds: int) -> Iterator[pd.DataFrame]:
    """The same on a screen that is prepared; `cpu_s` is what training the head took."""
    for split in folds_of(data, n_folds):
        yield head_of_split(data, screen, split)


def head_of_split(data: PertData, screen: Screen, split: Split, patches: Sequence[Any] = ()) -> pd.DataFrame:
    """The same of a split; the head is trained under `patches`."""
    data.use_split(split)
    fitted, refitted = prior_of(data), prior_of(data, ("train", "val"))
    assert fitted is not None
    assert refitted is not None
    options, tables = TrainOptions().with_defaults(), []
    with patched(patches):
        prepare_head(data, fitted)
        start = cpu_seconds()
        trained = train_head(data, fitted, options, World()).fitted.prior
        seconds = cpu_seconds() - start
    for name, prior in (("prior", refitted.prior), ("head", with_head_of(refitted.prior, trained))):
        found = scored(data, partial(expression_of, data, prior))
        of_kinds = prior.report.get("head", {})
        several = found["condition"].map(lambda name: len(Condition.parse(name)) > 1)
        kinds = np.where(several, "several", "single")
        weights = [of_kinds.get(kind, {}).get("weight", 0.0) for kind in kinds]
        place = {"method": name, "screen": screen.name, "seed": str(screen.seed), "cpu_s": seconds}
        tables.append(found.assign(kind=kinds, weight=weights, fold=split.arguments["fold"], **place))
    return pd.concat(tables, ignore_index=True)


def head_genes(
    kinds: tuple[str, ...] = ("co-expression", "regulatory network"),
    seeds: tuple[int, ...] = (3,),
    folds: int = 3,
    genes: int = 5000,
    per_step: tuple[int, ...] = (5000, 1000, 500, 250),
    small: bool = False,
) -> Iterator[Result]:
    """Gain of the head in the decisive metrics by the number of genes that a step draws; the first is compared with."""
    rows: list[dict[str, Any]] = []
    for kind in kinds:
        for seed in seeds:
            changes = simulation(kind, seed, small) | {"n_genes": 120 if small else genes}
            screen = Screen(kind, seed, simulated_screen(**changes)[0], None, PREPARED.get(kind, {}))
            gains = None
            with screen.prepared() as data:
                for n in per_step:
                    with patch.object(_head, "GENES_PER_STEP", n):
                        values = pd.concat(heads_of_folds(data, screen, folds))
                    index = ["fold", "condition"]
                    prior, head = (values[values["method"] == one].set_index(index) for one in ("prior", "head"))
                    gain_UM = pd.DataFrame({one: sign(one) * (head[one] - prior[one]) for one in DECISIVE_MEANS})
                    gains = gain_UM if gains is None else gains
                    row = {
                        "screen": kind,
                        "seed": seed,
                        "genes per step": n,
                        "CPU s a fold": float(head["cpu_s"].mean()),
                    }
                    row |= {"mean weight": float(head["weight"].mean())}
                    for metric in DECISIVE_MEANS:
                        mean = f"{gain_UM[metric].mean():+.4f}"
                        text = gained((gain_UM[metric] - gains[metric]).dropna().to_numpy())[0]
                        row[metric] = mean if n == per_step[0] else f"{mean}; {text}"
                    rows.append(row)
                    print(row, flush=True)
                    yield Result("Genes that a step of the head draws", table(rows), {"genes": genes, "folds": folds})


def expression_of(data: PertData, prior: Any, conditions: Sequence[Condition]) -> np.ndarray:
    """Expression as the prior predicts it, (U, G)."""
    expression_UG = data.screen.control_mean_G + prior([data.condition_nodes(one) for one in conditions])
    return np.maximum(expression_UG, 0.0) if data.screen.nonnegative else expression_UG


def scored(
    data: PertData, predicted: Callable[[list[Condition]], np.ndarray], metrics: Sequence[str] = METRICS
) -> pd.DataFrame:
    """Metrics of the test conditions, whose expression is `predicted`; known are those of training and validation."""
    known, tested = known_and_tested(data.split)
    (setting,) = settings_of(data.screen, tested, known)
    truth = Truth.of(setting.screen, setting.conditions, reference_mean_G=setting.means.reference_mean(), pooled=known)
    predicted_UG = predicted([tested[row] for row in setting.rows])
    values = pd.DataFrame(condition_metrics(predicted_UG, truth, list(metrics)), columns=list(metrics))
    return values.assign(condition=[condition.name for condition in truth.conditions])


def head_rows(name: str, values: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Mean weights of the head on a screen, and what it gains by metric with its interval."""
    index = ["seed", "fold", "condition"]
    prior, with_head = (values[values["method"] == one].set_index(index) for one in ("prior", "head"))
    weights = with_head.groupby("kind")["weight"].mean()
    shown = ", ".join(f"{weights[kind]:.2f}" if kind in weights else "-" for kind in ("single", "several"))
    for metric in METRICS:
        gain_U = (sign(metric) * (with_head[metric] - prior[metric])).dropna().to_numpy()
        if len(gain_U):
            text, verdict = gained(gain_U)
            row = {"screen": name, "weight: one gene, several": shown, "metric": metric}
            yield row | {"prior": float(prior[metric].mean()), "gain (95 %)": text, "verdict": verdict}
