"""What predictions rest on, how probable changes are, and what measurements for a prediction gain, against truth.

    python benchmarks/run.py explained                                  (all parts)
    python benchmarks/run.py explained --kinds additive --seeds 0

*Neighbours.* On the simulated regulatory network every held-out single is explained. A training condition is a true
neighbour where an edge connects one of its genes with the target, in either direction; conditions that perturb the
target are excluded. The AUROC is that of the absolute weight by each similarity.
*Changes.* The probability of a change of more than 0.1 of held-out conditions (five folds) in ten bins, and the share
of genes whose expected change is as large.
*Measurements.* Pairs of which one gene was never perturbed: the stated fall of their variance where that gene alone is
measured (``suggest(for_conditions=...)``), beside that of the squared error where the model is fitted with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from design import changes, fitted
from measuring import Result, table
from screens import KINDS, folds_of, known_and_tested, screens
from sklearn.metrics import roc_auc_score

from gears import Condition, PertData
from gears.design import suggest
from gears.graphs._annotation import GeneAnnotation
from gears.plotting import image_bytes, new_figure, rate_calibration
from gears.prediction.predictions import CHANGED
from gears.simulate import SimulatedTruth
from gears.simulate._design import make_design
from gears.simulate._effects import Network

NETWORK, FEWEST = "regulatory network", 200
BINS = np.linspace(0, 1, 11)
KNOWN = tuple(kind for kind in KINDS if kind != "products")


def explained(
    kinds: tuple[str, ...] = KNOWN, seeds: tuple[int, ...] = (100, 101, 102), folds: int = 5, pairs: int = 6,
    small: bool = False,
) -> Iterator[Result]:  # fmt: skip
    """Calibration of every kind, neighbours on the network, and gains of measurements."""
    bins: dict[str, list[pd.DataFrame]] = {}
    aurocs: dict[str, list[float]] = {}
    gains: list[dict[str, float]] = []
    for screen in screens(kinds, None, seeds, small):
        assert screen.truth is not None
        with screen.prepared() as data:
            for split in folds_of(data, folds):
                measured, held = known_and_tested(split)
                model = fitted(data, measured, held)
                true_UG = np.abs(changes(data, screen.truth, held)) > CHANGED
                p_UG = model.predict(held).p_changed().to_numpy()
                bins.setdefault(screen.name, []).append(pd.DataFrame({"p": p_UG.ravel(), "is": true_UG.ravel()}))
                if screen.name == NETWORK:
                    for name, values in neighbours(model, screen.truth, held).items():
                        aurocs.setdefault(name, []).extend(values)
            every = [one for one in screen.truth.conditions if not one.is_control]
            singles = [one for one in every if len(one) == 1]
            gains += gained(data, screen.truth, [*singles, *[one for one in every if len(one) == 2][:pairs]])
        print(f"{screen.name}, seed {screen.seed}", flush=True)
        if screen.seed == seeds[-1]:
            yield result(bins, aurocs, gains, {"seeds": list(seeds), "folds": folds})


def neighbours(model: Any, truth: SimulatedTruth, held: list[Condition]) -> dict[str, list[float]]:
    """AUROC of each held-out single whose target has neighbours among the training conditions, by similarity."""
    network = Network.draw(truth.options, make_design(truth.options, GeneAnnotation.human()))
    edges = abs(network.weight_NN) + abs(network.weight_NN.T)
    place, found = {gene: number for number, gene in enumerate(network.genes)}, {}
    for condition in (one for one in held if len(one) == 1):
        (target,) = condition.genes
        parts = model.explain(condition, n=100_000).table
        parts = parts[(parts["part"] == "condition") & ~parts["similarity"].isin(["own", "measured"])]
        for name, rows in parts.groupby("similarity"):
            genes = [Condition.parse(label).genes for label in rows["condition"]]
            is_other = np.array([target not in one for one in genes])
            is_near = np.array([any(edges[place[target], place[gene]] for gene in one) for one in genes])[is_other]
            if is_near.any() and not is_near.all():
                found.setdefault(name, []).append(float(roc_auc_score(is_near, rows["weight"].abs()[is_other])))
    return found


def gained(data: PertData, truth: SimulatedTruth, conditions: list[Condition]) -> list[dict[str, float]]:
    """Stated and found fall of the squared error of pairs by measuring one of their genes alone.

    Neither the pair nor any condition of that gene is measured before.
    """
    singles = {one.genes[0]: one for one in conditions if len(one) == 1}
    rows = []
    for pair in (one for one in conditions if len(one) == 2 and set(one.genes) <= set(singles)):
        single = singles[pair.genes[0]]
        known = [one for one in conditions if pair.genes[0] not in one.genes]
        model = fitted(data, known, [pair])
        try:
            gain = float(suggest(model, [single], 1, for_conditions=[pair])["gain"].iloc[0])
        except ValueError:  # nothing is known of the gene
            continue
        again = fitted(data, [*known, single], [pair])
        true_G = changes(data, truth, [pair])[0]
        before, after = (
            float(((one.predict([pair], clip=False).delta_UG[0] - true_G) ** 2).sum()) for one in (model, again)
        )
        rows.append({"stated": gain, "before": before, "after": after})
    return rows


def fall(gains: pd.DataFrame) -> tuple[float, float]:
    """Share of the squared error of all pairs that a measurement was stated to remove, and that it removed."""
    before = float(gains["before"].sum())
    return float((gains["stated"] * gains["before"]).sum()) / before, 1 - float(gains["after"].sum()) / before


def counted_bins(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean probability, found share and number of genes of each bin of more than 200 genes."""
    place = pd.cut(rows["p"], BINS, include_lowest=True, labels=False)
    means = rows.groupby(place).mean().assign(n=rows.groupby(place).size())
    return means[means["n"] > FEWEST]


def figure(bins: dict[str, list[pd.DataFrame]]) -> bytes:
    """Found against stated shares of every kind."""
    n_rows = -(-len(bins) // 3)
    drawn = new_figure(9, 3 * n_rows)
    axes = drawn.subplots(n_rows, 3, squeeze=False)
    for ax, (name, found) in zip(axes.ravel(), bins.items(), strict=False):
        rows = counted_bins(pd.concat(found)).rename(columns={"p": "expected", "is": "observed"})
        rate_calibration(rows.assign(readout="measured"), title=name, ax=ax)
        ax.set(xlabel="probability of a change", ylabel="share that changes")
        if ax.get_legend() is not None:
            ax.get_legend().remove()
    for ax in axes.ravel()[len(bins) :]:
        ax.set_axis_off()
        ax.legend(*axes[0, 0].get_legend_handles_labels(), loc="center", fontsize=8, frameon=False)
    return image_bytes(drawn)


def calibration(found: list[pd.DataFrame]) -> dict[str, Any]:
    """Mean probability, found share, and the largest departure of a bin of more than 200 genes."""
    rows = pd.concat(found)
    counted = counted_bins(rows)
    worst = float((counted["is"] - counted["p"]).abs().max())
    return {
        "stated": float(rows["p"].mean()), "found": float(rows["is"].mean()), "largest departure": worst,
        "bins beyond 0.1": int(((counted["is"] - counted["p"]).abs() > 0.1).sum()), "bins": len(counted),
    }  # fmt: skip


def result(
    bins: dict[str, list[pd.DataFrame]], aurocs: dict[str, list[float]], gains: list[dict[str, float]], settings: Any
) -> Result:
    """Tables of what was found so far."""
    changed = [{"kind": name, **calibration(found)} for name, found in bins.items()]
    near = [
        {"similarity": name, "auroc": float(np.mean(values)), "se": float(np.std(values) / np.sqrt(len(values))),
         "targets": len(values)}
        for name, values in aurocs.items()
    ]  # fmt: skip
    lines = ["## A change of more than 0.1", "", *table(changed), ""]
    lines += ["## True neighbours in the regulatory network", "", *table(near), ""] if near else []
    if gains:
        total = pd.DataFrame(gains)
        rng, n = np.random.default_rng(0), len(total)
        drawn = np.array([fall(total.iloc[rng.integers(0, n, n)]) for _ in range(2000)])
        low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
        of_pairs = {"stated": total["stated"], "found": 1 - total["after"] / total["before"]}
        shares = zip(of_pairs.items(), fall(total), low, high, strict=True)
        rows = [
            {"of the squared error": name, "share": share, "low": least, "high": most, "median of pairs": each.median()}
            for (name, each), share, least, most in shares
        ]
        lines += [f"## Gain of measuring a gene for the prediction of a pair, {n} pairs", "", *table(rows), ""]
    record = settings | {"changed": changed, "near": near, "gains": gains}
    return Result("What predictions rest on", lines, record, {"_changed.png": figure(bins)})
