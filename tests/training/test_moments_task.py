"""The moments objective on a screen: loader, loss against every pair of cells, workers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gears import PertData
from gears.distributed._world import IDENTITY
from gears.model._folder import build_parts
from gears.model._losses import cell_loss
from gears.model.config import ModelConfig
from gears.model.network import GEARSNetwork
from gears.training._batches import ConditionBatch, ConditionLoader
from gears.training._tasks import MomentsTask, PairTables, condition_tables

CONFIGS = {
    "plain": ModelConfig(hidden_size=6),
    "nll": ModelConfig(hidden_size=6, uncertainty=True, uncertainty_reg=0.7, direction_lambda=0.4),
    "gears": ModelConfig(hidden_size=6, uncertainty=True, uncertainty_kind="gears"),
    "evidence": ModelConfig(hidden_size=6, loss="evidence"),
    "evidence-nll": ModelConfig(hidden_size=6, loss="evidence", uncertainty=True, uncertainty_reg=0.7),
}


def task_of(pert_data: PertData, config: ModelConfig) -> MomentsTask:
    tables = condition_tables(pert_data, torch.device("cpu"), torch.float64, config=config)
    return MomentsTask(tables, PairTables(pert_data.screen.statistics, "smooth"), config, lambda *_: {}, monitor="mse")


def all_pairs_loss(network: GEARSNetwork, pert_data: PertData, ids: np.ndarray, config: ModelConfig) -> torch.Tensor:
    """Mean over conditions, of the mean over all pairs (cell, control cell), cell by cell in float64."""
    screen = pert_data.screen
    tables = condition_tables(pert_data, torch.device("cpu"), torch.float64, config=config)
    ids_U = torch.from_numpy(ids)
    members = {name: torch.from_numpy(values) for name, values in tables.of_network(ids).items()}
    delta_UG, logvar_UG = network(**members, weight=torch.ones(len(ids), dtype=torch.float64))
    x_all = torch.from_numpy(screen.cells.rows(screen.control_cells)).double()
    total = torch.zeros((), dtype=torch.float64)
    for row, index in enumerate(ids):
        y = torch.from_numpy(screen.cells.rows(screen.cells_of(int(index)))).double()
        if index == screen.control_id:
            x, pairs = y, len(y)
        else:
            y, x, pairs = y.repeat_interleave(len(x_all), 0), x_all.repeat(len(y), 1), len(y) * len(x_all)
        weight = torch.full((pairs,), 1 / (pairs * len(ids)), dtype=torch.float64)
        at = torch.full((pairs,), row)
        mask = tables.mask_CG[ids_U]
        total = total + cell_loss(delta_UG, logvar_UG, at, x, y, mask, tables.control_mean_G, weight, config)
    return total


@pytest.mark.parametrize("name", CONFIGS)
def test_value_and_gradient_equal_the_mean_over_all_pairs(pert_data: PertData, name: str) -> None:
    config = CONFIGS[name]
    ids = np.array([0, 3, 5, 9, 12])  # the control among them
    assert pert_data.screen.control_id == 0
    task, network = task_of(pert_data, config), build_parts(pert_data, config).network(seed=3).double()
    batch = ConditionBatch(torch.from_numpy(ids), len(ids))
    window = task.prepare_window([batch], IDENTITY)
    loss = task.loss(network, batch, window, 0)
    loss.backward()
    found = {key: value.grad.clone() for key, value in network.named_parameters()}
    network.zero_grad()
    expected = all_pairs_loss(network, pert_data, ids, config)
    expected.backward()
    assert abs(loss.item() - expected.item()) < 1e-9
    for key, value in network.named_parameters():
        assert (found[key] - value.grad).abs().max() < 1e-9, key
    assert max(float(gradient.abs().max()) for gradient in found.values()) > 1e-3


def test_cells_objective_has_this_expectation(pert_data: PertData) -> None:
    """Cells paired with controls drawn as the cells objective draws them: the mean over epochs comes near."""
    config, screen = CONFIGS["nll"], pert_data.screen
    tables = condition_tables(pert_data, torch.device("cpu"), torch.float64)
    index = 4
    cells = screen.cells_of(index)
    rng = np.random.default_rng(0)
    delta_UG = torch.from_numpy(rng.normal(0, 0.3, (1, 30)))
    logvar_UG = torch.from_numpy(rng.normal(0, 0.3, (1, 30)))
    y = torch.from_numpy(screen.cells.rows(cells)).double()
    weight = torch.full((len(cells),), 1 / len(cells), dtype=torch.float64)
    row, mask = torch.zeros(len(cells), dtype=torch.int64), tables.mask_CG[[index]]
    losses = []
    for epoch in range(150):
        paired = screen.paired_controls(np.random.Generator(np.random.Philox(key=[1, epoch])))[cells]
        x = torch.from_numpy(screen.cells.rows(paired)).double()
        losses.append(float(cell_loss(delta_UG, logvar_UG, row, x, y, mask, tables.control_mean_G, weight, config)))
    network = lambda *_: (delta_UG, logvar_UG)  # noqa: E731
    batch = ConditionBatch(torch.tensor([index]), 1)
    task = task_of(pert_data, config)
    expected = float(task.loss(network, batch, task.prepare_window([batch], IDENTITY), 0))  # type: ignore[arg-type]
    error = np.std(losses) / np.sqrt(len(losses))
    assert abs(np.mean(losses) - expected) < 4 * error
    assert error < 0.04 * expected


def test_control_is_compared_with_itself(pert_data: PertData) -> None:
    pairs = PairTables(pert_data.screen.statistics, "smooth")
    moments = pairs.of(np.array([0, 1]), torch.float64, torch.device("cpu")).unbind(1)
    statistics = pert_data.screen.statistics
    for value in moments[:4]:
        assert not value[0].any()
        assert value[1].any()
    # observed directions, against those of the control cells
    sign_CG, square_CG = statistics.above - statistics.below, statistics.above + statistics.below
    expected_G = square_CG[1] + square_CG[0] - 2 * sign_CG[1] * sign_CG[0]
    np.testing.assert_allclose(moments[4][1], sign_CG[1] - sign_CG[0])
    np.testing.assert_allclose(moments[5][1], expected_G)
    assert not moments[4][0].any()
    assert not moments[5][0].any()
    published = PairTables(pert_data.screen.statistics, "sign")
    moments = published.of(np.array([0, 1]), torch.float64, torch.device("cpu")).unbind(1)
    assert np.array_equal(moments[4].numpy(), sign_CG[:2])
    assert np.array_equal(moments[5].numpy(), square_CG[:2])


def test_every_condition_once_an_epoch_and_workers_share_each_step() -> None:
    ids = np.arange(5, 18)
    one = ConditionLoader(ids, 6, seed=3)
    orders = []
    for epoch in range(2):
        one.set_epoch(epoch)
        steps = [step.ids.tolist() for step in one]
        assert [len(step) for step in steps] == [5, 4, 4]  # equal, whatever the remainder
        assert len(one) == 3
        assert sorted(index for step in steps for index in step) == ids.tolist()
        workers = [ConditionLoader(ids, 6, seed=3, rank=rank, world_size=3) for rank in range(3)]
        for worker in workers:
            worker.set_epoch(epoch)
        shares = [[step.ids.tolist() for step in worker] for worker in workers]
        for s, whole in enumerate(steps):
            assert [share[s] for share in shares] == [whole[rank::3] for rank in range(3)]
        assert [len(share[2]) for share in shares] == [2, 1, 1]
        orders.append(steps)
    assert orders[0] != orders[1]
    one.set_epoch(0)
    assert [step.ids.tolist() for step in one] == orders[0]
