"""Are the probabilities and scores of hits right?

    python benchmarks/design_hits.py                                  (all simulated kinds)
    python benchmarks/design_hits.py --kinds additive --seeds 0 1 --folds 5 --output benchmarks/results

Five folds over conditions of simulated screens; every measured gene up and down as a readout, random signatures of 20
genes, the effect size, and departures of pairs from additivity with the share of them that lie in their interval of
90 %. Thresholds are quantiles of the expected changes. The
stated rate is the score at which candidates are taken, the observed one the share of them that the expected means of
the simulation do not confirm. Held-out conditions are also sought by their measured
change (:func:`gears.design.reverse`).

Seeds 0 to 9 are for development, those from 100 on for published tables.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from design import add_screens, changes, fitted, markdown, quiet, screens

from gears import GEARS, Condition, PertData
from gears.data.splits import folds
from gears.design import interactions_table
from gears.design.hits import Scorer, TrueChanges
from gears.design.interactions import MARGIN
from gears.design.reverse import similarity
from gears.files.formats import write_json, write_text
from gears.plotting import image_bytes, new_figure
from gears.plotting.curves import rate_calibration
from gears.prediction.predictions import Predictions
from gears.simulate import Truth

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATES, BUDGETS = (0.05, 0.1, 0.2), (0.05, 0.1, 0.2)
BINS = np.linspace(0, 1, 11)
MOST_SCORE = 0.5  # of the bins of scores
FEWEST = 20  # candidates of a bin that is drawn
SEEDS = (100, 101, 102)


def main() -> None:
    """Rates of every kind of screen; tables in markdown and json, and figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add_screens(parser, SEEDS)
    parser.add_argument("--folds", type=int, default=5)
    options = parser.parse_args()
    quiet()
    rates: dict[str, list[pd.DataFrame]] = {}
    found: dict[str, list[float]] = {}
    departed: dict[str, list[pd.DataFrame]] = {}
    for name, seed, data, truth in screens(options):
        assert truth is not None
        for split in folds(data.screen, options.folds, 1, 1):
            held = [one for one in split.conditions("test") if not one.is_control]
            parts = [split.conditions("train"), split.conditions("val")]
            model = fitted(data, [one for part in parts for one in part if not one.is_control], held)
            departures = departure_table(data, truth, model, [one for one in held if len(one) == 2])
            departed.setdefault(name, []).append(departures)
            rates.setdefault(name, []).extend(
                [*hit_rates(data, truth, model, held), departure_rates(departures)]
            )
            found.setdefault(name, []).extend(ranks_by_profile(data, model, held))
        if seed == options.seeds[-1]:
            print(f"{name}\n{rate_table(pd.concat(rates[name])).to_string()}", flush=True)
            if options.output:
                tables = {kind: pd.concat(each) for kind, each in rates.items()}
                write(
                    options.output,
                    options,
                    tables,
                    found,
                    {kind: pd.concat(each) for kind, each in departed.items()},
                )


def hit_rates(data: PertData, truth: Truth, model: GEARS, held: Sequence[Condition]) -> list[pd.DataFrame]:
    """One table per readout of held-out conditions: probability, expected rate, and whether it is a hit."""
    predictions = model.predict(held, clip=False)
    true_UG, names = changes(data, truth, held), tuple(predictions.gene_names)
    size = float(np.quantile(np.abs(true_UG), 0.95))
    found = []
    is_other_UG = np.array([[gene not in one.genes for gene in names] for one in held])
    true_changes = TrueChanges.of(model.parts, predictions)
    for sign in (1, -1):
        found.append(readouts("gene", true_changes.beyond(sign * size), sign * true_UG > size, is_other_UG))
    rng, signatures, sizes = np.random.default_rng(0), [], []
    for _ in range(100):
        genes, signs = rng.choice(names, 20, replace=False).tolist(), rng.choice([-1.0, 1.0], 20).tolist()
        weights = dict(zip(genes, signs, strict=True))
        value_U = true_UG @ np.array([weights.get(name, 0.0) for name in names]) / 20
        limit = max(float(np.quantile(np.abs(value_U), 0.8)), 1e-9)
        signatures.append((probability(model, predictions, weights, limit), value_U > limit))
    size_U = np.sqrt((true_UG**2).mean(axis=1))
    for share in (0.3, 0.5, 0.7):
        limit = max(float(np.quantile(size_U, share)), 1e-9)
        sizes.append((probability(model, predictions, None, limit), size_U > limit))
    for name, values in (("signature", signatures), ("effect size", sizes)):
        probability_KU, is_hit_KU = map(np.array, zip(*values, strict=True))
        found.append(readouts(name, probability_KU.T, is_hit_KU.T))
    return found


def probability(model: GEARS, predictions: Predictions, readout: Any, threshold: float) -> np.ndarray:
    """Of a hit, for each condition."""
    return Scorer.of(readout, threshold, tuple(predictions.gene_names))(model.parts, predictions)[2]


def departure_table(data: PertData, truth: Truth, model: GEARS, pairs: Sequence[Condition]) -> pd.DataFrame:
    """Departures of held-out pairs from additivity, and the expected ones as ``true``, NaN where the sum is 0."""
    if not pairs:
        return pd.DataFrame(columns=["departure", "low", "high", "probability", "kind", "true"], dtype=float)
    table = interactions_table(model, pairs, scores=False)
    expected = []
    for gene_1, gene_2 in zip(table["gene_1"], table["gene_2"], strict=True):
        first_G, second_G, double_G = changes(
            data, truth, [Condition((gene_1,)), Condition((gene_2,)), Condition((gene_1, gene_2))]
        )
        sum_G = first_G + second_G
        expected.append(double_G @ sum_G / (sum_G @ sum_G) - 1 if sum_G.any() else np.nan)
    return table[["departure", "low", "high", "probability", "kind"]].assign(true=expected)


def departure_rates(departures: pd.DataFrame) -> pd.DataFrame:
    """Probable departures, most probable first, and whether the expected ones are as large in the same direction."""
    is_hit_U = np.sign(departures["departure"]) * departures["true"] > MARGIN
    return readouts("interaction", departures[["probability"]].to_numpy(), is_hit_U.to_numpy()[:, None])


def coverage(departures: pd.DataFrame) -> dict[str, float]:
    """Number of defined departures, the share of them in their interval of 90 %, and the median width of it."""
    known = departures[departures["true"].notna()]
    is_inside = (known["low"] <= known["true"]) & (known["true"] <= known["high"])
    width = float((known["high"] - known["low"]).median())
    return {"n": len(known), "in_interval": float(is_inside.mean()), "width": width}


def ranks_by_profile(data: PertData, model: GEARS, held: Sequence[Condition]) -> list[float]:
    """Place of each held-out condition, as a share, when all are ranked by its measured change."""
    predictions, places = model.predict(held, clip=False), []
    for row, wanted_G in enumerate(changes(data, None, held)):
        cosine_U = similarity(predictions.delta_UG, predictions.sd, wanted_G)[0]
        places.append(float((cosine_U > cosine_U[row]).mean()))
    return places


def readouts(
    name: str, probability_UK: np.ndarray, is_hit_UK: np.ndarray, is_candidate_UK: np.ndarray | None = None
) -> pd.DataFrame:
    """Candidates of K readouts, each in the order of :func:`gears.design.hits`."""
    if is_candidate_UK is None:
        is_candidate_UK = np.ones(probability_UK.shape, dtype=bool)
    order_UK = np.argsort(np.where(is_candidate_UK, -probability_UK, 1.0), axis=0, kind="stable")
    probability_UK, is_hit_UK, is_candidate_UK = (
        np.take_along_axis(values_UK, order_UK, axis=0)
        for values_UK in (probability_UK, is_hit_UK, is_candidate_UK)
    )
    place_U1 = np.arange(1, len(order_UK) + 1)[:, None]
    columns = {
        "probability": probability_UK,
        "is_hit": is_hit_UK,
        "rate": np.cumsum(1 - probability_UK, axis=0) / place_U1,
        "place": place_U1 / is_candidate_UK.sum(axis=0),
        "false_share": np.cumsum(~is_hit_UK, axis=0) / place_U1,
    }
    table = pd.DataFrame({key: values_UK[is_candidate_UK] for key, values_UK in columns.items()})
    table.insert(0, "readout", name)
    return table


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


def score_bins(rates: pd.DataFrame) -> pd.DataFrame:
    """Mean score and share of false ones in ten bins of the score up to 0.5, by readout.

    Each candidate counts with the share of false ones among it and those above it in its readout.
    """
    rates = rates[rates["rate"] <= MOST_SCORE]
    place = pd.cut(rates["rate"], MOST_SCORE * BINS, include_lowest=True, labels=False)
    table = rates.groupby(["readout", place])[["rate", "false_share"]].agg(["mean", "size"])
    columns = {
        "expected": table["rate", "mean"],
        "observed": table["false_share", "mean"],
        "n": table["rate", "size"],
    }
    return pd.DataFrame(columns).reset_index(level=0)


def score_figure(scores: dict[str, pd.DataFrame]) -> Figure:
    """Observed share of false hits against the score for every kind, with one legend; small bins are not drawn."""
    order = ["gene", "signature", "effect size", "interaction"]
    n_rows = len(scores) // 2 + 1
    figure = new_figure(4.4, 1.7 * n_rows)
    panels = figure.subplots(n_rows, 2, sharex=True, sharey=True, squeeze=False).ravel()
    drawn_in = {name: table[table["n"] >= FEWEST] for name, table in scores.items()}
    top = max([MOST_SCORE, *(table["observed"].max() for table in drawn_in.values() if len(table))])
    for ax, (name, drawn) in zip(panels, drawn_in.items(), strict=False):
        absent = pd.DataFrame({"readout": order, "expected": np.nan, "observed": np.nan, "n": 1})
        rows = pd.concat([absent, drawn], ignore_index=True)  # one colour for a readout in all panels
        rate_calibration(rows, title=name, ax=ax).get_legend().remove()
        ax.set(xlabel="", ylabel="", xlim=(-0.01, MOST_SCORE + 0.01), ylim=(-0.03, top + 0.05))
    for ax in panels[len(scores) :]:
        ax.axis("off")
    panels[max(len(scores) - 2, 0)].tick_params(labelbottom=True)  # above an empty panel
    panels[len(scores)].legend(
        *panels[0].get_legend_handles_labels(), loc="center", fontsize=8, frameon=False
    )
    figure.supxlabel("score (stated share of false hits)", fontsize=9)
    figure.supylabel("observed share of false hits", fontsize=9)
    return figure


def write(
    folder: Path,
    options: argparse.Namespace,
    rates: dict[str, pd.DataFrame],
    found: dict[str, list[float]],
    departed: dict[str, pd.DataFrame],
) -> None:
    """Tables and figures into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    seeds = ", ".join(map(str, options.seeds))
    lines = [
        "# Calibration of hits",
        "",
        f"Seeds {seeds}, folds: {options.folds}. `benchmarks/design_hits.py`",
        "",
    ]
    record: dict[str, Any] = {}
    for name, each in rates.items():
        table, first = rate_table(each), float(np.mean(np.equal(found[name], 0)))
        inside = coverage(departed[name])
        of_pairs = (
            f"Departures of held-out pairs in their interval of 90 %: {inside['in_interval']:.1%} of {inside['n']}; "
            f"median width {inside['width']:.2f}."
        )
        lines += [
            f"## {name}",
            "",
            *markdown(table),
            "",
            f"First by their own measured change: {first:.0%}.",
            "",
            *([of_pairs, ""] if inside["n"] else []),
        ]
        record[name] = {"rates": table.to_dict("index"), "first_by_profile": first}
        record[name] |= {"probabilities": bins(each).to_dict("records")}
        record[name] |= {"scores": score_bins(each).to_dict("records"), "departures": inside}
        drawn = bins(each)
        image = image_bytes(rate_calibration(drawn[drawn["n"] >= FEWEST], title=name).figure)
        (folder / f"design_hits_{name.replace(' ', '_')}.png").write_bytes(image)
    figure = score_figure({name: score_bins(each) for name, each in rates.items()})
    (folder / "design_hits_scores.png").write_bytes(image_bytes(figure))
    write_text(folder / "design_hits.md", "\n".join(lines))
    write_json(folder / "design_hits.json", {"seeds": options.seeds, "folds": options.folds, "kinds": record})


if __name__ == "__main__":
    main()
