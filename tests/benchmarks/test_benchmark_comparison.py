"""The kept results of the cross-validated comparison: what is added, replaced, and skipped."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import pytest

from gears.evaluation import DECISIVE

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def comparison(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    sys.modules.pop("comparison", None)
    import comparison

    yield comparison
    sys.modules.pop("comparison", None)


def rows(method: str, split: str, value: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    table = pd.DataFrame(
        [
            {"split": split, "seed": 1, "condition": c, "subgroup": "s", "n_cells": 3, "method": method}
            | {"metric": metric, "value": value}
            for c in ("A+ctrl", "B+ctrl")
            for metric in (*DECISIVE, "amplitude_slope", "pearson_delta", "mse_top20_de")
        ]
    )
    runs = pd.DataFrame([{"split": split, "seed": 1, "method": method, "cpu_seconds": 2.0, "seconds": 2.0}])
    return table, runs.assign(peak_mb=1.0)


def test_rows_of_a_split_are_replaced_and_others_stay(comparison, tmp_path):
    comparison.keep(tmp_path, "x", *rows("additive", "one", 0.1), {})
    comparison.keep(tmp_path, "x", *rows("mine", "one", 0.2), {})
    comparison.keep(tmp_path, "x", *rows("mine", "two", 0.3), {"bad": "why"})
    comparison.keep(tmp_path, "x", *rows("mine", "two", 0.4), {})
    table = pd.read_csv(tmp_path / "comparison_x_table.csv.gz")
    assert table.groupby(["method", "split"])["value"].first().to_dict() == {
        ("additive", "one"): 0.1,
        ("mine", "one"): 0.2,
        ("mine", "two"): 0.4,
    }
    assert comparison.done(tmp_path, "x", ("mine",), ["one", "two"])
    assert not comparison.done(tmp_path, "x", ("additive",), ["one", "two"])
    assert not comparison.done(tmp_path, "y", ("mine",), ["one"])


def test_page_says_who_is_better_and_how_many_splits_there_were(comparison, tmp_path):
    comparison.keep(tmp_path, "x", *rows("additive", "one", 0.1), {})
    comparison.keep(tmp_path, "x", *rows("mine", "one", 0.2), {})
    table = pd.read_csv(tmp_path / "comparison_x_table.csv.gz")
    runs = pd.read_csv(tmp_path / "comparison_x_runs.csv.gz")
    lines = comparison.section(table, runs, ["mine"])
    assert (
        "- Too few conditions to say whether mine is better than the baselines (2; 8 are needed); a baseline has the "
        "better mean on relative_error (additive~), interval_score_90 (additive~)."
    ) in lines
    assert lines[0] == "2 conditions, 1 splits."
    assert any(
        line.startswith("| additive | 0.1 (0.1, 0.1)") and line.endswith("| 1 | 2 |") for line in lines
    )
