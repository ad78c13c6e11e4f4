"""Are the probabilities and scores of hits right?

    python benchmarks/run.py design_hits                                  (all simulated kinds)
    python benchmarks/run.py design_hits --kinds additive --seeds 0 1

Five folds over conditions of simulated screens; every measured gene up and down as a readout, random signatures of 20
genes, the effect size, and departures of pairs from additivity with the share of them that lie in their interval of
90 %. Thresholds are quantiles of the expected changes. The
stated rate is the score at which candidates are taken, the observed one the share of them that the expected means of
the simulation do not confirm. Held-out conditions are also sought by their measured
change (:func:`gears.design.reverse`).

Seeds 0 to 9 are for development, those from 100 on for published tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from design import changes, fitted
from measuring import Result, table
from screens import KINDS, folds_of, known_and_tested, screens

from gears import GEARS, Condition, PertData
from gears.design import interactions_table
from gears.design._interactions import MARGIN
from gears.design.hits import Scorer
from gears.design.reverse import similarity
from gears.plotting import image_bytes, new_figure
from gears.plotting._curves import rate_calibration
from gears.prediction.predictions import Predictions
from gears.simulate import SimulatedTruth

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATES, BUDGETS = (0.05, 0.1, 0.2), (0.05, 0.1, 0.2)
BINS = np.linspace(0, 1, 11)
MOST_SCORE = 0.5  # of the bins of scores
FEWEST = 20  # candidates of a bin that is drawn


def calibration_of_hits(
    kinds: tuple[str, ...] = KINDS, seeds: tuple[int, ...] = (100, 101, 102), folds: int = 5, small: bool = False
) -> Iterator[Result]:
    """Rates of every kind of screen, departures of pairs, and places of conditions by their own change."""
    found: dict[str, dict[str, list[Any]]] = {}
    for screen in screens(kinds, None, seeds, small):
        of_kind = found.setdefault(screen.name, {"rates": [], "departures": [], "places": []})
        assert screen.truth is not None
        with screen.prepared() as data:
            for split in folds_of(data, folds):
                measured, held = known_and_tested(split)
                model = fitted(data, measured, held)
                pairs = [one for one in held if len(one) == 2]
                departures = departure_table(data, screen.truth, model, pairs)
                of_kind["departures"].append(departures)
                of_kind["rates"] += hit_rates(data, screen.truth, model, held)
                of_kind["rates"].append(departure_rates(departures))
                of_kind["places"] += ranks_by_profile(data, model, held)
        print(f"{screen.name}, seed {screen.seed}", flush=True)
        if screen.seed == seeds[-1]:
            yield result(found, {"seeds": list(seeds), "folds": folds})


def result(found: dict[str, dict[str, list[Any]]], settings: dict[str, Any]) -> Result:
    """Tables and figures of the kinds so far."""
    lines, kinds, files, scores = [], {}, {}, {}
    for name, of_kind in found.items():
        rates, inside = pd.concat(of_kind["rates"]), coverage(pd.concat(of_kind["departures"]))
        first = float(np.mean(np.equal(of_kind["places"], 0)))
        rows = [{"readout": readout, **row} for readout, row in rate_table(rates).iterrows()]
        lines += [f"## {name}", "", *table(rows), "", f"First by their own measured change: {first:.0%}.", ""]
        if inside["n"]:
            share = f"{inside['in_interval']:.1%} of {inside['n']}; median width {inside['width']:.2f}."
            lines += [f"Departures of held-out pairs in their interval of 90 %: {share}", ""]
        drawn, scores[name] = bins(rates), score_bins(rates)
        kinds[name] = {"rates": rows, "first_by_profile": first, "departures": inside}
        kinds[name] |= {"probabilities": drawn.to_dict("records"), "scores": scores[name].to_dict("records")}
        figure = rate_calibration(drawn[drawn["n"] >= FEWEST], title=name).figure
        files[f"_{name.replace(' ', '_')}.png"] = image_bytes(figure)
    files["_scores.png"] = image_bytes(score_figure(scores))
    return Result("Calibration of hits", lines, settings | {"kinds": kinds}, files)


def hit_rates(data: PertData, truth: SimulatedTruth, model: GEARS, held: Sequence[Condition]) -> list[pd.DataFrame]:
    """One table per readout of held-out conditions: probability, expected rate, and whether it is a hit."""
    predictions = model.predict(held, clip=False)
    true_UG, names = changes(data, truth, held), tuple(predictions.gene_names)
    size = float(np.quantile(np.abs(true_UG), 0.95))
    found = []
    is_other_UG = np.array([[gene not in one.genes for gene in names] for one in held])
    true_changes = predictions.true_changes()
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
    return Scorer.of(readout, threshold, tuple(predictions.gene_names))(predictions)[2]


def departure_table(data: PertData, truth: SimulatedTruth, model: GEARS, pairs: Sequence[Condition]) -> pd.DataFrame:
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
        np.take_along_axis(values_UK, order_UK, axis=0) for values_UK in (probability_UK, is_hit_UK, is_candidate_UK)
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
            row[f"recall {budget:.0%}"] = part.loc[part["place"] <= budget, "is_hit"].sum() / max(row["hits"], 1)
        rows[readout] = row
    return pd.DataFrame(rows).T


def bins(rates: pd.DataFrame) -> pd.DataFrame:
    """Mean probability and share of hits in ten bins of the probability, by readout."""
    return binned(rates, "probability", "is_hit", BINS)


def score_bins(rates: pd.DataFrame) -> pd.DataFrame:
    """Mean score and share of false ones in ten bins of the score up to 0.5, by readout.

    Each candidate counts with the share of false ones among it and those above it in its readout.
    """
    return binned(rates[rates["rate"] <= MOST_SCORE], "rate", "false_share", MOST_SCORE * BINS)


def binned(rates: pd.DataFrame, expected: str, observed: str, edges: np.ndarray) -> pd.DataFrame:
    """Means of two columns in bins of the first, by readout, and the number of rows."""
    place = pd.cut(rates[expected], edges, include_lowest=True, labels=False)
    rows = rates.groupby(["readout", place])
    means = rows[[expected, observed]].mean().set_axis(["expected", "observed"], axis=1)
    return means.assign(n=rows.size()).reset_index(level=0)


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
    panels[len(scores)].legend(*panels[0].get_legend_handles_labels(), loc="center", fontsize=8, frameon=False)
    figure.supxlabel("score (stated share of false hits)", fontsize=9)
    figure.supylabel("observed share of false hits", fontsize=9)
    return figure
