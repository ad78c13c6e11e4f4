"""Screens with values below 0 (z-scores, residuals): nothing sets their predictions to 0 unless the caller says so."""

from typing import Any

import anndata
import numpy as np
import pytest
import torch
from anndata import AnnData
from driving import pert_data_of, trained_gears

from gears import GEARS, PertData
from gears.cli.main import main
from gears.evaluation import BASELINES, compare, make_baseline
from gears.graphs import GeneEmbedding
from gears.jobs import Ensemble, PriorEstimator
from gears.jobs.estimators import load_with_screen


def z_scored(adata: AnnData) -> AnnData:
    """The screen with mean 0 and variance 1 for each gene."""
    values = np.asarray(adata.X.todense(), dtype=np.float64)
    scaled = adata.copy()
    scaled.layers.clear()  # beside counts, scaled values are an error
    scaled.X = ((values - values.mean(0)) / np.maximum(values.std(0), 1e-6)).astype(np.float32)
    return scaled


@pytest.fixture(scope="module")
def pert_data(tmp_path_factory, small_screen):
    return pert_data_of(tmp_path_factory.mktemp("scaled"), z_scored(small_screen[0]), "scaled", split="simulation")


@pytest.fixture(scope="module", params=["auto", None], ids=["prior", "network"])
def model(request, pert_data):
    return trained_gears(pert_data, hidden_size=4, steps=2, prior=request.param)


def below_zero(values: np.ndarray) -> float:
    return float((np.asarray(values) < 0).mean())


def perturbed(pert_data: PertData, part: str = "test") -> list[Any]:
    return [one for one in pert_data.split.conditions(part) if not one.is_control]


def test_predictions_below_zero_stay(model, pert_data, tmp_path):
    conditions = perturbed(pert_data)
    predicted = model.predict(conditions)
    assert predicted.clip is False
    assert below_zero(predicted.expression_UG) > 0.2
    assert predicted.expression_UG.all()
    clipped = model.predict(conditions, clip=True)
    assert below_zero(clipped.expression_UG) == 0
    file = anndata.read_h5ad(model.predict_to_file(conditions, tmp_path / "predicted.h5ad"))
    assert below_zero(file.X) > 0.2
    assert file.uns["gears"]["clip"] == False  # noqa: E712  (numpy's)
    frames = list(model.predict_all_pairs(pert_data.pert_names[:3]))
    assert below_zero(frames[0].to_numpy()) > 0.2


def test_a_saved_model_and_an_ensemble_know_it(model, pert_data, tmp_path):
    conditions = perturbed(pert_data)
    model.save_model(tmp_path / "m")
    loaded = GEARS.from_pretrained(tmp_path / "m", device="cpu")
    np.testing.assert_array_equal(loaded.predict(conditions).expression_UG, model.predict(conditions).expression_UG)
    assert below_zero(Ensemble([loaded, model]).predict(conditions).expression_UG) > 0.2


def test_the_command_knows_it(model, pert_data, tmp_path, capsys):
    model.save_model(tmp_path / "m")
    words = ["predict", str(tmp_path / "m"), pert_data.pert_names[0], "--quiet", "--output"]
    assert main([*words, str(tmp_path / "default.csv")]) == 0
    assert main([*words, str(tmp_path / "clipped.csv"), "--clip"]) == 0
    default, clipped = (
        np.loadtxt(tmp_path / f"{name}.csv", delimiter=",", skiprows=1, usecols=range(1, 10))
        for name in ("default", "clipped")
    )
    assert below_zero(default) > 0
    assert below_zero(clipped) == 0
    capsys.readouterr()


def test_scores_compare_what_is_predicted(model):
    table = model.evaluate("test", baselines=["no_change"])
    change = table[(table["method"] == "no_change") & (table["metric"] == "pearson_delta")]["value"]
    assert len(change) > 0
    assert change.isna().all(), "'no change' predicts no change, so its correlation is undefined"
    clipped = model.evaluate("test", baselines=["no_change"], clip=True)
    rows = clipped[(clipped["method"] == "no_change") & (clipped["metric"] == "pearson_delta")]
    assert rows["value"].notna().any()


def test_validation_scores_the_prior_as_it_predicts(pert_data):
    """The monitored score of the prior alone is that of its predictions below 0 as well."""
    from gears.evaluation.metrics import condition_metrics
    from gears.training._validation import validation_of

    model = trained_gears(pert_data, hidden_size=4, epochs=0, refit=False)
    prior = model._need_model().prior
    validation = validation_of(pert_data, "mse", prior)
    scores, _ = validation.of_prior
    conditions = validation.truths[0].conditions
    predicted_UG = model.predict(list(conditions)).expression_UG
    values = condition_metrics(predicted_UG, validation.truths[0], ["mse"])
    assert scores["val_mse"] == pytest.approx(float(values.mean()), abs=1e-12)


def test_baselines_below_zero_stay(pert_data):
    conditions = perturbed(pert_data)
    genes = pert_data.screen.perturbed_genes
    embedding = GeneEmbedding(tuple(genes), np.random.default_rng(0).normal(size=(len(genes), 3)))
    for name in BASELINES:
        for clip, least in ((None, 0.2), (True, 0.0)):
            baseline = make_baseline(name, **({"clip": clip} if clip else {}), embedding=embedding)
            share = below_zero(baseline.fit(pert_data.screen, pert_data.split).predict(conditions))
            assert share > least if least else share == 0, name


def test_compare_and_the_prior_alone(pert_data):
    estimator = PriorEstimator(pert_data).fit(pert_data.screen, pert_data.split)
    assert below_zero(estimator.predict(perturbed(pert_data)).mean_UG) > 0.2
    result = compare({}, pert_data.screen, [pert_data.split], baselines=["no_change", "train_mean"])
    table = result.table
    change = table[(table["method"] == "no_change") & (table["metric"] == "pearson_delta")]["value"]
    assert change.isna().all()


@pytest.mark.parametrize("option", ["max_residual", "max_cell_residual"])
def test_knock_down_filters_need_expression(option, small_screen, tmp_path):
    pert_data = PertData(tmp_path, default_pert_graph=False)
    with pytest.raises(ValueError, match="compare expression, and X has negative values"):
        pert_data.new_data_process("scaled", z_scored(small_screen[0]), **{option: 0.5})


def test_screens_without_negative_values_are_clipped_as_before(small_screen, tmp_path):
    pert_data = pert_data_of(tmp_path, small_screen[0], "small", split="simulation")
    model = trained_gears(pert_data, hidden_size=4, steps=1, prior=None)
    with torch.no_grad():
        model.best_model.indv_b2 -= 1.0  # predictions below zero
    conditions = perturbed(pert_data)
    default = model.predict(conditions)
    assert default.clip is True
    np.testing.assert_array_equal(default.expression_UG, model.predict(conditions, clip=True).expression_UG)
    unclipped = model.predict(conditions, clip=False)
    assert below_zero(default.expression_UG) == 0 < below_zero(unclipped.expression_UG)


def test_a_model_is_not_evaluated_on_another_scale(small_screen, pert_data, tmp_path):
    model = trained_gears(pert_data, hidden_size=4, epochs=0)
    model.save_model(tmp_path / "model")
    other = pert_data_of(tmp_path / "data", small_screen[0], "logged", split="simulation")
    for load in (GEARS(other, device="cpu").load_pretrained, lambda path: load_with_screen(path, other)):
        with pytest.raises(
            ValueError, match="trained on values of the scale 'scaled', and this PertData holds 'log1p'"
        ):
            load(tmp_path / "model")
    other.new_data_process("logged", small_screen[0], scale="scaled")  # as stated
    other.prepare_split("simulation", seed=1)
    GEARS(other, device="cpu").load_pretrained(tmp_path / "model")
