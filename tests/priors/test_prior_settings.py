"""Levels, signs and intervals with several lines, donors and types, against truth (`benchmarks/settings.py`)."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import settings


def rows(case: str, seed: int = 0) -> dict:
    return settings.figures(settings.CASES[case](seed), seed)


@pytest.mark.parametrize(
    "case",
    [
        "scaled",  # a line that reacts half as strongly
        "donors",  # many settings of few conditions
        "pairs apart",  # singles of a line that measured pairs
        "types, one line",  # CRISPRa does the opposite of CRISPRi
    ],
)
def test_held_out_conditions_of_a_setting_are_right_in_size_and_sign(case):
    row = rows(case)
    assert row["error, held out"] < 1.3 * row["simple"]
    assert row["error, trained"] < 1.1 * row["measured"]
    assert 0.82 < row["worst, held out"] < 0.94


@pytest.mark.parametrize("case", ["own", "held-out line"])
def test_measured_conditions_are_predicted_as_measured_where_little_carries_over(case):
    row = rows(case)
    assert row["error, trained"] < 0.85 * row["measured"]
    assert row["slope, trained"] > 0.9


def test_a_gene_without_counts_in_a_line_does_not_change_there():
    assert rows("silent")["silent genes"] < 0.02


def test_few_control_cells_widen_the_intervals_of_their_setting_whatever_its_name():
    screen = settings.few_controls(0)
    adata, _ = settings.sampled(screen, 0)
    units = [("L2", "", "G001"), ("L0", "", "G001")]
    sd, delta = {}, {}
    for renamed in (False, True):
        lines = {"L0": "Z0", "L1": "Z1", "L2": "A2"} if renamed else {line: line for line in screen.base}
        adata.obs["line"] = [lines[line] for line in settings.sampled(screen, 0)[0].obs["line"]]
        named = settings.Screen(
            {lines[line]: base_G for line, base_G in screen.base.items()},
            {(lines[line], *rest): effect_G for (line, *rest), effect_G in screen.effect.items()},
            {(lines[line], *rest) for line, *rest in screen.held_out},
        )
        with tempfile.TemporaryDirectory() as folder:
            model = settings.fitted(named, adata, folder)
            of_units = [settings.condition_of((lines[line], *rest), False) for line, *rest in units]
            predicted = model.predict(of_units)
            sd[renamed], delta[renamed] = predicted.sd_change, predicted.delta_UG
    np.testing.assert_allclose(delta[True], delta[False], atol=0.02 * np.abs(delta[False]).max())
    np.testing.assert_allclose(sd[True], sd[False], rtol=0.02)
    assert sd[False][0].mean() > 1.3 * sd[False][1].mean()
