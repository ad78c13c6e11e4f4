"""The replay and the calibration of hits in a small form."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gears import PertData
from gears.simulate import SimulatedTruth, simulated_screen

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import design
import design_hits as hits
import levels


@pytest.fixture(scope="module")
def screen(tmp_path_factory: pytest.TempPathFactory) -> tuple[PertData, SimulatedTruth]:
    adata, truth = simulated_screen(
        n_genes=60, n_singles=14, n_pairs=26, cells_per_condition=40, n_control=150, interaction_share=0.0, seed=6
    )
    data = PertData(tmp_path_factory.mktemp("replay"), default_pert_graph=False)
    data.new_data_process("screen", adata)
    return data, truth


def test_a_replay_measures_rounds_and_learns(screen) -> None:
    replayed = design.replay(*screen, seed=1, repeats=1)
    assert set(replayed["aim"]) == set(design.AIMS)
    assert sorted(replayed["n_measured"].unique()) == [8, 12, 16, 20, 24, 28]
    error = replayed.groupby(["aim", "round"])["error"].mean().unstack()
    assert (error[5] < error[0]).all()
    rows = {row["aim"]: row for row in design.replay_table(replayed)}
    assert rows["information"]["difference"] < 0.05
    assert rows["random"]["difference"] == 0


def test_rates_are_counted_by_readout(screen) -> None:
    data, truth = screen
    conditions = [one for one in data.screen.conditions if not one.is_control]
    held, measured = design.divided(conditions, 3, np.random.default_rng(0))
    model = design.fitted(data, measured, held)
    pairs = [one for one in held if len(one) == 2]
    departures = hits.departure_table(data, truth, model, pairs)
    rates = pd.concat([*hits.hit_rates(data, truth, model, held), hits.departure_rates(departures)])
    table = hits.rate_table(rates)
    assert set(table.index) == {"gene", "signature", "effect size", "interaction"}
    gene = rates[rates["readout"] == "gene"]
    assert abs(gene["probability"].mean() - gene["is_hit"].mean()) < 0.05
    assert table.loc["gene", "recall 20%"] > 0.4


def test_scores_of_every_kind_are_drawn_with_one_legend_and_without_small_bins() -> None:
    bins = pd.DataFrame({"expected": [0.1, 0.2], "observed": [0.1, 0.9], "n": [hits.FEWEST, hits.FEWEST - 1]})
    figure = hits.score_figure(
        {"with pairs": bins.assign(readout="interaction"), "without": bins.assign(readout="gene")}
    )
    first, second, legend, _ = figure.axes
    assert [text.get_text() for text in legend.get_legend().get_texts()] == [
        "calibrated", "gene", "signature", "effect size", "interaction",
    ]  # fmt: skip
    assert first.get_legend() is None
    for ax, number in ((first, 3), (second, 0)):  # the same colour for a readout in all panels
        points = np.ma.masked_invalid(ax.collections[number].get_offsets()).compressed()
        np.testing.assert_allclose(points, [0.1, 0.1, 0.2][: len(points)])


def test_false_rates_and_recall_are_those_of_known_hits() -> None:
    probability_U1 = np.array([0.5, 0.99, 0.97, 0.1])[:, None]
    part = hits.readouts("gene", probability_U1, np.array([True, True, False, False])[:, None])
    assert list(part["is_hit"]) == [True, False, True, False]
    row = hits.rate_table(part).loc["gene"]
    assert row["false at 0.05"] == 0.5  # the two most probable, of which one is a hit
    assert row["taken at 0.05"] == 2
    assert row["false at 0.2"] == pytest.approx(1 / 3)
    departures = pd.DataFrame(
        {"low": [-1.0, -1.0, 0.1, 0.0], "high": [1.0, 1.0, 0.2, 5.0], "true": [0.5, -1.0, 0.3, np.nan]}
    )
    assert hits.coverage(departures) == {"n": 3, "in_interval": pytest.approx(2 / 3), "width": 2.0}


def test_rows_need_enough_conditions_and_departures_their_sign() -> None:
    rows = {"seed": 1, "repeat": [0, 1], "round": 1, "n_measured": 8, "error": 1.0}
    replayed = pd.concat([pd.DataFrame({"aim": aim, "n_conditions": 40, **rows}) for aim in design.AIMS])
    assert {row["verdict"] for row in design.replay_table(replayed)} == {"", "open"}
    assert {row["verdict"] for row in design.replay_table(replayed.assign(n_conditions=20))} == {""}
    found = pd.DataFrame(
        {
            "kind": ["synergy", "suppression", "suppression", "neutral", "synergy", "undetermined"],
            "departure": [0.6, -0.5, -0.5, 0.1, 0.4, 0.9],
            "true": [0.5, -0.4, 0.4, 0.35, 0.05, 0.8],
        }
    ).assign(low=0.0, high=1.0)
    row = levels.of_interactions(found)
    assert (row["large"], row["found"], row["called"], row["undetermined"]) == (5, 2, 4, 1)
    assert row["share false"] == 0.5
    rows = pd.DataFrame([{"screen": "additive", "situation": f"{levels.ALL}, measured", **row}])
    outside = levels.missed({"interactions": rows})
    assert list(outside["column"]) == ["share found", "share false"]


def test_levels_are_those_of_the_truth(screen) -> None:
    """On an additive screen the prior is nearer to it than sums of singles, and near its size."""
    data, truth = screen
    conditions = [one for one in data.screen.conditions if not one.is_control]
    held = [one for one in conditions if len(one) == 2][5:]
    train = [one for one in conditions if one not in held]
    model = design.fitted(data, train, held)
    records = levels.predicted(data, truth, model, train, held)
    row = levels.of_predicted(records)
    assert 0 < row["relative error"] < row["of the sum"] < 1
    assert 0.7 < row["amplitude slope"] < 1.3
    assert 0.7 < row["changes"] < 1
    row = levels.of_measured(levels.measured(data, truth, model, train))
    assert row["error / measured"] < 1
    assert row["lowest slope"] <= row["median slope"] <= row["highest slope"]
