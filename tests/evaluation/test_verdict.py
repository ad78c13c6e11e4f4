"""The verdict: paired intervals against the best baseline of each metric, and the tables below it."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import pytest

from gears.evaluation import (
    DECISIVE,
    DEFAULT,
    METRICS,
    render_table,
    short_table,
    verdict,
    verdict_lines,
    verdict_table,
)

N = 12
SPREAD = np.linspace(-0.05, 0.05, N)
Values = Mapping[str, Mapping[str, Sequence[float] | float]]


def tidy(values: Values, n: int = N, models: Sequence[str] = ("gears",)) -> pd.DataFrame:
    """A table from the value, or the values of n conditions, of each metric and method."""
    rows = [
        {"condition": f"P{row}+ctrl", "subgroup": "unseen_single" if row % 2 else "seen_single", "n_cells": 10}
        | {"method": method, "metric": metric, "value": float(value)}
        for metric, of_method in values.items()
        for method, numbers in of_method.items()
        for row, value in enumerate(np.broadcast_to(numbers, n))
    ]
    table = pd.DataFrame(rows)
    table.attrs.update(model=models[0], models=list(models))
    return table


def outcomes(table: pd.DataFrame) -> dict[str, str]:
    rows = verdict_table(table)
    return dict(zip(rows["metric"], rows["verdict"], strict=True))


def test_better_worse_and_not_distinguishable_each_against_the_best_baseline_of_that_metric():
    noise = np.tile([0.3, -0.3], N // 2)
    table = tidy(
        {
            "discrimination_ref": {"gears": 0.6 + SPREAD, "additive": 0.5, "train_mean": 0.4},
            "pearson_delta_ref": {"gears": 0.5 + noise, "additive": 0.1, "train_mean": 0.48},
            "relative_error": {"gears": 0.2 + SPREAD, "additive": 0.3, "train_mean": 0.1},
        }
    )
    rows = verdict_table(table).set_index("metric")
    assert rows["verdict"].to_dict() == {
        "discrimination_ref": "better",
        "pearson_delta_ref": "not distinguishable",
        "relative_error": "worse",
    }
    assert rows["baseline"].to_dict() == {
        "discrimination_ref": "additive",
        "pearson_delta_ref": "train_mean",
        "relative_error": "train_mean",
    }
    assert rows.loc["relative_error", "difference"] == pytest.approx(0.1)
    assert (rows["low"] <= rows["difference"]).all()
    assert (rows["difference"] <= rows["high"]).all()
    assert verdict(table) == "Better than the best baseline on 1, worse on relative_error (12 conditions)."
    lines = verdict_lines(table)
    assert lines[0] == verdict(table)
    assert lines[2].startswith("  discrimination_ref: better (gears 0.600, additive~ 0.500, difference +0.100 (")
    assert len(lines) == 4


SOME, HALF = np.where(np.arange(N) < 3, 0.05, np.nan), np.where(np.arange(N) < N // 2, 0.9, np.nan)
CONSTANT = {"gears": np.nan, "no_change": np.nan}
CASES: list[tuple[Values, dict[str, str], str]] = [
    # rounding is no difference
    ({"relative_error": {"gears": 0.3 + SPREAD + 1e-14, "additive": 0.3 + SPREAD}},
     {"relative_error": "not distinguishable"}, "No better and no worse"),
    # a model that is undefined everywhere is worse than a baseline with values
    ({"discrimination_ref": {**CONSTANT, "additive": 0.2}, "relative_error": {"gears": 0.1, "additive": 0.5}},
     {"discrimination_ref": "worse", "relative_error": "better"}, "Better"),
    ({"discrimination_ref": CONSTANT}, {}, "No verdict"),
    # missing errors are excluded from the pairs; a baseline with few conditions is not the best of all
    ({"relative_error": {"gears": 0.2, "linear": SOME, "additive": 0.3}}, {"relative_error": "better"}, "Better"),
    ({"discrimination_ref": {"gears": 0.6 + SPREAD, "additive": HALF, "go_ridge": 0.5}},
     {"discrimination_ref": "better"}, "Better"),
    ({"mae": {"gears": 1, "additive": 2}}, {}, "No verdict: none of pearson_delta_ref, discrimination_ref,"),
    ({"discrimination_ref": {"gears": 1.0}}, {}, "No verdict on gears"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "expected", "words"), CASES)
def test_outcomes_and_their_sentence(values, expected, words):
    table = tidy(values)
    assert outcomes(table) == expected
    assert verdict(table).startswith(words)
    assert next(iter(values)) in short_table(table) or not expected


def test_the_short_table_shows_the_means_that_the_verdict_compares():
    """A baseline without a value for half of the conditions does not look better than it is judged to be."""
    row = short_table(tidy(CASES[4][0])).splitlines()[2].split()
    assert row[:4] == ["discrimination_ref", "0.600", "go_ridge", "0.500"]


@pytest.mark.parametrize(("n", "expected"), [(9, "too few conditions to say"), (10, "better")])
def test_ten_conditions_are_needed(n, expected):
    table = tidy({"discrimination_ref": {"gears": 0.9, "additive": 0.1}}, n)
    assert outcomes(table) == {"discrimination_ref": expected}
    assert ("Too few conditions" in verdict(table)) == (n == 9)


@pytest.mark.parametrize("n", [3, 10, 30])
@pytest.mark.parametrize("metric", DECISIVE)
def test_the_first_line_says_that_a_baseline_wins_a_decisive_metric(n, metric):
    higher = METRICS[metric].higher_is_better
    table = tidy({metric: {"gears": 0.4 if higher else 0.6, "go_ridge": 0.5, "additive": 0.1 if higher else 0.9}}, n)
    first, short = render_table(table).splitlines()[0], short_table(table).splitlines()
    assert first == short[0]
    expected = f"Worse than the best baseline on {metric} ({n} conditions)."
    assert short[0] == (
        expected if n >= 10 else "Too few conditions to say (3; 10 needed); a baseline is ahead on 1 of 1 metrics."
    )
    assert short[2].split()[::2][:2] == [metric, "go_ridge"]


def test_variants_of_the_model_are_no_baselines_and_the_short_table_has_80_columns():
    values = {
        "gears": 0.5, "prior + network x 0.3": 0.9, "no_change": 0.1, "train_mean": 0.3, "additive": 0.4,
        "linear": 0.2, "go_ridge": 0.45,
    }  # fmt: skip
    table = tidy(
        {
            metric: values if METRICS[metric].higher_is_better else {m: 1 - v for m, v in values.items()}
            for metric in DECISIVE
        },
        models=("gears", "prior + network x 0.3"),
    )
    table.attrs["labels"] = {"gears": "gears (the prior alone)"}
    table.attrs["notes"] = ["all methods fitted to 24 training and 4 validation conditions", "subgroups ..."]
    table.attrs["left_out"] = {"go_knn": "why"}
    assert set(verdict_table(table)["baseline"]) == {"go_ridge"}
    lines = short_table(table).splitlines()
    assert lines[0] == "Better than the best baseline on 7 of 7 metrics (12 conditions)."
    assert [line.split()[0] for line in lines[2 : 2 + len(DECISIVE)]] == list(DECISIVE)
    assert all(" go_ridge " in line and " +" in line for line in lines[2 : 2 + len(DECISIVE)])
    assert max(map(len, lines)) <= 80
    assert lines[2 + len(DECISIVE) :] == ["excluded: go_knn"]
    whole = render_table(table, subgroups=True)
    assert table.attrs["notes"][0] in whole
    assert "unseen_single: 6 conditions" in whole
    assert "gears (the prior alone)" in whole


def test_the_sentence_stays_in_a_line_whatever_is_better_or_worse():
    """Metrics that are worse are named where there is room, else counted."""
    names = {name: METRICS[name].higher_is_better for name in DECISIVE}
    for n_worse in range(len(DECISIVE) + 1):
        values = {
            name: {"gears": 0.4 if (row < n_worse) == higher else 0.6, "additive_ridge_coexpression": 0.5}
            for row, (name, higher) in enumerate(names.items())
        }
        table = tidy(values, 99)
        table.attrs["folds"] = 5
        lines = short_table(table).splitlines()
        assert max(map(len, lines)) <= 80
        assert "99 in 5 folds" in lines[0]
        assert ("worse" in lines[0].lower()) == (n_worse > 0)
        assert ("pearson_delta_ref" in lines[0]) == (n_worse == 1)
    assert lines[0].startswith("Worse than the best baseline on 7 of 7 metrics")


def test_where_the_train_mean_has_the_smaller_error_it_is_the_advice():
    for of_mean in (0.9, 1.1):
        table = tidy({"relative_error": {"gears": 1.0, "train_mean": of_mean, "go_knn": 0.5}})
        advice = "the train mean has the smaller error (relative_error 0.900 against 1.000): prefer it here"
        assert (advice in short_table(table).replace("\n", " ")) == (of_mean == 0.9)


def test_tables_fit_a_terminal_of_100_columns():
    """Metrics that do not fit continue below, under the same methods."""
    values = {"gears": 0.5, "additive_ridge_coexpression": np.where(np.arange(N) < 1, np.nan, 0.25)}
    text = render_table(tidy(dict.fromkeys(DEFAULT, values)))
    lines = text.partition("all: ")[2].splitlines()
    assert max(map(len, lines)) <= 100
    assert sum(line.startswith("method") for line in lines) > 1
    shown = [line.split()[1:] for line in lines if line.startswith("additive_ridge_coexpression")]
    assert sum(map(len, shown)) == 2 * len(DEFAULT)  # "0.250 [1]" are two words
    few = render_table(tidy(dict.fromkeys(DEFAULT, values)), metrics=DECISIVE[:6])
    assert sum(line.startswith("method") for line in few.splitlines()) == 1
    assert "top20" not in few
