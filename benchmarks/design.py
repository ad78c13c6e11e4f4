"""Do suggested experiments teach more than others?

    python benchmarks/design.py                                       (all simulated kinds)
    python benchmarks/design.py --kinds additive GO-smooth --seeds 0 1 2 --repeats 3
    python benchmarks/design.py --data FOLDER --kinds --repeats 10    (real subsets alone)

Replay: a fixed fifth of the conditions is held out; the prior starts with a random fifth and gets five rounds of a
tenth of the screen, chosen from the others by each aim. The error is the squared difference of predicted and expected
(real screens: measured) changes of the held-out conditions as a share of the squared changes. Each seed is another
screen of the kind. An aim is better than random if the 95 % interval of its mean difference over rounds is below 0:
over screens, or over random starts where there is one screen.

Seeds 0 to 9 are for development, those from 100 on for published tables.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import torch
from accuracy import COMBINED, COMMON, PREPARED, REAL, SIMULATED

from gears import GEARS, Condition, PertData
from gears.data.splits import Split
from gears.design import suggest
from gears.files.formats import write_json, write_text
from gears.plotting import image_bytes
from gears.plotting.curves import replay_curve
from gears.simulate import Truth, simulated_screen

AIMS = ("random", "information", "most connected", "largest effect")
N_ROUNDS = 5
FEWEST = 30  # conditions of a screen with a verdict
SEEDS = tuple(range(100, 110))


def main() -> None:
    """Replay of every screen; tables in markdown and json, and figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add_screens(parser, SEEDS)
    parser.add_argument("--repeats", type=int, default=1, help="random starts on each screen")
    options = parser.parse_args()
    quiet()
    replays: dict[str, pd.DataFrame] = {}
    for name, seed, data, truth in screens(options):
        found = replay(data, truth, seed, options.repeats)
        replays[name] = pd.concat([*([replays[name]] if name in replays else []), found], ignore_index=True)
        if seed == options.seeds[-1]:
            print(f"{name}\n{replay_table(replays[name]).to_string()}", flush=True)
            if options.output:
                write(options, replays)


def add_screens(parser: argparse.ArgumentParser, seeds: Sequence[int]) -> None:
    """Arguments that choose screens, and the folder for results."""
    parser.add_argument("--kinds", nargs="*", default=list(SIMULATED), choices=[*SIMULATED, *COMBINED])
    parser.add_argument("--data", type=Path, help="folder with NAME_subset.h5ad")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(seeds), help="of the simulator")
    parser.add_argument("--output", type=Path)


def quiet() -> None:
    """One thread, and no messages of the library."""
    torch.set_num_threads(1)
    logging.getLogger("gears").setLevel(logging.ERROR)


def screens(options: argparse.Namespace) -> Iterator[tuple[str, int, PertData, Truth | None]]:
    """Name, seed, prepared screen and truth of the requested screens; a real one has no truth."""
    for name in options.kinds:
        for seed in options.seeds:
            adata, truth = simulated_screen(**COMMON | (SIMULATED | COMBINED)[name] | {"seed": seed})
            yield from prepared(name, seed, adata, truth, PREPARED.get(name, {}))
    for name in REAL if options.data else ():
        adata = anndata.read_h5ad(options.data / f"{name}_subset.h5ad")
        for cell_type in sorted(adata.obs["cell_type"].unique()):
            part = adata[adata.obs["cell_type"] == cell_type].copy()
            yield from prepared(f"{name} {cell_type}", options.seeds[-1], part, None, {})


def prepared(
    name: str, seed: int, adata: anndata.AnnData, truth: Truth | None, preparation: dict[str, Any]
) -> Iterator[tuple[str, int, PertData, Truth | None]]:
    """The screen in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        data = PertData(folder, default_pert_graph=False)
        data.new_data_process("screen", adata, **preparation)
        yield name, seed, data, truth


def replay(data: PertData, truth: Truth | None, seed: int, repeats: int) -> pd.DataFrame:
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


def changes(data: PertData, truth: Truth | None, conditions: Sequence[Condition]) -> np.ndarray:
    """Expected changes of conditions, or measured ones where these are not known, (U, G)."""
    if truth is None:
        return data.screen.statistics.delta(np.array([data.screen.id_of(one) for one in conditions]))
    column = {gene: number for number, gene in enumerate(truth.genes)}
    columns = [column[gene] for gene in data.screen.gene_names]
    return np.array([truth.delta(one)[columns] for one in conditions])


def fitted(data: PertData, measured: Sequence[Condition], held: Sequence[Condition]) -> GEARS:
    """The prior of some conditions."""
    named = {one: label for label, one in data.screen.condition_of_label.items()}
    parts = {
        "train": tuple(named[one] for one in [Condition(), *measured]),
        "test": tuple(named[one] for one in held),
    }
    rest = [label for label in data.screen.labels if label not in {*parts["train"], *parts["test"]}]
    data.use_split(Split("custom", 0, {}, parts, excluded=dict.fromkeys(rest, "not measured yet")))
    model = GEARS(data, device="cpu")
    model.model_initialize(hidden_size=8)
    model.train(epochs=0, verbose=False, evaluate_test=False)
    return model


def choose(
    aim: str, model: GEARS, left: Sequence[Condition], n: int, rng: np.random.Generator
) -> list[Condition]:
    """The next batch."""
    drawn = [left[row] for row in rng.permutation(len(left))]
    if aim == "random":
        return drawn[:n]
    if aim == "information":
        unknown = {
            one for one, by in zip(left, model.predict(left).informed_by, strict=True) if by == "nothing"
        }
        informed = [one for one in left if one not in unknown]
        chosen = (
            [Condition.parse(name) for name in suggest(model, informed, n)["condition"]] if informed else []
        )
        return (chosen + [one for one in drawn if one in unknown])[:n]
    if aim == "largest effect":
        worth = np.linalg.norm(model.predict(left, clip=False).delta_UG, axis=1)
    else:
        degree_P = np.bincount(model.parts.go.edge_index[1], minlength=len(model.pert_list))
        node_of = {name: node for node, name in enumerate(model.pert_list)}
        worth = np.array([sum(degree_P[node_of[gene]] for gene in one.genes) for one in left])
    return [left[row] for row in np.argsort(-worth, kind="stable")[:n]]


def replay_table(replayed: pd.DataFrame) -> pd.DataFrame:
    """Mean error over the rounds after the start, and its difference to random with a 95 % interval."""
    unit = "repeat" if replayed["seed"].nunique() == 1 else "seed"
    mean = replayed[replayed["round"] > 0].groupby(["aim", unit])["error"].mean().unstack()
    rng, rows = np.random.default_rng(0), {}
    few = replayed["n_conditions"].min() < FEWEST
    for aim in AIMS:
        difference = (mean.loc[aim] - mean.loc["random"]).to_numpy()
        drawn = difference[rng.integers(len(difference), size=(5000, len(difference)))].mean(axis=1)
        low, high = np.quantile(drawn, [0.025, 0.975])
        verdict = "" if aim == "random" or few else "better" if high < 0 else "worse" if low > 0 else "open"
        rows[aim] = {"error": mean.loc[aim].mean(), "difference": difference.mean(), "low": low, "high": high}
        rows[aim]["verdict"] = verdict
    return pd.DataFrame(rows).T


def write(options: argparse.Namespace, replays: dict[str, pd.DataFrame]) -> None:
    """Tables, records and figures into the folder."""
    options.output.mkdir(parents=True, exist_ok=True)
    seeds = options.seeds if options.kinds else options.seeds[-1:]
    listed = ", ".join(map(str, seeds))
    lines = ["# Replay: error on held-out conditions by choice of the measured ones", ""]
    lines += [f"Seeds {listed}, starts on each screen: {options.repeats}. `benchmarks/design.py`", ""]
    for name, replayed in replays.items():
        lines += [f"## {name}", "", *markdown(replay_table(replayed)), ""]
        image = image_bytes(replay_curve(replayed, title=name).figure)
        (options.output / f"design_replay_{name.replace(' ', '_')}.png").write_bytes(image)
    stem = "design" if options.kinds else "design-real"
    write_text(options.output / f"{stem}.md", "\n".join(lines))
    settings = {"seeds": seeds, "repeats": options.repeats}
    tables = {name: replay_table(one).to_dict("index") for name, one in replays.items()}
    write_json(options.output / f"{stem}.json", {"settings": settings, "replay": tables})
    records = pd.concat([one.assign(screen=name) for name, one in replays.items()])
    records.round(6).to_csv(options.output / f"{stem}.csv.gz", index=False)


def markdown(table: pd.DataFrame) -> list[str]:
    """Lines of a table."""
    lines = ["| |" + "|".join(table.columns) + "|", "|---" + "|---:" * len(table.columns) + "|"]
    for name, row in table.iterrows():
        cells = [f"{value:.4g}" if isinstance(value, float | int) else str(value) for value in row]
        lines.append(f"| {name} |" + "|".join(cells) + "|")
    return lines


if __name__ == "__main__":
    main()
