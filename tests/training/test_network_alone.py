"""What the network learns by itself: remainders, genes without counts, screens without effects, the epoch kept."""

import copy
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from anndata import AnnData
from driving import perturbed_in

from gears import GEARS, PertData
from gears.simulate import simulated_screen
from gears.training._validation import kept_epoch

QUIET = {"evaluate_test": False, "verbose": False}
SIZES = {"n_genes": 60, "n_singles": 24, "n_pairs": 0, "cells_per_condition": 30, "n_control": 300}


def split_screen(folder: Path, adata: AnnData, n_train: int, n_val: int) -> PertData:
    """A custom split; what is not for training or validation is for the test."""
    pert_data = PertData(folder, default_pert_graph=False)
    pert_data.new_data_process("screen", adata)
    labels = sorted(label for label in pert_data.screen.labels if label != "ctrl")
    drawn = np.random.default_rng(1).permutation(labels).tolist()
    held_out = {"val": drawn[n_train : n_train + n_val], "test": drawn[n_train + n_val :]}
    pert_data.prepare_split("custom", seed=1, split_dict={"train": ["ctrl", *drawn[:n_train]], **held_out})
    return pert_data


def trained(pert_data: PertData, *, uncertainty: bool = False, **options: Any) -> tuple[GEARS, Any]:
    model = GEARS(pert_data, device="cpu")
    model.model_initialize(hidden_size=16, seed=1, uncertainty=uncertainty)
    result = model.train(**({"prior": None, "epochs": 10} | QUIET | options))
    return model, result


def changes(pert_data: PertData, model: GEARS, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Predicted and measured changes of a part's conditions, (U, G) each."""
    conditions = perturbed_in(pert_data.split, part)
    measured_UG = pert_data.screen.statistics.delta(
        np.array([pert_data.screen.id_of(condition) for condition in conditions])
    )
    return model.predict(conditions, clip=False).delta_UG, measured_UG


def slope(one_UG: np.ndarray, other_UG: np.ndarray) -> float:
    """Slope of `one` on `other`, both as deviations from their mean over conditions."""
    one_UG, other_UG = one_UG - one_UG.mean(axis=0), other_UG - other_UG.mean(axis=0)
    return float((one_UG * other_UG).sum() / (other_UG**2).sum())


@pytest.fixture(scope="module")
def effects(tmp_path_factory: pytest.TempPathFactory) -> PertData:
    adata, _ = simulated_screen(**SIZES, interaction_share=0.0)
    return split_screen(tmp_path_factory.mktemp("effects"), adata, 16, 4)


@pytest.fixture(scope="module")
def plain(effects: PertData, tmp_path_factory: pytest.TempPathFactory) -> tuple[GEARS, Any, list[str]]:
    """A network trained in batches of 16 of its 17 conditions with the control, and saved; its result, the warnings."""
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("gears").addHandler(handler)
    try:
        path = tmp_path_factory.mktemp("saved") / "m"
        model, result = trained(effects, batch_size=16, save_path=str(path))
    finally:
        logging.getLogger("gears").removeHandler(handler)
    return model, result, messages


def test_a_remainder_does_not_ruin_the_running_statistics(effects: PertData, plain: Any) -> None:
    """In batches of 16 and 1 they would be predicted at twice their size."""
    model = copy.copy(plain[0])
    model.best_model = model.model  # before it is drawn to the mean
    assert 0.3 < slope(*changes(effects, model, "train")) < 1.2


@pytest.mark.parametrize("prior", [None, pytest.param("auto", marks=pytest.mark.long)])
def test_genes_without_counts_do_not_change(tmp_path: Path, prior: str | None) -> None:
    adata, _ = simulated_screen(**SIZES | {"n_genes": 100}, interaction_share=0.0, counts_per_gene=0.2, baseline_sd=2.0)
    pert_data = split_screen(tmp_path, adata, 16, 5)
    train = [pert_data.screen.id_of(condition) for condition in pert_data.split.conditions("train")]
    silent_G = ~(pert_data.screen.statistics.mean[train] > 0).any(axis=0)
    assert silent_G.sum() >= 5
    model, _ = trained(pert_data, prior=prior, epochs=4)
    nodes = [pert_data.condition_nodes(condition) for condition in perturbed_in(pert_data.split, "test")]
    change_UG = model.best_model.prepared()(nodes)[0].numpy()
    top_U20 = np.argsort(-np.abs(change_UG), axis=1)[:, :20]
    assert silent_G[top_U20].mean() <= 0.05


@pytest.mark.parametrize("objective", ["moments", pytest.param("cells", marks=pytest.mark.long)])
def test_a_screen_without_effects_has_no_bias_at_sparse_genes(tmp_path: Path, objective: str) -> None:
    options = {"effect_size": 0.0, "target_effect": 0.0, "counts_per_gene": 0.5, "n_control": 600}
    adata, _ = simulated_screen(**SIZES | options, interaction_share=0.0)
    pert_data = split_screen(tmp_path, adata, 16, 4)
    model, _ = trained(pert_data, objective=objective)
    model.best_model = model.model  # before it is drawn to the mean
    predicted_UG, _ = changes(pert_data, model, "test")
    mean_G = pert_data.screen.control_mean_G
    sparse = (mean_G > 0.02) & (mean_G < 0.3)
    assert sparse.sum() > 20
    assert abs(predicted_UG[:, sparse].mean()) < 0.005


def test_only_epochs_after_the_rise_are_kept_and_a_network_hardly_trained_is_reported(
    effects: PertData, plain: Any, caplog
) -> None:
    """One-cycle rises over three of ten epochs."""
    _, result, _ = plain
    assert result.best_epoch > 3
    assert trained(effects, schedule="constant", epochs=2)[1].best_epoch in (1, 2)
    assert plain[2] == []
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="gears"):
        trained(effects, lr=1e-6, epochs=1)
    (line,) = caplog.messages
    assert "hardly trained" in line


def test_the_last_epoch_is_kept_unless_another_is_better_beyond_chance() -> None:
    rng = np.random.default_rng(0)
    kept = []
    for _ in range(200):
        scores_EU = rng.normal(size=(14, 4))  # of four conditions the best of 14 epochs is always chance
        kept.append(kept_epoch(scores_EU, lower_is_better=True))
    assert set(kept) == {13}
    scores_EU = 1 + 0.01 * rng.normal(size=(14, 12))
    scores_EU[6] -= 0.3
    assert kept_epoch(scores_EU, lower_is_better=True) == 6
    assert kept_epoch(-scores_EU, lower_is_better=False) == 6
    assert kept_epoch(2 - scores_EU, lower_is_better=True) == 13


def test_the_moving_average_is_of_trained_weights(effects: PertData) -> None:
    model, _ = trained(effects, use_ema=True)  # 200 steps, decay 0.999
    predicted_UG, measured_UG = changes(effects, model, "train")
    slope_drawn = model.parts.provenance["slope_of_network"]
    assert slope(predicted_UG, measured_UG) / slope_drawn > 0.6


def test_a_network_alone_is_drawn_to_the_train_mean_as_validation_says(effects: PertData, plain: Any) -> None:
    model, result, _ = plain
    factor = model.parts.provenance["slope_of_network"]
    assert 0.1 < factor < 1
    conditions = perturbed_in(effects.split, "test")
    drawn_UG = model.predict(conditions, clip=False).delta_UG
    loaded = GEARS.from_pretrained(result.save_path, device="cpu")
    np.testing.assert_array_equal(loaded.predict(conditions, clip=False).delta_UG, drawn_UG)
    assert loaded.parts.provenance["slope_of_network"] == factor
    # least squares on the validation part: nothing remains to be drawn in there
    mean_G = changes(effects, model, "train")[1].mean(axis=0)
    predicted_UG, measured_UG = (change_UG - mean_G for change_UG in changes(effects, model, "val"))
    assert (predicted_UG * measured_UG).sum() / (predicted_UG**2).sum() == pytest.approx(1, abs=1e-4)
    # `model` is the network of the last epoch, which is kept here, as it was trained
    assert result.best_epoch == 10
    nodes = [effects.condition_nodes(condition) for condition in conditions]
    plain_UG = model.model.prepared()(nodes)[0].numpy()
    np.testing.assert_allclose(drawn_UG, mean_G + factor * (plain_UG - mean_G), atol=1e-5)
