"""Loaders: the same cells and pairs for any number of workers, exact shards, a pinned schema."""

import numpy as np
import pytest
import torch

from gears.data import CellBatch, PreparedScreen
from gears.data._loaders import CellDataset, LoaderSettings, make_loaders, part_cells
from gears.data.splits import Split, make_split


def nodes_of(screen: PreparedScreen) -> list[list[int]]:
    conditions = [screen.conditions[i] for i in screen.label_condition]
    return [[int(gene[2:]) for gene in condition.genes] or [-1] for condition in conditions]


@pytest.fixture(scope="module")
def split(toy_screen):
    return make_split(toy_screen.labels, "simulation", seed=1)


def loaders(screen: PreparedScreen, split: Split, batch_size: int, **options: int) -> dict:
    return make_loaders(screen, split, nodes_of(screen), LoaderSettings(batch_size, **options))


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_step_of_w_workers_is_a_step_of_one(toy_screen, split, world_size):
    batch_size = 7
    trained = part_cells(toy_screen, split, "train").tolist()
    assert len(trained) % (batch_size * world_size)  # there is a remainder
    one = loaders(toy_screen, split, batch_size * world_size)["train_loader"]
    many = [
        loaders(toy_screen, split, batch_size, world_size=world_size, rank=rank)["train_loader"]
        for rank in range(world_size)
    ]
    orders = []
    for epoch in (0, 3):
        for loader in (one, *many):
            loader.set_epoch(epoch)
        alone = list(one)
        assert {len(loader) for loader in many} == {len(one)} == {len(alone)}
        # every cell once, in batches of equal size
        assert sorted(cell for batch in alone for cell in batch.cell.tolist()) == trained
        sizes = {len(batch) for batch in alone}
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) <= batch_size * world_size
        for whole, *parts in zip(alone, *many, strict=True):
            cells = torch.cat([part.cell for part in parts])
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
            assert sorted(cells.tolist()) == sorted(whole.cell.tolist())
            pairs = dict(zip(whole.cell.tolist(), whole.control_cell.tolist(), strict=True))
            for part in parts:
                assert [pairs[cell] for cell in part.cell.tolist()] == part.control_cell.tolist()
        orders.append([batch.cell.tolist() for batch in alone])
    assert orders[0] != orders[1]


def test_pairing_depends_on_seed_epoch_and_cell_only(toy_screen):
    nodes = nodes_of(toy_screen)
    whole = CellDataset(toy_screen, np.arange(216), nodes, seed=4)
    some = CellDataset(toy_screen, np.array([200, 100, 70, 3]), nodes, seed=4)
    pairs = whole.control_of(np.arange(216))
    own = some.__getitems__([0, 1, 2, 3]).control_cell.numpy()
    np.testing.assert_array_equal(own, pairs[[200, 100, 70, 3]])
    assert pairs[:60].tolist() == list(range(60))  # control cells pair with themselves
    assert set(pairs[60:]) <= set(range(60))
    whole.set_epoch(1)
    later = whole.control_of(np.arange(216))
    assert np.mean(later[60:] != pairs[60:]) > 0.8
    whole.set_epoch(0)
    np.testing.assert_array_equal(whole.control_of(np.arange(216)), pairs)
    other = CellDataset(toy_screen, np.arange(216), nodes, seed=5).control_of(np.arange(216))
    assert np.mean(other[60:] != pairs[60:]) > 0.8


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_evaluation_shards_are_exact_and_in_order(toy_screen, split, world_size):
    for part in ("val", "test"):
        expected = part_cells(toy_screen, split, part)
        for rank in range(world_size):
            loader = loaders(toy_screen, split, 7, world_size=world_size, rank=rank)[f"{part}_loader"]
            loader.set_epoch(2)
            seen = [cell for batch in loader for cell in batch.cell.tolist()]
            assert seen == expected[rank::world_size].tolist()


def test_the_schema_of_a_batch(toy_screen, split):
    made = loaders(toy_screen, split, 16, test_batch_size=5)
    assert len(next(iter(made["val_loader"]))) == len(next(iter(made["test_loader"]))) == 5
    batch = next(iter(made["train_loader"]))
    assert isinstance(batch, CellBatch)
    n = len(batch)
    assert n <= 16
    assert batch.x_BG.shape == batch.y_BG.shape == batch.y.shape == (n, 30)
    assert batch.x.shape == (n * 30, 1)
    assert batch.x.data_ptr() == batch.x_BG.data_ptr()  # a view
    assert {t.dtype for t in (batch.x_BG, batch.y_BG)} == {torch.float32}
    assert {t.dtype for t in (batch.condition, batch.cell, batch.control_cell, batch.batch)} == {torch.int64}
    assert batch.batch.tolist() == [cell for cell in range(n) for _ in range(30)]
    cells = toy_screen.cells
    np.testing.assert_array_equal(batch.y_BG.numpy(), cells.rows(batch.cell.numpy()))
    np.testing.assert_array_equal(batch.x_BG.numpy(), cells.rows(batch.control_cell.numpy()))
    for i, cell in enumerate(batch.cell.tolist()):
        label = toy_screen.labels[toy_screen.cell_label[cell]]
        condition = toy_screen.conditions[int(batch.condition[i])]
        assert batch.pert[i] == label
        assert len(batch.de_idx[i]) == 20
        if condition.is_control:
            assert batch.pert_idx[i] == [-1]
            assert set(batch.de_idx[i].tolist()) == {-1}
        else:
            assert batch.pert_idx[i] == [int(gene[2:]) for gene in condition.genes]
            assert batch.de_idx[i].tolist() == sorted(toy_screen.de.top(int(batch.condition[i])).tolist())


def test_reading_processes_give_the_same_batches(toy_screen, split):
    here, there = (loaders(toy_screen, split, 16, num_workers=n)["train_loader"] for n in (0, 2))
    for epoch in (0, 1):
        here.set_epoch(epoch)
        there.set_epoch(epoch)
        batches = zip(here, there, strict=True)
        for a, b in batches:
            assert torch.equal(a.cell, b.cell)
            assert torch.equal(a.control_cell, b.control_cell)
            assert torch.equal(a.x_BG, b.x_BG)
            assert a.pert == b.pert
            assert a.pert_idx == b.pert_idx


def test_a_batch_larger_than_the_data_is_an_error_with_numbers(toy_screen, split):
    n = len(part_cells(toy_screen, split, "train"))
    with pytest.raises(ValueError, match=rf"{n} training cells do not fill .* 1000 .*at most {n}$"):
        loaders(toy_screen, split, 1000)
    size = n // 2 + 1
    with pytest.raises(ValueError, match=rf"global batch of {2 * size} \({size} cells x 2 workers\)"):
        loaders(toy_screen, split, size, world_size=2)
    assert len(loaders(toy_screen, split, n)["train_loader"]) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is"),
        ({"batch_size": 4, "test_batch_size": 0}, "test_batch_size is"),
        ({"batch_size": 4, "world_size": 2, "rank": 2}, "rank must be from 0 to world_size - 1 = 1"),
        ({"batch_size": 4, "num_workers": -1}, "num_workers"),
    ],
)
def test_settings_check_themselves(options, message):
    with pytest.raises(ValueError, match=message):
        LoaderSettings(**options)
