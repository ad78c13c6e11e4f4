"""Weights by evidence: more cells and less noise count more, and held-out conditions change nothing."""

from pathlib import Path

import numpy as np
import pytest
import torch
from anndata import AnnData
from small_models import network_of

from gears import PertData
from gears.model.config import ModelConfig
from gears.training._tasks import condition_tables, evidence_weights

CPU = torch.device("cpu")
EVIDENCE = ModelConfig(hidden_size=6, loss="evidence")


def test_reliability_by_hand() -> None:
    n = np.array([10.0, 40.0])
    delta = np.array([[2.0, 0.0, 0.0], [0.0, 0.0, 2.0]])  # mean square 4/3
    variance = np.array([4.0, 0.0, 8.0])
    noise = variance / n[:, None]  # mean 0.25
    signal = 4 / 3 - noise.mean()
    expected = signal / (signal + noise)
    found = evidence_weights(delta, variance, n, n)
    np.testing.assert_allclose(found, expected / expected.mean(), rtol=1e-6)
    assert (found[1] >= found[0]).all(), "more cells count more"
    assert found[0, 1] > found[0, 0] > found[0, 2], "noisy genes count less"


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_weights_have_no_unit_and_stay_finite(scale: float) -> None:
    rng = np.random.default_rng(0)
    delta, variance, n = rng.normal(size=(5, 7)), rng.uniform(0, 1, 7), np.arange(1.0, 6.0)
    plain = evidence_weights(delta, variance, n, n)
    np.testing.assert_allclose(evidence_weights(scale * delta, scale**2 * variance, n, n), plain, rtol=1e-5)
    assert plain.mean() == pytest.approx(1)
    assert np.isfinite(evidence_weights(0 * delta, 0 * variance, n, np.zeros(1))).all()
    all_noise = evidence_weights(1e-9 * delta, variance, n, n)
    assert np.isfinite(all_noise).all()
    assert (all_noise >= 0).all()


def test_tables_hold_weights_where_the_mask_is(pert_data: PertData) -> None:
    plain = condition_tables(pert_data, CPU, torch.float64).mask_CG
    weights = condition_tables(pert_data, CPU, torch.float64, config=EVIDENCE).mask_CG
    assert plain.dtype == torch.bool
    assert torch.equal(weights != 0, plain)
    control = pert_data.screen.control_id
    assert (weights[control] == 1).all()
    train = [pert_data.screen.id_of(c) for c in pert_data.split.conditions("train") if not c.is_control]
    assert 0.5 < float(weights[train].mean()) < 1.5


def test_held_out_cells_do_not_change_weights(toy_adata: AnnData, toy_go: dict, tmp_path: Path) -> None:
    tables, held_out = [], set[str]()
    for poisoned in (False, True):
        own = toy_adata.copy()
        data = PertData(tmp_path / str(poisoned), gene2go=toy_go, default_pert_graph=False)
        if poisoned:
            held = np.isin(own.obs["condition"], list(held_out))
            own.X[held] = own.X[held] * 1.5
        data.new_data_process("toy", own)
        data.prepare_split("simulation", seed=1)
        held_out = {c.name for part in ("val", "test") for c in data.split.conditions(part)}
        train = [data.screen.id_of(condition) for condition in data.split.conditions("train")]
        tables.append(condition_tables(data, CPU, torch.float64, config=EVIDENCE).mask_CG[train])
    torch.testing.assert_close(tables[0], tables[1], rtol=0, atol=0)


def test_training_over_cells_learns(pert_data: PertData) -> None:
    """Over moments: test_moments_task.py."""
    pert_data.get_dataloader(batch_size=32)
    model = network_of(pert_data, loss="evidence")
    result = model.train(objective="cells", prior=None, epochs=3, lr=1e-2, verbose=False, evaluate_test=False)
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]
