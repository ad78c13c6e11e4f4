"""Are levels right, and what is built on them: means, changes, intervals, interactions, hits, batches, power?

    python benchmarks/run.py levels                                       (all simulated kinds, and those with triples)
    python benchmarks/run.py levels --kinds additive "no signal" --seeds 0
    python benchmarks/run.py levels --data FOLDER --kinds --name levels-real      (measured conditions of real subsets)

Situations: training has all singles and 0, 2, 5, 20 or all of the combinations; the others are predicted. Kinds without
combinations have the last situation only. Everything is compared with the expected means of the simulation; slopes and
amounts of measured conditions with their measured changes. Figures of a kind are over the conditions of all its
screens. Rows outside the targets are listed first.

Seeds 0 to 9 are for development, those from 100 on for published tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from design import changes, fitted
from design_hits import FEWEST, coverage, departure_table, hit_rates
from measuring import Result
from measuring import table as markdown
from scipy.stats import ttest_ind_from_stats
from screens import COMBINED, KINDS, from_singles, screens

from gears import GEARS, Condition, PertData
from gears.data.screen._statistics import variance_within
from gears.design import hits, power, reverse, suggest
from gears.design._interactions import NEUTRAL
from gears.design.hits import Z_90
from gears.design.power import EXACT_BELOW
from gears.evaluation.interactions import ADDITIVE, SUPPRESSION, SYNERGY, UNDETERMINED, predicted_interactions
from gears.simulate import SimulatedTruth

N_COMBINATIONS = (0, 2, 5, 20)
ALONE, ALL = "singles alone", "all conditions"
RELIABLE = 0.9  # share of the measured squared change that is no sampling noise
LARGE, NONE = 0.3, 0.1  # departures that are to be found, and those that are false when called
STATED = 0.2  # share of false hits
EFFECTS, N_DRAWS = (0.5, 1.0), 2000  # of tests, draws for each gene
ADDING = ("additive", "low-rank", "additive triples")
# Columns of a table, least and greatest value, and the situation and kinds that it is meant for (all where empty).
TARGETS: tuple[tuple[str, tuple[str, ...], float, float, str, tuple[str, ...]], ...] = (
    ("predicted", ("means", "changes"), 0.87, 0.93, "", ()),
    ("predicted", ("means, top 20", "changes, top 20"), 0.85, 0.95, ALONE, ()),
    ("predicted", ("amplitude slope",), 0.85, 1.15, ALONE, ADDING),
    ("measured", ("lowest slope", "highest slope"), 0.9, 1.05, "", ()),
    ("measured", ("means", "changes"), 0.87, 0.93, "", ()),
    ("interactions", ("share found",), 2 / 3, 1.0, f"{ALL}, measured", ()),
    ("interactions", ("share false",), 0.0, 0.1, f"{ALL}, measured", ()),
    ("hits", ("false / stated",), 1 / 1.3, 1.3, "", ()),
    ("suggest", ("found / stated",), 1 / 1.3, 1.3, "", ()),
    ("power", ("lowest", "median", "highest", "resampled"), 0.7, 0.9, "", ()),
)


def levels(
    kinds: tuple[str, ...] = (*KINDS, *COMBINED),
    data: Path | None = None,
    seeds: tuple[int, ...] = (100, 101, 102),
    small: bool = False,
) -> Iterator[Result]:
    """Everything of every screen."""
    records: dict[str, list[pd.DataFrame]] = {}
    for screen in screens(kinds, data, seeds, small):
        with screen.prepared() as prepared:
            for table, situation, found in measurements(prepared, screen.truth, screen.seed or 0):
                records.setdefault(table, []).append(found.assign(screen=screen.name, situation=situation))
        print(f"{screen.name}, seed {screen.seed}", flush=True)
        if screen.seed in (None, seeds[-1]):
            tables = {name: summary(name, pd.concat(records[name])) for name in TABLES if name in records}
            outside = missed(tables).to_dict("records")
            lines = ["## Outside the targets", "", *markdown(outside), ""]
            rows = {name: table.to_dict("records") for name, table in tables.items()}
            for name in tables:
                lines += [f"## {TABLES[name][0]}", "", *markdown(rows[name]), ""]
            yield Result("Levels against truth", lines, {"seeds": list(seeds), "outside": outside, **rows})


def measurements(data: PertData, truth: SimulatedTruth | None, seed: int) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Name of the table, situation and records of one screen."""
    conditions = [one for one in data.screen.conditions if not one.is_control]
    singles, combined = ([one for one in conditions if (len(one) > 1) == several] for several in (False, True))
    for n, split in from_singles(data.screen, N_COMBINATIONS if combined and truth is not None else ()):
        train = [one for one in split.conditions("train") if not one.is_control]
        held, situation = split.conditions("test"), f"singles + {n}" if n else ALONE
        model = fitted(data, train, held)
        yield "predicted", situation, predicted(data, truth, model, train, held)
        yield "measured", situation, measured(data, truth, model, train)
        yield "hits", situation, rates(data, truth, model, held)
        if pairs := [one for one in held if len(one) == 2]:
            yield "interactions", f"{situation}, predicted", departure_table(data, truth, model, pairs)
            if n in (N_COMBINATIONS[0], N_COMBINATIONS[-1]):
                yield ("kinds", situation, predicted_interactions(model.predict([*singles, *pairs], clip=False)))
    model = fitted(data, conditions, [])
    found = measured(data, truth, model, conditions)
    yield "measured", ALL, found
    reliable = [conditions[row] for row in np.flatnonzero(found["reliability"] > RELIABLE)]
    if reliable:
        yield "reverse", ALL, amounts(data, model, reliable, conditions)
    if truth is None:
        return
    if pairs := [one for one in combined if len(one) == 2]:
        yield "interactions", f"{ALL}, measured", departure_table(data, truth, model, pairs)
    yield from remaining(data, truth, singles, combined, seed)
    for effect in EFFECTS:
        powers = simulated_power(data, effect, seed)
        for few, part in powers.groupby(powers["cells"] < EXACT_BELOW):
            number = f"{'below' if few else 'from'} {EXACT_BELOW}"
            yield "power", f"effect {effect:g}, {number} cells", part


def predicted(
    data: PertData, truth: SimulatedTruth, model: GEARS, train: Sequence[Condition], held: Sequence[Condition]
) -> pd.DataFrame:
    """Squared errors of held-out conditions, of the sums of their singles and of the training mean; slope, coverage."""
    change_UG, true_UG = model.predict(held, clip=False).delta_UG, changes(data, truth, held)
    train_UG = changes(data, None, train)
    single_of = {one.genes: row for one, row in zip(train, train_UG, strict=True)}
    sum_UG = np.array([sum(single_of[gene,] for gene in one.genes) for one in held])
    guesses = {"error": change_UG, "of_sum": sum_UG, "of_mean": train_UG.mean(axis=0)}
    table = pd.DataFrame({name: ((guess - true_UG) ** 2).sum(axis=1) for name, guess in guesses.items()})
    table["slope"] = (change_UG * true_UG).sum(axis=1) / (change_UG**2).sum(axis=1)
    top_U20 = np.argsort(-np.abs(change_UG), axis=1)[:, :20]
    for name, is_inside_UG in inside(data, truth, model, held).items():
        table[name] = is_inside_UG.mean(axis=1)
        table[f"{name}, top 20"] = np.take_along_axis(is_inside_UG, top_U20, axis=1).mean(axis=1)
    return table


def inside(
    data: PertData, truth: SimulatedTruth, model: GEARS, conditions: Sequence[Condition]
) -> dict[str, np.ndarray]:
    """Whether expected means and changes lie in their intervals of 90 %, (U, G) each."""
    predictions, true_UG = model.predict(conditions, clip=False), changes(data, truth, conditions)
    control_G = pd.Series(truth.control_mean_G, truth.genes)[list(data.screen.gene_names)].to_numpy()
    return {
        "means": np.abs(predictions.expression_UG - control_G - true_UG) <= Z_90 * predictions.sd,
        "changes": np.abs(predictions.delta_UG - true_UG) <= Z_90 * predictions.sd_change,
    }


def measured(data: PertData, truth: SimulatedTruth | None, model: GEARS, train: Sequence[Condition]) -> pd.DataFrame:
    """Slope of the prediction on the measured change, reliability of this, squared errors of both, and coverage."""
    change_UG, measured_UG = model.predict(train, clip=False).delta_UG, changes(data, None, train)
    statistics, ids = data.screen.statistics, np.array([data.screen.id_of(one) for one in train])
    size_U = (measured_UG**2).sum(axis=1)
    noise_U = variance_within(statistics, ids).sum() / statistics.n[ids]
    slope_U = (change_UG * measured_UG).sum(axis=1) / size_U
    table = pd.DataFrame({"reliability": 1 - noise_U / size_U, "slope": slope_U})
    if truth is None:
        return table
    true_UG = changes(data, truth, train)
    errors = [((one_UG - true_UG) ** 2).sum(axis=1) for one_UG in (change_UG, measured_UG)]
    covered = {name: is_in_UG.mean(axis=1) for name, is_in_UG in inside(data, truth, model, train).items()}
    return table.assign(error=errors[0], of_measured=errors[1], **covered)


def rates(data: PertData, truth: SimulatedTruth, model: GEARS, held: Sequence[Condition]) -> pd.DataFrame:
    """Candidates of all readouts, and the share of them for which `hits` states no share of false ones."""
    size = float(np.sqrt((changes(data, truth, held) ** 2).mean()))
    undetermined = hits(model, held, threshold=size)["fdr_score"].isna().mean()
    return pd.concat(hit_rates(data, truth, model, held)).assign(undetermined=undetermined)


def amounts(data: PertData, model: GEARS, wanted: Sequence[Condition], candidates: Sequence[Condition]) -> pd.DataFrame:
    """What `reverse` states of each condition whose exact measured change is wanted."""
    found = []
    for one, wanted_G in zip(wanted, changes(data, None, wanted), strict=True):
        row = reverse(model, wanted_G, candidates, len(candidates)).set_index("condition").loc[one.name]
        found.append((row["amount"], float(row["rank"] == 1)))
    return pd.DataFrame(found, columns=["amount", "is_first"])


def remaining(
    data: PertData, truth: SimulatedTruth, singles: list[Condition], combined: list[Condition], seed: int
) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Stated and found share of the squared error that is left once a suggested quarter of the candidates is known."""
    drawn = [singles[row] for row in np.random.default_rng(seed).permutation(len(singles))]
    third, n = len(drawn) // 3, N_COMBINATIONS[-1]
    for situation, known, candidates in (
        ("singles, a third known", drawn[:third], drawn[third:]),
        (f"combinations, {ALONE}", singles, combined),
        (f"combinations, singles + {n}", [*singles, *combined[:n]], combined[n:]),
    ):
        if candidates:
            model, true_UG = fitted(data, known, candidates), changes(data, truth, candidates)
            batch = suggest(model, candidates, max(4, len(candidates) // 4))
            chosen = [Condition.parse(name) for name in batch["condition"]]
            left = [one for one in candidates if one not in chosen]
            before, after = (
                ((each.predict(candidates, clip=False).delta_UG - true_UG) ** 2).sum()
                for each in (model, fitted(data, [*known, *chosen], left))
            )
            found = {"stated": [batch["remaining"].iloc[-1]], "found": [after / before]}
            yield "suggest", situation, pd.DataFrame(found)


def simulated_power(data: PertData, effect: float, seed: int) -> pd.DataFrame:
    """Power of each gene with the stated cells and one fewer, Gaussian; of every tenth gene also of its own cells."""
    screen, rng, found = data.screen, np.random.default_rng(seed), []
    table = power(screen, effect=effect)
    table = table[np.isfinite(table["cells"]) & (table["sd"] > 0) & (table["control_sd"] > 0)]
    control_XG = np.asarray(screen.cells.rows(screen.control_cells), dtype=np.float64)
    for place, (gene, row) in enumerate(table.iterrows()):
        n, m, of_gene = int(row["cells"]), int(row["control_cells"]), {}
        for name, n_own in (("gaussian", n), ("one fewer", n - 1)):
            sides = [(row["sd"], n_own), (row["control_sd"], m)]
            if n_own > 1:  # one cell has no variance
                means = [rng.normal(0, sd / k**0.5, N_DRAWS) for sd, k in sides]
                sds = [sd * np.sqrt(rng.chisquare(k - 1, N_DRAWS) / (k - 1)) for sd, k in sides]
                of_gene[name] = share_seen(effect, means, sds, (n_own, m))
        if place % 10 == 0:
            values = (control_XG[:, gene] - control_XG[:, gene].mean()) / control_XG[:, gene].std()
            drawn = [row[sd] * rng.choice(values, (N_DRAWS // 4, k)) for sd, k in (("sd", n), ("control_sd", m))]
            means, sds = [each.mean(axis=1) for each in drawn], [each.std(axis=1, ddof=1) for each in drawn]
            of_gene["resampled"] = share_seen(effect, means, sds, (n, m))
        found.append({"cells": n} | of_gene)
    return pd.DataFrame(found, columns=["cells", "gaussian", "one fewer", "resampled"])


def share_seen(effect: float, means: list[np.ndarray], sds: list[np.ndarray], numbers: tuple[int, int]) -> float:
    """Share of draws in which Welch's test sees the effect at the level of 0.05."""
    test = ttest_ind_from_stats(effect + means[0], sds[0], numbers[0], means[1], sds[1], numbers[1], equal_var=False)
    return float((test.pvalue < 0.05).mean())


# --- tables -----------------------------------------------------------------------------------


def summary(table: str, records: pd.DataFrame) -> pd.DataFrame:
    """Rows of a table by kind of screen and situation, of hits also by readout."""
    keys = ["screen", "situation", *(["readout"] if table == "hits" else [])]
    rows = [
        dict(zip(keys, key, strict=True)) | {"n": len(part)} | TABLES[table][1](part)
        for key, part in records.groupby(keys, sort=False)
    ]
    return pd.DataFrame(rows)


def of_predicted(part: pd.DataFrame) -> dict[str, float]:
    """Errors as shares of that of the training mean, median slope, mean coverage."""
    of_mean = part["of_mean"].sum()
    row = {"relative error": part["error"].sum() / of_mean, "of the sum": part["of_sum"].sum() / of_mean}
    covered = part[["means", "means, top 20", "changes", "changes, top 20"]].mean().to_dict()
    return row | {"amplitude slope": part["slope"].median()} | covered


def of_measured(part: pd.DataFrame) -> dict[str, float]:
    """Slopes of reliable conditions; of all, error as a share of the measurement's, and coverage."""
    slope = part.loc[part["reliability"] > RELIABLE, "slope"]
    row = {"reliable": len(slope), "lowest slope": slope.min(), "median slope": slope.median()}
    row["highest slope"] = slope.max()
    if "error" not in part:
        return row
    row["error / measured"] = part["error"].sum() / part["of_measured"].sum()
    return row | part[["means", "changes"]].mean().to_dict()


def of_reverse(part: pd.DataFrame) -> dict[str, float]:
    """Amounts, and the share of conditions that are the most similar to their own change."""
    amount = part["amount"]
    amounts = {"lowest": amount.min(), "median": amount.median(), "highest": amount.max()}
    return amounts | {"first": part["is_first"].mean()}


def of_interactions(part: pd.DataFrame) -> dict[str, float]:
    """Large departures that are found with their sign, false ones among those that are called, and coverage."""
    true, is_called = part["true"], ~part["kind"].isin([NEUTRAL, UNDETERMINED])
    is_right, is_large = is_called & (np.sign(part["departure"]) == np.sign(true)), true.abs() > LARGE
    is_false, is_found = is_called & (~is_right | (true.abs() < NONE)), is_large & is_right
    return {
        "undetermined": int((part["kind"] == UNDETERMINED).sum()),
        "large": int(is_large.sum()),
        "found": int(is_found.sum()),
        "share found": is_found[is_large].mean(),
        "called": int(is_called.sum()),
        "share false": is_false[is_called].mean(),
        "in interval": coverage(part)["in_interval"],
        "width": coverage(part)["width"],
    }


def of_kinds(part: pd.DataFrame) -> dict[str, float]:
    """Number of pairs of each kind."""
    return {kind: int((part["kind"] == kind).sum()) for kind in (UNDETERMINED, ADDITIVE, SYNERGY, SUPPRESSION)}


def of_hits(part: pd.DataFrame) -> dict[str, float]:
    """Share of candidates without a stated share; stated and observed share of false ones of what is taken."""
    taken, undetermined = part[part["rate"] <= STATED], part["undetermined"].mean()
    stated, false = 1 - taken["probability"].mean(), 1 - taken["is_hit"].mean()
    is_stated = undetermined == 0 and len(taken) >= FEWEST
    row = {"undetermined": undetermined, "taken": len(taken), "stated": stated, "false": false}
    return row | {"false / stated": false / stated if is_stated else np.nan}


def of_suggest(part: pd.DataFrame) -> dict[str, float]:
    """Means over screens."""
    stated, found = part["stated"].mean(), part["found"].mean()
    return {"stated": stated, "found": found, "found / stated": found / stated}


def of_power(part: pd.DataFrame) -> dict[str, float]:
    """Median number of cells, power of genes with Gaussian cells; median power with one cell fewer, and resampled."""
    gaussian = part["gaussian"]
    row = {"cells": part["cells"].median(), "lowest": gaussian.min(), "median": gaussian.median()}
    return row | {"highest": gaussian.max()} | part[["one fewer", "resampled"]].median().to_dict()


TABLES: dict[str, tuple[str, Callable[[pd.DataFrame], dict[str, float]]]] = {
    "predicted": ("Predicted combinations", of_predicted),
    "measured": (f"Measured conditions (slopes: of those of reliability above {RELIABLE:g})", of_measured),
    "reverse": (f"Amount of the exact measured change (reverse; reliability above {RELIABLE:g})", of_reverse),
    "interactions": ("Departures of pairs from additivity (interactions_table)", of_interactions),
    "kinds": ("Kinds of pairs (predicted_interactions)", of_kinds),
    "hits": (f"Hits among predicted combinations, up to a stated share of false ones of {STATED:g}", of_hits),
    "suggest": ("Remaining uncertainty (suggest)", of_suggest),
    "power": ("Power of Welch's test with the stated cells (wanted: 0.8)", of_power),
}


def missed(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Values outside the targets."""
    found = []
    for name, columns, least, greatest, situation, kinds in TARGETS:
        rows = tables.get(name, pd.DataFrame())
        for column in (one for one in columns if one in rows):
            is_meant = rows["situation"].str.startswith(situation) & (rows["screen"].isin(kinds) | (not kinds))
            is_outside = (rows[column] < least) | (rows[column] > greatest)
            for _, row in rows[is_meant & is_outside].iterrows():
                where = ", ".join(str(row[key]) for key in ("screen", "situation", "readout") if key in row)
                found.append((name, where, column, row[column], f"{least:.3g} to {greatest:.3g}"))
    return pd.DataFrame(found, columns=["table", "row", "column", "value", "target"])
