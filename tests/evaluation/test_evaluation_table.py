"""The comparison of a model with the baselines."""

import io
import logging

import numpy as np
import pandas as pd
import pytest

from gears.evaluation import (
    DEFAULT,
    DEFAULT_BASELINES,
    METRICS,
    Truth,
    comparison_table,
    render_table,
    summary_table,
    verdict_table,
    wide_summary,
)

TEST = ["E+ctrl", "A+B", "C+D", "A+E"]


def truth_means(screen) -> np.ndarray:
    return screen.statistics.mean[[screen.id_of(label) for label in TEST]]


@pytest.fixture(scope="module")
def compared(make_additive_screen, letters_go):
    """A model that predicts the control everywhere, beside every default baseline."""
    screen, split = make_additive_screen()
    predicted = np.tile(screen.statistics.mean[0], (4, 1))
    return comparison_table(predicted, TEST, screen, split, metrics=[*DEFAULT, "spread", "rank"], annotation=letters_go)


def test_truth_of_a_screen(additive_screen):
    screen, split = additive_screen
    screen.gene_names[3] = "A"
    truth = Truth.of(screen, TEST, split.conditions("train"))
    np.testing.assert_array_equal(truth.mean_UG, truth_means(screen))
    reference = np.mean([screen.statistics.mean[screen.id_of(f"{g}+ctrl")] for g in "ABCD"], axis=0)
    np.testing.assert_allclose(truth.reference_mean_G, reference)
    assert truth.n_cells_U.tolist() == [10, 8, 8, 8]
    assert [genes.tolist() for genes in truth.targets] == [[], [3], [], [3]]
    assert [len(genes) for genes in truth.top(4)] == [4, 4, 4, 4]
    assert (truth.std_UG == 1).all()
    assert np.isnan(Truth.of(screen, TEST, ["ctrl"]).reference_mean_G).all()


def test_lost_genes_are_left_out_of_the_non_dropout_list_and_more_genes_than_ranked_refused(make_screen):
    # gene 0 is lost (0 in A, not in control); gene 1 is 0 on both sides and stays
    means = {"ctrl": [1, 0, 1, 1], "A+ctrl": [0, 0, 3, 2]}
    screen = make_screen(means, order=[[-1] * 4, [2, 0, 1, 3]])
    truth = Truth.of(screen, ["A+ctrl"])
    assert truth.top(3)[0].tolist() == [2, 0, 1]
    assert truth.top(9)[0].tolist() == [2, 0, 1, 3]
    assert truth.top(3, dropouts=False)[0].tolist() == [2, 1, 3]
    assert Truth.of(screen, ["ctrl"]).top(3)[0].tolist() == []
    order = np.arange(300)[None]
    truth = Truth.from_means(np.ones((1, 300)), np.ones(300), top_de=order[:, :200])
    assert len(truth.top(200)[0]) == 200
    with pytest.raises(ValueError, match="the top 200 genes of each condition, 201 were requested"):
        truth.top(201)
    assert len(Truth.from_means(np.ones((1, 300)), np.ones(300), top_de=order).top(201)[0]) == 201


def test_tidy_table_has_every_method_condition_and_metric(compared):
    columns = ["condition", "subgroup", "n_cells", "method", "metric", "value", "reason"]
    columns += ["effect_size", "cell_number"]
    assert list(compared.columns) == columns
    assert list(dict.fromkeys(compared["method"])) == ["model", *DEFAULT_BASELINES]
    single = compared[compared["condition"] != "*"]
    of_sd = [name for name in DEFAULT if METRICS[name].needs_sd]
    stated = single[single["metric"].isin(of_sd)]
    assert set(stated["method"]) == {"train_mean", "train_mean_cells"}  # the others state no deviations
    assert len(stated) == 4 * 2 * len(of_sd)
    assert len(single) - len(stated) == 4 * (1 + len(DEFAULT_BASELINES)) * (len(DEFAULT) + 1 - len(of_sd))
    assert not single.duplicated(["condition", "method", "metric"]).any()
    by_condition = single.drop_duplicates("condition").set_index("condition")
    assert by_condition["subgroup"].to_dict() == {
        "E+ctrl": "unseen_single", "A+B": "combo_seen2", "C+D": "combo_seen2", "A+E": "combo_seen1",
    }  # fmt: skip
    assert by_condition.loc["A+B", "n_cells"] == 8


def test_summaries_count_conditions_and_undefined_values_and_the_table_survives_csv(compared):
    summary = summary_table(compared).set_index(["subgroup", "method", "metric"])
    assert summary.loc[("all", "no_change", "pearson_delta")].tolist() == pytest.approx([np.nan, 4, 4], nan_ok=True)
    assert summary.loc[("combo_seen2", "additive", "pearson_delta")].tolist() == pytest.approx([1, 2, 0])
    assert summary.loc[("all", "model", "spread")].tolist() == [0, 4, 0]
    assert summary.loc[("combo_seen2", "additive", "spread")].tolist() == pytest.approx([1, 2, 0])
    wide = wide_summary(compared)
    assert wide.index.names == ["subgroup", "method"]
    assert set(wide.columns) == {"n_conditions", *DEFAULT, "rank", "spread"}
    assert wide.loc[("combo_seen2", "additive"), ["n_conditions", "mse"]].tolist() == pytest.approx([2, 0])
    again = pd.read_csv(io.StringIO(compared.to_csv(index=False)))
    assert render_table(again).splitlines()[0] == render_table(compared).splitlines()[0]


def test_text_has_directions_counts_marks_and_reasons(additive_screen):
    screen, split = additive_screen
    predicted = np.tile(screen.statistics.mean[0], (4, 1))
    table = comparison_table(predicted, TEST, screen, split, baselines=["no_change", "additive_all_singles"])
    text = render_table(table, subgroups=True)
    assert "combo_seen2: 2 conditions" in text
    assert "unseen_single: 1 condition\n" in text
    assert "nan [4]" in text
    assert "additive_all_singles*~" in text
    assert "no_change~" in text
    assert text.splitlines()[-1] == "~: weak reference; *: uses held-out conditions"
    whole = render_table(table)
    assert "all: 4 conditions" in whole
    assert "combo_seen2" not in whole
    better = next(line for line in text.splitlines() if line.startswith("better:"))
    assert better.split()[1:4] == ["higher", "higher", "lower"]
    assert text.isascii()


def test_baselines_that_cannot_be_fitted_are_left_out_with_a_reason(additive_screen, make_split, caplog):
    screen, _ = additive_screen
    with caplog.at_level(logging.WARNING, logger="gears"):
        table = comparison_table(truth_means(screen), TEST, screen, make_split({"test": tuple(TEST)}))
    assert set(table["method"]) == {"model", "no_change"}
    assert "train_mean" in table.attrs["left_out"]
    assert "excluded: train_mean (the train mean needs" in render_table(table)
    assert "additive is excluded" in caplog.text


def test_further_predictions_have_names_and_bad_calls_are_refused(additive_screen):
    screen, split = additive_screen
    predicted = truth_means(screen)
    more = {"baselines": ["additive"], "others": {"no_perturb": predicted * 0}, "method": "run1"}
    table = comparison_table(predicted, TEST, screen, split, **more)
    assert list(dict.fromkeys(table["method"])) == ["run1", "no_perturb", "additive"]
    assert set(verdict_table(table)["baseline"]) == {"additive"}  # others are no baselines
    with pytest.raises(ValueError, match="no condition to evaluate"):
        comparison_table(np.zeros((0, 12)), [], screen, split)
    with pytest.raises(ValueError, match="value per condition"):
        comparison_table(truth_means(screen), TEST, screen, split, metrics=["spread"])
    with pytest.raises(ValueError, match="predicts an array of shape"):
        comparison_table(np.zeros((3, 12)), TEST, screen, split)
