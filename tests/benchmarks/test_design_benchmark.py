"""The replay and the calibration of hits in a small form."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gears import PertData
from gears.simulate import Truth, simulated_screen

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmarks():
    """The two benchmarks, imported as a script imports its neighbours."""
    before = set(sys.modules)
    sys.path.append(str(FOLDER))
    yield __import__("design"), __import__("design_hits")
    sys.path.remove(str(FOLDER))
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "") or "").startswith(str(FOLDER)):
            del sys.modules[name]


@pytest.fixture(scope="module")
def screen(tmp_path_factory: pytest.TempPathFactory) -> tuple[PertData, Truth]:
    adata, truth = simulated_screen(
        n_genes=60,
        n_singles=14,
        n_pairs=26,
        cells_per_condition=40,
        n_control=150,
        interaction_share=0.0,
        seed=6,
    )
    data = PertData(tmp_path_factory.mktemp("replay"), default_pert_graph=False)
    data.new_data_process("screen", adata)
    return data, truth


def test_a_replay_measures_rounds_and_learns(benchmarks, screen) -> None:
    design, _ = benchmarks
    replayed = design.replay(*screen, seed=1, repeats=2)
    assert set(replayed["aim"]) == set(design.AIMS)
    assert sorted(replayed["n_measured"].unique()) == [8, 12, 16, 20, 24, 28]
    error = replayed.groupby(["aim", "round"])["error"].mean().unstack()
    assert (error[5] < error[0]).all()
    table = design.replay_table(replayed)
    assert table.loc["information", "difference"] < 0.05
    assert table.loc["random", "difference"] == 0


def test_rates_are_counted_by_readout(benchmarks, screen) -> None:
    design, hits = benchmarks
    data, truth = screen
    conditions = [one for one in data.screen.conditions if not one.is_control]
    held, measured = design.divided(conditions, 3, np.random.default_rng(0))
    rates = pd.concat(hits.hit_rates(data, truth, design.fitted(data, measured, held), held))
    table = hits.rate_table(rates)
    assert set(table.index) == {"gene", "signature", "effect size", "interaction"}
    gene = rates[rates["readout"] == "gene"]
    assert abs(gene["probability"].mean() - gene["is_hit"].mean()) < 0.05
    assert table.loc["gene", "recall 20%"] > 0.4


def test_false_rates_and_recall_are_those_of_known_hits(benchmarks) -> None:
    _, hits = benchmarks
    probability_U1 = np.array([0.5, 0.99, 0.97, 0.1])[:, None]
    part = hits.readouts("gene", probability_U1, np.array([True, True, False, False])[:, None])
    assert list(part["is_hit"]) == [True, False, True, False]
    row = hits.rate_table(part).loc["gene"]
    assert row["false at 0.05"] == 0.5  # the two most probable, of which one is a hit
    assert row["taken at 0.05"] == 2
    assert row["false at 0.2"] == pytest.approx(1 / 3)


def test_a_verdict_needs_enough_conditions(benchmarks) -> None:
    design, _ = benchmarks
    rows = {"seed": 1, "repeat": [0, 1], "round": 1, "n_measured": 8, "error": 1.0}
    replayed = pd.concat([pd.DataFrame({"aim": aim, "n_conditions": 40, **rows}) for aim in design.AIMS])
    assert set(design.replay_table(replayed)["verdict"]) == {"", "open"}
    assert set(design.replay_table(replayed.assign(n_conditions=20))["verdict"]) == {""}
