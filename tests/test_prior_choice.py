"""The prior in a run: chosen once, saved with the model, blind to held-out conditions."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from anndata import AnnData

from gears import GEARS, PertData, prior_choice
from gears.prior_choice import prior_of
from gears.training.model_folder import load_parts
from gears.training.options import TrainOptions

RUN = {"objective": "moments", "epochs": 3, "evaluate_test": False, "verbose": False}


@pytest.fixture(scope="module")
def pert_data(tmp_path_factory: pytest.TempPathFactory, toy_template: AnnData, toy_go: dict) -> PertData:
    return divided(tmp_path_factory.mktemp("screen"), toy_template.copy(), toy_go)


def divided(folder: Path, adata: AnnData, go: dict) -> PertData:
    pert_data = PertData(folder, gene2go=go)
    pert_data.new_data_process("toy", adata)
    pert_data.prepare_split("simulation", seed=1)
    return pert_data


def initialised(pert_data: PertData, **options: object) -> GEARS:
    model = GEARS(pert_data, device="cpu")
    model.model_initialize(hidden_size=8, **options)
    return model


@pytest.fixture
def open_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inner folds are skipped and the network counts half."""
    monkeypatch.setattr(prior_choice, "_gate", lambda *_: (0.5, {"0.5": 0.0}))
    monkeypatch.setattr(prior_choice, "FORMAT", "open gate")


@pytest.mark.usefixtures("open_gate")
def test_prediction_is_prior_and_network_and_survives_saving(pert_data: PertData, tmp_path: Path) -> None:
    model = initialised(pert_data)
    model.train(**RUN, save_path=str(tmp_path / "run"))
    conditions = pert_data.split.conditions("test")
    nodes = [pert_data.condition_nodes(condition) for condition in conditions]
    prior = model.parts.prior
    network_UG = model.best_model.prepared()(nodes)[0].double().numpy()
    assert np.abs(network_UG).max() > 1e-4
    predicted = model.predict(conditions, clip=False)
    np.testing.assert_allclose(predicted.delta_UG, prior(nodes) + 0.5 * network_UG, atol=1e-6)
    loaded = GEARS.from_pretrained(tmp_path / "run", device="cpu")
    np.testing.assert_array_equal(
        loaded.predict(conditions).expression_UG, model.predict(conditions).expression_UG
    )
    assert loaded.parts.prior.report == prior.report
    frames = list(loaded.predict_all_pairs(["GX00", "GX05"], values="delta", clip=False))
    expected = loaded.predict(["GX00+GX05"], clip=False).delta_UG
    np.testing.assert_allclose(frames[0].to_numpy(), expected, atol=1e-6)


@pytest.mark.usefixtures("open_gate")
def test_the_network_starts_at_the_prior(pert_data: PertData) -> None:
    model = initialised(pert_data)
    model.train(**RUN | {"lr": 1e-12})
    nodes = [pert_data.condition_nodes(condition) for condition in pert_data.split.conditions("test")]
    np.testing.assert_allclose(model.best_model.prepared()(nodes)[0].numpy(), 0.0, atol=1e-6)


def test_few_conditions_keep_the_network_out(pert_data: PertData) -> None:
    model = initialised(pert_data)
    model.train(**RUN)
    assert model.parts.prior.network_weight == 0
    conditions = pert_data.split.conditions("test")
    nodes = [pert_data.condition_nodes(condition) for condition in conditions]
    np.testing.assert_array_equal(
        model.predict(conditions, clip=False).expression_UG,
        model.parts.control_mean_G + model.parts.prior(nodes),
    )


def test_inner_folds_choose_the_gate(pert_data: PertData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prior_choice, "LEAST_CONDITIONS", 4)
    monkeypatch.setattr(prior_choice, "FORMAT", "few conditions")
    prior = prior_of(pert_data, initialised(pert_data).parts, TrainOptions()).prior
    tried = {float(gate): value for gate, value in prior.report["gates"].items()}
    assert set(tried) == set(prior_choice.GATES)
    best = min(tried, key=tried.get)
    assert prior.network_weight == (best if tried[0.0] - tried[best] >= prior_choice.MARGIN else 0.0)


def test_without_prior_the_network_is_alone(pert_data: PertData, tmp_path: Path) -> None:
    model = initialised(pert_data)
    model.train(**RUN, prior=None, save_path=str(tmp_path / "run"))
    assert model.parts.prior is None
    assert load_parts(tmp_path / "run").prior is None
    assert not (tmp_path / "run" / "prior.npz").exists()
    no_change = initialised(pert_data, no_perturb=True)
    no_change.train(**RUN)
    assert no_change.parts.prior is None


def test_held_out_conditions_are_not_looked_at(
    tmp_path: Path, toy_adata: AnnData, toy_go: dict, pert_data: PertData
) -> None:
    held_out = {
        c.name for part in ("val", "test") for c in pert_data.split.conditions(part) if not c.is_control
    }
    poisoned = toy_adata.copy()
    dense = poisoned.X.toarray()
    rows = poisoned.obs["condition"].isin(held_out).to_numpy()
    assert rows.any()
    dense[rows] = np.random.default_rng(0).uniform(0, 9, dense[rows].shape)
    poisoned.X = dense.astype(np.float32)
    other = divided(tmp_path / "poisoned", poisoned, toy_go)
    assert other.split.hash == pert_data.split.hash
    ours = prior_of(pert_data, initialised(pert_data).parts, TrainOptions())
    theirs = prior_of(other, initialised(other).parts, TrainOptions())
    for name, values in ours.prior.arrays().items():
        np.testing.assert_array_equal(theirs.prior.arrays()[name], values, err_msg=name)
    np.testing.assert_array_equal(theirs.left_out_CG, ours.left_out_CG)


def test_it_is_made_once(pert_data: PertData, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = initialised(pert_data).parts
    first = prior_of(pert_data, parts, TrainOptions())
    monkeypatch.setattr("gears.contexts.prior.fit_prior", None)
    again = prior_of(pert_data, parts, TrainOptions(lr=0.5))
    np.testing.assert_array_equal(again.left_out_CG, first.left_out_CG)
    other = dataclasses.replace(parts, config=dataclasses.replace(parts.config, hidden_size=9))
    with pytest.raises(TypeError):
        prior_of(pert_data, other, TrainOptions())


def test_a_model_without_its_prior_is_refused(pert_data: PertData, tmp_path: Path) -> None:
    model = initialised(pert_data)
    model.train(**RUN, save_path=str(tmp_path / "run"))
    (tmp_path / "run" / "prior.npz").unlink()
    with pytest.raises(FileNotFoundError, match=r"prior\.npz is missing"):
        GEARS.from_pretrained(tmp_path / "run")


def test_an_unknown_prior_is_refused() -> None:
    with pytest.raises(ValueError, match="auto"):
        TrainOptions(prior="atuo")
