"""`GEARS.evaluate` and GEARS as a method of a comparison."""

from __future__ import annotations

import pytest

from gears import GEARS, PertData
from gears.evaluation import compare
from gears.judging import GEARSEstimator

NETWORK = {"hidden_size": 8}
TRAINING = {"epochs": 2, "objective": "moments", "prior": None}


@pytest.fixture(scope="module")
def data(tmp_path_factory, small_screen) -> PertData:
    made = PertData(tmp_path_factory.mktemp("judged"), default_pert_graph=False)
    made.new_data_process("small", small_screen[0].copy())
    made.prepare_split("simulation", seed=1)
    return made


def test_evaluate_gives_scaled_scores(data):
    model = GEARS(data, device="cpu")
    model.model_initialize(**NETWORK)
    table = model.evaluate("test", halvings=1, metrics=["mse", "pearson_delta", "mse_top20_de"], name="mine")
    assert set(table["method"]) >= {"mine", "additive", "go_ridge", "no_change"}
    assert table.loc[table["method"] == "additive", "scaled"].notna().any()
    assert "scaled" not in model.evaluate("val", halvings=0, metrics=["mse"])


def test_gears_is_trained_anew_on_every_split_and_the_users_split_stays(data):
    before = data.split
    result = compare(
        {
            "gears": lambda seed: GEARSEstimator(
                data, network=NETWORK, training=TRAINING, seed=seed, device="cpu"
            )
        },
        data.screen,
        [data.split],
        seeds=[1, 2],
        baselines=["train_mean"],
        metrics=["mse"],
        halvings=0,
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
