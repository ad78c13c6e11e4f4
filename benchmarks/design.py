"""Do suggested experiments teach more than others?

    python benchmarks/run.py design                                       (all simulated kinds)
    python benchmarks/run.py design --kinds additive GO-smooth --seeds 0 1 2 --repeats 3
    python benchmarks/run.py design --data FOLDER --kinds --repeats 10    (real subsets alone)

Replay: a fixed fifth of the conditions is held out; the prior starts with a random fifth and gets five rounds of a
tenth of the screen, chosen from the others by each aim. The error is the squared difference of predicted and expected
(real screens: measured) changes of the held-out conditions as a share of the squared changes. Each seed is another
screen of the kind. An aim is better than random if the 95 % interval of its mean difference over rounds is below 0:
over screens, or over random starts where there is one screen.

Seeds 0 to 9 are for development, those from 100 on for published tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from accuracy import packed
from measuring import Result, table
from screens import KINDS, interval, resampled_means, screens

from gears import GEARS, Condition, PertData
from gears.data.splits import Split
from gears.design import suggest
from gears.plotting import image_bytes
from gears.plotting._curves import replay_curve
from gears.simulate import SimulatedTruth

AIMS = ("random", "information", "most connected", "largest effect")
N_ROUNDS = 5
FEWEST = 30  # conditions of a screen with a verdict


def replay_of_aims(
    kinds: tuple[str, ...] = KINDS,
    data: Path | None = None,
    seeds: tuple[int, ...] = tuple(range(100, 110)),
    repeats: int = 1,
    small: bool = False,
) -> Iterator[Result]:
    """Errors by aim and round; `repeats` are random starts on each screen."""
    replays: dict[str, pd.DataFrame] = {}
    for screen in screens(kinds, data, seeds, small):
        with screen.prepared() as prepared:
            found = replay(prepared, screen.truth, screen.seed or 0, repeats)
        replays[screen.name] = pd.concat([replays.get(screen.name), found], ignore_index=True)
        print(f"{screen.name}, seed {screen.seed}", flush=True)
        if screen.seed not in (None, seeds[-1]):
            continue
        tables = {name: replay_table(one) for name, one in replays.items()}
        lines = [line for name, rows in tables.items() for line in (f"## {name}", "", *table(rows), "")]
        records = pd.concat([one.assign(screen=name) for name, one in replays.items()])
        files = {
            f"_replay_{name.replace(' ', '_')}.png": image_bytes(replay_curve(one, title=name).figure)
            for name, one in replays.items()
        }
        record = {"seeds": list(seeds), "repeats": repeats, "replay": tables}
        title = "Replay: error on held-out conditions by choice of the measured ones"
        yield Result(title, lines, record, files | {".csv.gz": packed(records)})


def replay(data: PertData, truth: SimulatedTruth | None, seed: int, repeats: int) -> pd.DataFrame:
    """Error on the held-out fifth by aim, repeat and round."""
    conditions = [one for one in data.screen.conditions if not one.is_control]
    held, rest = divided(conditions, 5, np.random.default_rng((seed, 0)))
    expected_UG = changes(data, truth, held)
    n, records = len(conditions), []
    for repeat in range(repeats):
        rng = np.random.default_rng((seed, repeat + 1))
        start, _ = divided(rest, 4, rng)  # a quarter of four fifths
        first = fitted(data, start, held)
        for aim in AIMS:
            measured = list(start)
            for step in range(N_ROUNDS + 1):
                model = fitted(data, measured, held) if step else first
                delta_UG = model.predict(held, clip=False).delta_UG
                error = float(((delta_UG - expected_UG) ** 2).sum() / (expected_UG**2).sum())
                records.append((aim, seed, repeat, step, n, len(measured), error))
                left = [one for one in rest if one not in set(measured)]
                if step < N_ROUNDS:
                    measured += choose(aim, model, left, round(n / 10), rng)
    columns = ["aim", "seed", "repeat", "round", "n_conditions", "n_measured", "error"]
    return pd.DataFrame(records, columns=columns)


def divided(
    conditions: Sequence[Condition], n: int, rng: np.random.Generator
) -> tuple[list[Condition], list[Condition]]:
    """A random n-th of the conditions, and the others."""
    order = rng.permutation(len(conditions))
    size = round(len(conditions) / n)
    return [conditions[row] for row in order[:size]], [conditions[row] for row in order[size:]]


def changes(data: PertData, truth: SimulatedTruth | None, conditions: Sequence[Condition]) -> np.ndarray:
    """Expected changes of conditions, or measured ones where these are not known, (U, G)."""
    if truth is None:
        return data.screen.statistics.delta(np.array([data.screen.id_of(one) for one in conditions]))
    column = {gene: number for number, gene in enumerate(truth.genes)}
    columns = [column[gene] for gene in data.screen.gene_names]
    return np.array([truth.delta(one)[columns] for one in conditions])


def fitted(data: PertData, measured: Sequence[Condition], held: Sequence[Condition]) -> GEARS:
    """The prior of some conditions."""
    named = {one: label for label, one in data.screen.condition_of_label.items()}
    parts = {"train": tuple(named[one] for one in [Condition(), *measured]), "test": tuple(named[one] for one in held)}
    rest = [label for label in data.screen.labels if label not in {*parts["train"], *parts["test"]}]
    data.use_split(Split("custom", 0, {}, parts, excluded=dict.fromkeys(rest, "not measured yet")))
    model = GEARS(data, device="cpu")
    model.model_initialize(hidden_size=8)
    model.train(epochs=0, verbose=False, evaluate_test=False)
    return model


def choose(aim: str, model: GEARS, left: Sequence[Condition], n: int, rng: np.random.Generator) -> list[Condition]:
    """The next batch."""
    drawn = [left[row] for row in rng.permutation(len(left))]
    if aim == "random":
        return drawn[:n]
    if aim == "information":
        unknown = {one for one, by in zip(left, model.predict(left).informed_by, strict=True) if by == "nothing"}
        informed = [one for one in left if one not in unknown]
        chosen = [Condition.parse(name) for name in suggest(model, informed, n)["condition"]] if informed else []
        return (chosen + [one for one in drawn if one in unknown])[:n]
    if aim == "largest effect":
        worth = np.linalg.norm(model.predict(left, clip=False).delta_UG, axis=1)
    else:
        degree_P = np.bincount(model.parts.go.edge_index[1], minlength=len(model.pert_list))
        node_of = {name: node for node, name in enumerate(model.pert_list)}
        worth = np.array([sum(degree_P[node_of[gene]] for gene in one.genes) for one in left])
    return [left[row] for row in np.argsort(-worth, kind="stable")[:n]]


def replay_table(replayed: pd.DataFrame) -> list[dict[str, Any]]:
    """Mean error over the rounds after the start, and its difference to random with a 95 % interval."""
    unit = "repeat" if replayed["seed"].nunique() == 1 else "seed"
    mean = replayed[replayed["round"] > 0].groupby(["aim", unit])["error"].mean().unstack()
    rows, few = [], replayed["n_conditions"].min() < FEWEST
    for aim in AIMS:
        difference = (mean.loc[aim] - mean.loc["random"]).to_numpy()
        low, high = interval(resampled_means(difference))
        verdict = "" if aim == "random" or few else "better" if high < 0 else "worse" if low > 0 else "open"
        row = {"aim": aim, "error": float(mean.loc[aim].mean()), "difference": float(difference.mean())}
        rows.append(row | {"low": low, "high": high, "verdict": verdict})
    return rows
