"""`GEARS.evaluate` and GEARS as a method of a comparison."""

import copy
import dataclasses
import json
import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from driving import gears_of, pert_data_of, trained_gears

from gears import GEARS, PertData
from gears.evaluation import compare, verdict, verdict_table
from gears.jobs.estimators import GEARSEstimator, PriorEstimator

NETWORK = {"hidden_size": 8}
TRAINING = {"steps": 3, "objective": "moments", "prior": None}


@pytest.fixture(scope="module")
def data(tmp_path_factory, small_screen) -> PertData:
    return pert_data_of(tmp_path_factory.mktemp("judged"), small_screen[0].copy(), "small", split="simulation")


def test_evaluate_gives_scaled_scores(data):
    model = gears_of(data, **NETWORK)
    table = model.evaluate("test", n_split_half=1, metrics=["mse", "pearson_delta", "mse_top20_de"], name="mine")
    assert set(table["method"]) >= {"mine", "additive", "go_ridge", "no_change"}
    assert table.loc[table["method"] == "additive", "scaled"].notna().any()
    assert "scaled" not in model.evaluate("val", n_split_half=0, metrics=["mse"])
    with pytest.warns(DeprecationWarning, match="halvings is called n_split_half now") as warned:
        former = model.evaluate("test", halvings=2, metrics=["mse"])
    assert [Path(warning.filename) for warning in warned] == [Path(__file__)]  # else Python would not show it
    pd.testing.assert_frame_equal(former, model.evaluate("test", n_split_half=2, metrics=["mse"]))
    with pytest.raises(ValueError, match="did you mean 'n_split_half'"):
        model.evaluate("test", n_split_half=0, n_splits_half=3)


def test_a_part_that_the_split_lacks_is_an_error_and_an_empty_one_is_no_table(data, tmp_path, caplog):
    model = gears_of(data, **NETWORK)
    with pytest.raises(ValueError, match=r"'tets'; did you mean 'test'\? \(valid: train, val, test\)"):
        model.evaluate("tets")
    other = copy.copy(data)
    other.use_split(dataclasses.replace(data.split, parts={**data.split.parts, "test": ()}, subgroup=None))
    model = gears_of(other, **NETWORK)
    with caplog.at_level(logging.INFO, logger="gears"):
        assert model.evaluate("test") is None
    assert "part 'test' of the split has no perturbed condition" in caplog.text
    other.prepare_split("no_test")
    model = gears_of(other, **NETWORK)
    assert model.report_test() is None
    with pytest.raises(ValueError, match="valid: train, val"):
        model.evaluate("test")


def test_the_prior_alone_reads_the_embeddings_that_the_model_reads(data):
    singles = [condition for condition in data.screen.conditions if len(condition) == 1]
    change_CG = data.screen.statistics.delta(np.array([data.screen.id_of(one) for one in singles]))
    embedding = pd.DataFrame(change_CG[:, :12], index=[one.genes[0] for one in singles])
    network = {"hidden_size": 4, "pert_embedding": embedding}
    model = trained_gears(data, **network, epochs=0)
    tested = data.split.conditions("test")
    expected = model.predict(tested).expression_UG
    with_it = PriorEstimator(data, network=network).fit(data.screen, data.split).predict(tested).mean_UG
    without = PriorEstimator(data).fit(data.screen, data.split).predict(tested).mean_UG
    assert np.abs(with_it - expected).max() < 1e-6 < np.abs(without - expected).max()


@pytest.fixture(scope="module")
def with_prior(data) -> GEARS:
    """A model with a prior, whose network has learned something."""
    model = trained_gears(data, **NETWORK, **TRAINING)
    prior = PriorEstimator(data, refit=False).fit(data.screen, data.split).prior
    model.parts = dataclasses.replace(model.parts, prior=prior)
    return model


def weighted(model: GEARS, weight: float, **report) -> GEARS:
    """The same model with another weight of its network."""
    other = copy.copy(model)
    prior = dataclasses.replace(model.parts.prior, network_weight=weight, report={**model.parts.prior.report, **report})
    other.parts = dataclasses.replace(model.parts, prior=prior)
    return other


def test_the_prior_alone_and_the_network_that_is_not_used_have_rows_of_their_own(data, with_prior, caplog):
    options = {"metrics": ["mse", "pearson_delta"], "baselines": ["additive", "train_mean"], "n_split_half": 0}

    def rows(model: GEARS) -> dict[str, list[float]]:
        table = model.evaluate("test", **options)
        assert set(verdict_table(table)["baseline"]) <= set(options["baselines"])
        return {str(method): own["value"].tolist() for method, own in table.groupby("method", sort=False)}

    used, unused, tried = (
        rows(weighted(with_prior, 0.5)),
        rows(weighted(with_prior, 0.0)),
        rows(weighted(with_prior, 0.0, best_weight_tried=0.5)),
    )
    assert list(used) == ["gears", "prior alone", "additive", "train_mean"]
    assert list(unused) == ["gears", "additive", "train_mean"]
    assert list(tried) == ["gears", "prior + network x 0.5", "additive", "train_mean"]
    assert unused["gears"] == tried["gears"] == used["prior alone"]
    assert tried["prior + network x 0.5"] == used["gears"] != used["prior alone"]
    without = gears_of(data, **NETWORK)
    assert list(rows(without)) == ["gears", "additive", "train_mean"]

    model = weighted(with_prior, 0.0, best_weight_tried=0.5)
    with caplog.at_level(logging.INFO, logger="gears"):
        model.report_test()
    logged = next(message for message in caplog.messages if "\nmetric " in message)
    sentence, header, *rows_of_metrics = logged.splitlines()
    assert "than the best baseline" in sentence
    assert sentence.endswith("(18 in 5 folds).")
    assert header.split()[:2] == ["metric", "gears"]
    assert [line.split()[0] for line in rows_of_metrics[:3]] == [
        "pearson_delta_ref",
        "discrimination_ref",
        "relative_error",
    ]


def test_the_report_says_the_verdict_and_what_methods_were_fitted_to(data, with_prior, tmp_path, without_figures):
    table = with_prior.evaluate("test", n_split_half=0, report=tmp_path)
    page = (tmp_path / "report.html").read_text()
    whole = json.loads((tmp_path / "evaluation.json").read_text())
    assert whole["verdicts"] == {"gears": verdict(table)}
    assert whole["notes"] == table.attrs["notes"]
    assert [row["verdict"] for row in whole["decisive"]] == verdict_table(table)["verdict"].tolist()
    assert "All methods fitted to" in page
    assert page.index("<h1>") < page.index(verdict(table))


def test_estimators_say_which_parts_they_are_fitted_to(data):
    """The prior is fitted to validation conditions as well, and so are the baselines beside it."""
    options = {"baselines": ["train_mean"], "metrics": ["mse"], "n_split_half": 0}
    n = {part: sum(not c.is_control for c in data.split.conditions(part)) for part in ("train", "val")}
    both = compare({"prior": PriorEstimator(data)}, data.screen, data.split, **options)
    assert set(both.runs["n_train"]) == {n["train"] + n["val"]}
    alone = compare({"prior": PriorEstimator(data, refit=False)}, data.screen, data.split, **options)
    assert set(alone.runs["n_train"]) == {n["train"]}
    values = [found.table.query("method == 'prior'")["value"].tolist() for found in (both, alone)]
    assert values[0] != values[1]
    estimator = GEARSEstimator(data, network=NETWORK, training=TRAINING, device="cpu")
    assert estimator.fitted_parts == ("train",)
    estimator.fit(data.screen, data.split)
    estimator.model.parts = dataclasses.replace(estimator.model.parts, fitted_parts=("train", "val"))
    assert estimator.fitted_parts == ("train", "val")


def test_gears_is_trained_anew_on_every_split_and_the_users_split_stays(data):
    before = data.split
    result = compare(
        {"gears": lambda seed: GEARSEstimator(data, network=NETWORK, training=TRAINING, seed=seed, device="cpu")},
        data.screen,
        [data.split],
        seeds=[1, 2],
        baselines=["train_mean"],
        metrics=["mse"],
        n_split_half=0,
    )
    assert data.split is before
    own = result.table[result.table["method"] == "gears"]
    assert own.groupby("seed")["value"].mean().nunique() == 2
    assert own["value"].notna().all()
    with pytest.raises(ValueError, match="not fitted"):
        GEARSEstimator(data).predict(["A"])


def test_another_screen_is_refused(data, tmp_path, toy_adata, toy_go):
    other = PertData(tmp_path, gene2go=toy_go, default_pert_graph=False)
    other.new_data_process("toy", toy_adata)
    with pytest.raises(ValueError, match="not that of the estimator"):
        GEARSEstimator(data).fit(other.screen, data.split)
