"""Do suggested experiments teach more than others, and are the probabilities of hits right?

    python benchmarks/design.py                                   (three simulated kinds, replay and hits)
    python benchmarks/design.py --kinds additive GO-smooth --repeats 10 --output benchmarks/results
    python benchmarks/design.py --data FOLDER --kinds             (real subsets: replay alone)
    python benchmarks/design.py --speed                           (20,000 candidates, 1,000,000 pairs)

Replay: a fixed fifth of the conditions is held out; the prior starts with a random fifth and gets five rounds of a
tenth of the screen, chosen from the others by each aim. The error is the squared difference of predicted and expected
(real screens: measured) changes of the held-out conditions as a share of the squared changes. An aim is better than
random if the 95 % interval of its mean difference over rounds, over repeats, is below 0.

Hits: five folds over conditions; every measured gene up and down as a readout, random signatures of 20 genes, the
effect size, and departures of pairs from additivity. The stated rate is the score at which candidates are taken, the
observed one the share of them that the expected means of the simulation do not confirm.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import torch
from accuracy import COMMON, PREPARED, REAL, SIMULATED

from gears import GEARS, Condition, PertData
from gears.data.splits import Split, folds
from gears.design import interactions_table, reverse, suggest
from gears.design.hits import Scorer, beyond, fdr_score
from gears.design.interactions import MARGIN
from gears.files.formats import write_json, write_text
from gears.plotting import image_bytes
from gears.plotting.design import rate_calibration, replay_curve
from gears.simulate import Truth, simulated_screen

AIMS = ("random", "information", "most connected", "largest effect")
KINDS = ("additive", "GO-smooth", "regulatory network")
N_ROUNDS, RATES, BUDGETS = 5, (0.05, 0.1, 0.2), (0.05, 0.1, 0.2)
BINS = np.linspace(0, 1, 11)
FEWEST = 30  # conditions of a screen with a verdict
MOST_RATIO = 1.3  # of the observed rate to the stated one


def main() -> None:
    """Replay and hits of every screen; tables in markdown and json, and figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(SIMULATED))
    parser.add_argument("--data", type=Path, help="folder with NAME_subset.h5ad")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=COMMON["seed"], help="of the simulator")
    parser.add_argument(
        "--speed", action="store_true", help="CPU seconds of large numbers of candidates alone"
    )
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("gears").setLevel(logging.ERROR)
    if options.speed:
        print("\n".join(speed()))
        return
    replays: dict[str, pd.DataFrame] = {}
    rates: dict[str, pd.DataFrame] = {}
    for name, adata, truth, preparation in screens(options):
        with tempfile.TemporaryDirectory() as folder:
            data = PertData(folder, default_pert_graph=False)
            data.new_data_process("screen", adata, **preparation)
            replays[name] = replay(data, truth, options.repeats)
            print(f"{name}: replay\n{replay_table(replays[name]).to_string()}", flush=True)
            print(f"{name}: recovered by their change: {recovered(data, options.folds)}", flush=True)
            if truth is not None:
                rates[name] = hit_rates(data, truth, options.folds)
                print(f"{name}: hits\n{rate_table(rates[name]).to_string()}", flush=True)
        if options.output:
            write(options, replays, rates)


def screens(options: argparse.Namespace) -> Any:
    """Name, cells, truth and preparation of the requested screens."""
    for name in options.kinds:
        adata, truth = simulated_screen(**COMMON | SIMULATED[name] | {"seed": options.seed})
        yield name, adata, truth, dict(PREPARED.get(name, {}))
    for name in REAL if options.data else ():
        adata = anndata.read_h5ad(options.data / f"{name}_subset.h5ad")
        for cell_type in sorted(adata.obs["cell_type"].unique()):
            yield f"{name} {cell_type}", adata[adata.obs["cell_type"] == cell_type].copy(), None, {}


# --- replay ----------------------------------------------------------------------------------


def replay(data: PertData, truth: Truth | None, repeats: int) -> pd.DataFrame:
    """Error on the held-out fifth by aim, repeat and round."""
    conditions = [one for one in data.screen.conditions if not one.is_control]
    held, rest = divided(conditions, 5, np.random.default_rng(0))
    expected_UG = changes(data, truth, held)
    records = []
    for repeat in range(repeats):
        rng = np.random.default_rng(repeat + 1)
        start, _ = divided(rest, 4, rng)  # a quarter of four fifths
        for aim in AIMS:
            measured = list(start)
            for step in range(N_ROUNDS + 1):
                model = fitted(data, measured, held)
                delta_UG = model.predict(held, clip=False).delta_UG
                error = float(((delta_UG - expected_UG) ** 2).sum() / (expected_UG**2).sum())
                records.append((aim, repeat, step, len(measured), error))
                left = [one for one in rest if one not in set(measured)]
                if step < N_ROUNDS:
                    measured += choose(aim, model, left, round(len(conditions) / 10), rng)
    return pd.DataFrame(records, columns=["aim", "repeat", "round", "n_measured", "error"])


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
    if aim == "information":
        return [Condition.parse(name) for name in suggest(model, left, n)["condition"]]
    if aim == "random":
        return [left[row] for row in rng.permutation(len(left))[:n]]
    if aim == "largest effect":
        worth = np.linalg.norm(model.predict(left, clip=False).delta_UG, axis=1)
    else:
        degree_P = np.bincount(model.parts.go.edge_index[1], minlength=len(model.pert_list))
        node_of = {name: node for node, name in enumerate(model.pert_list)}
        worth = np.array([sum(degree_P[node_of[gene]] for gene in one.genes) for one in left])
    return [left[row] for row in np.argsort(-worth, kind="stable")[:n]]


def replay_table(replayed: pd.DataFrame) -> pd.DataFrame:
    """Mean error over the rounds after the start, and its difference to random with a 95 % interval over repeats."""
    mean = replayed[replayed["round"] > 0].groupby(["aim", "repeat"])["error"].mean().unstack()
    rng, rows = np.random.default_rng(0), {}
    few = replayed["n_measured"].min() * 5 < FEWEST
    for aim in AIMS:
        difference = (mean.loc[aim] - mean.loc["random"]).to_numpy()
        drawn = difference[rng.integers(len(difference), size=(5000, len(difference)))].mean(axis=1)
        low, high = np.quantile(drawn, [0.025, 0.975])
        verdict = "" if aim == "random" or few else "better" if high < 0 else "worse" if low > 0 else "open"
        rows[aim] = {"error": mean.loc[aim].mean(), "difference": difference.mean(), "low": low, "high": high}
        rows[aim]["verdict"] = verdict
    return pd.DataFrame(rows).T


# --- hits ------------------------------------------------------------------------------------


def hit_rates(data: PertData, truth: Truth, n_folds: int) -> pd.DataFrame:
    """One row per candidate and readout of every fold: probability, expected rate, and whether it is a hit."""
    found = []
    for split in folds(data.screen, n_folds, 1, 1):
        held = [one for one in split.conditions("test") if not one.is_control]
        measured = [one for part in ("train", "val") for one in split.conditions(part) if not one.is_control]
        model = fitted(data, measured, held)
        found += departure_rates(data, truth, model, [one for one in held if len(one) == 2])
        predictions = model.predict(held, clip=False)
        true_UG, names = changes(data, truth, held), predictions.gene_names
        size = float(np.quantile(np.abs(true_UG), 0.95))
        own_UG = np.array([[gene in one.genes for gene in names] for one in held])
        for sign in (1, -1):
            probability_UG = beyond(predictions.delta_UG, predictions.sd, sign * size, sign > 0)
            found += [
                one_readout("gene", probability_UG[:, g][~own_UG[:, g]], is_hit_UG[:, g][~own_UG[:, g]])
                for is_hit_UG in [sign * true_UG > size]
                for g in range(len(names))
            ]
        rng = np.random.default_rng(0)
        for _ in range(100):
            genes, signs = rng.choice(names, 20, replace=False).tolist(), rng.choice([-1.0, 1.0], 20).tolist()
            weights = dict(zip(genes, signs, strict=True))
            value_U = true_UG @ np.array([weights.get(name, 0.0) for name in names]) / 20
            limit = max(float(np.quantile(np.abs(value_U), 0.8)), 1e-9)
            scorer = Scorer.of(weights, limit, names)
            found.append(
                one_readout("signature", beyond(*scorer.moments(predictions), limit), value_U > limit)
            )
        size_U = np.sqrt((true_UG**2).mean(axis=1))
        for share in (0.3, 0.5, 0.7):
            scorer = Scorer.of(None, max(float(np.quantile(size_U, share)), 1e-9), names)
            probability_U = beyond(*scorer.moments(predictions), scorer.limit)
            found.append(one_readout("effect size", probability_U, size_U**2 > scorer.limit))
    return pd.concat(found, ignore_index=True)


def departure_rates(
    data: PertData, truth: Truth, model: GEARS, pairs: Sequence[Condition]
) -> list[pd.DataFrame]:
    """Probable departures of held-out pairs from additivity, against those of the expected changes; or nothing."""
    if not pairs:
        return []
    table = interactions_table(model, pairs, scores=False)
    is_hit = []
    for gene_1, gene_2, departure in zip(table["gene_1"], table["gene_2"], table["departure"], strict=True):
        first_G, second_G, double_G = changes(
            data, truth, [Condition((gene_1,)), Condition((gene_2,)), Condition((gene_1, gene_2))]
        )
        sum_G = first_G + second_G
        is_hit.append(np.sign(departure) * (double_G @ sum_G / (sum_G @ sum_G) - 1) > MARGIN)
    return [one_readout("interaction", table["probability"].to_numpy(), np.array(is_hit))]


def recovered(data: PertData, n_folds: int) -> dict[str, float]:
    """How well held-out conditions are found by their measured change among all that are held out with them."""
    places = []
    for split in folds(data.screen, n_folds, 1, 1):
        held = [one for one in split.conditions("test") if not one.is_control]
        measured = [one for part in ("train", "val") for one in split.conditions(part) if not one.is_control]
        model, wanted_UG = fitted(data, measured, held), changes(data, None, held)
        for condition, wanted_G in zip(held, wanted_UG, strict=True):
            table = reverse(model, wanted_G, held, len(held))
            places.append(int((table["condition"] == condition.name).argmax()) / len(held))
    return {
        "first": float(np.mean(np.equal(places, 0))),
        "in the first tenth": float(np.mean(np.less(places, 0.1))),
    }


def one_readout(readout: str, probability_U: np.ndarray, is_hit_U: np.ndarray) -> pd.DataFrame:
    """Candidates of one readout in the order of :func:`gears.design.hits`."""
    order = np.argsort(-probability_U, kind="stable")
    columns = {"readout": readout, "probability": probability_U[order], "is_hit": is_hit_U[order]}
    place = np.arange(1, len(order) + 1) / len(order)
    return pd.DataFrame(columns | {"rate": fdr_score(probability_U[order]), "place": place})


def rate_table(rates: pd.DataFrame) -> pd.DataFrame:
    """By readout: observed false share at each stated rate with the number taken, and recall at each budget."""
    rows = {}
    for readout, part in rates.groupby("readout"):
        row: dict[str, Any] = {"n": len(part), "hits": int(part["is_hit"].sum())}
        for rate in RATES:
            taken = part[part["rate"] <= rate]
            row[f"false at {rate:g}"] = float((~taken["is_hit"]).mean()) if len(taken) else np.nan
            row[f"taken at {rate:g}"] = len(taken)
        for budget in BUDGETS:
            row[f"recall {budget:.0%}"] = part.loc[part["place"] <= budget, "is_hit"].sum() / max(
                row["hits"], 1
            )
        rows[readout] = row
    return pd.DataFrame(rows).T


def bins(rates: pd.DataFrame) -> pd.DataFrame:
    """Mean probability and share of hits in ten bins of the probability, by readout."""
    place = pd.cut(rates["probability"], BINS, include_lowest=True, labels=False)
    table = rates.groupby(["readout", place])[["probability", "is_hit"]].agg(["mean", "size"])
    return pd.DataFrame(
        {
            "expected": table["probability", "mean"],
            "observed": table["is_hit", "mean"],
            "n": table["is_hit", "size"],
        }
    ).reset_index(level=0)


# --- speed and page --------------------------------------------------------------------------


def speed() -> list[str]:
    """CPU seconds and memory of 20,000 candidate genes and of 1,000,000 pairs, batches of ten by information."""
    from measuring import Measurement

    from gears.design import all_pairs

    lines = []
    adata, _ = simulated_screen(**COMMON | {"n_genes": 300, "n_singles": 100, "n_pairs": 0})
    with tempfile.TemporaryDirectory() as folder:
        data = PertData(folder)
        data.new_data_process("screen", adata)
        model = fitted(data, [one for one in data.screen.conditions if not one.is_control], [])
        genes = model.pert_list
        cases: dict[str, Callable[[], Any]] = {
            f"{len(genes)} genes": lambda: genes,
            "1,000,000 pairs": lambda: islice(all_pairs(genes[:1415]), 10**6),
        }
        for name, candidates in cases.items():
            with Measurement() as block:
                began = time.perf_counter()
                suggest(model, candidates(), 10)
                seconds = time.perf_counter() - began
            figures = {key: round(value, 1) for key, value in block.figures.items()}
            lines.append(f"{name}: {seconds:.1f} s, {figures}")
    return lines


def write(
    options: argparse.Namespace, replays: dict[str, pd.DataFrame], rates: dict[str, pd.DataFrame]
) -> None:
    """Tables and figures into the folder."""
    options.output.mkdir(parents=True, exist_ok=True)
    settings = {"repeats": options.repeats, "folds": options.folds, "seed": options.seed}
    lines = ["# What to measure next", "", f"{settings}. `benchmarks/design.py`", ""]
    for name, replayed in replays.items():
        lines += [f"## {name}: error on held-out conditions", "", *markdown(replay_table(replayed)), ""]
        image = image_bytes(replay_curve(replayed, title=name).figure)
        (options.output / f"design_replay_{name.replace(' ', '_')}.png").write_bytes(image)
    for name, found in rates.items():
        lines += [f"## {name}: false hits", "", *markdown(rate_table(found)), ""]
        image = image_bytes(rate_calibration(bins(found), title=name).figure)
        (options.output / f"design_hits_{name.replace(' ', '_')}.png").write_bytes(image)
    write_text(options.output / "design.md", "\n".join(lines))
    record = {
        "replay": {name: replay_table(one).to_dict("index") for name, one in replays.items()},
        "hits": {name: rate_table(one).to_dict("index") for name, one in rates.items()},
    }
    write_json(options.output / "design.json", {"settings": settings} | record)


def markdown(table: pd.DataFrame) -> list[str]:
    """Lines of a table."""
    lines = ["| |" + "|".join(table.columns) + "|", "|---" + "|---:" * len(table.columns) + "|"]
    for name, row in table.iterrows():
        cells = [f"{value:.4g}" if isinstance(value, float | int) else str(value) for value in row]
        lines.append(f"| {name} |" + "|".join(cells) + "|")
    return lines


if __name__ == "__main__":
    main()
