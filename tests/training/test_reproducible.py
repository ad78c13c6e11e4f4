"""``reproducible=True``: the same bits for any number of workers and threads. Real processes, float32."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from driving import cut_off, workers_by_fork
from reproducible_cases import CASES, opened, trained, work
from threadpoolctl import threadpool_info
from torch import Tensor, nn

from gears import PertData
from gears.distributed import launch
from gears.distributed._world import IDENTITY
from gears.simulate import simulated_screen
from gears.training._workers import N_SHARDS, Shards, check_workers, sharded

pytestmark = pytest.mark.timeout(900)
CPU = torch.device("cpu")
WORKERS = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    adata, _ = simulated_screen(n_genes=60, n_singles=54, n_pairs=4, cells_per_condition=4, n_control=40, seed=3)
    path = tmp_path_factory.mktemp("reproducible")
    PertData(path, default_pert_graph=False).new_data_process("small", adata)
    return path


@pytest.fixture(scope="module")
def data(folder: Path) -> PertData:
    return opened(folder)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("found")


@pytest.fixture(scope="module")
def alone(data: PertData, out: Path) -> dict[str, dict[str, str]]:
    """Checksums of one worker, which leaves a checkpoint within its last epoch."""
    found = {}
    for name in CASES:
        found[name] = trained(data, name, save_path=str(out / name), checkpoint_every_steps=1, keep_last=100)
        cut_off(out / name, "epoch-00000-step-0000002")
    return found


@pytest.fixture(scope="module")
def several(folder, out, alone):
    """What each of two workers found."""
    with workers_by_fork():
        launch(work, ["cpu"] * WORKERS, (str(folder), str(out)), backend="gloo")
    return [json.loads((out / f"found-{rank}.json").read_text()) for rank in range(WORKERS)]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["begun", "resumed"])
@pytest.mark.parametrize("name", CASES)
def test_several_workers_give_the_bits_of_one(name, how, alone, several):
    for found in several:
        assert found[name][how] == alone[name]


@pytest.mark.slow
def test_threads_do_not_change_a_bit(data: PertData, alone: dict[str, dict[str, str]]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert trained(data, "prior") == alone["prior"]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def threads_used(_: int) -> set[int]:
    return {torch.get_num_threads(), *(library["num_threads"] for library in threadpool_info())}


def test_a_shard_has_one_thread_of_every_library() -> None:
    with sharded(nn.Linear(2, 2), CPU, IDENTITY) as shards:
        assert shards is not None
        assert shards.run(threads_used) == [{1}] * N_SHARDS


class FirstOfTwo:
    """Gathers of rank 0 of two workers, of which the other one gives the same plus 100."""

    rank, world_size = 0, 2

    def gather(self, tensor: Tensor) -> Tensor:
        return torch.stack([tensor, tensor + 100])


def test_shards_are_gathered_and_added_in_their_order() -> None:
    shards = Shards(nn.Linear(2, 2), CPU, FirstOfTwo())  # type: ignore[arg-type]
    big = torch.tensor([1e8])
    values = [big, torch.ones(1), -big, torch.ones(1), torch.ones(1), torch.ones(1)]

    def exchanged(position: int) -> tuple[list[float], list[float]]:
        reducer = shards.reducers[position]
        return reducer.gather(values[position]).flatten().tolist(), reducer.sum(values[position]).tolist()

    try:
        gathered = [float(value + other) for value in values for other in (0, 100)]
        total = np.float32(0)
        for value in gathered:
            total = np.float32(total + np.float32(value))
        assert total != np.float32(sum(gathered)), "the order makes no difference: the comparison shows nothing"
        assert shards.run(exchanged) == [(gathered, [float(total)])] * 6
        assert [reducer.rank for reducer in shards.reducers] == [0, 2, 4, 6, 8, 10]
    finally:
        shards.close()


def test_a_shard_that_fails_ends_the_step_with_its_error() -> None:
    def failing(position: int) -> None:
        if position == 5:
            msg = "shard 5"
            raise MemoryError(msg)
        shards.reducers[position].sum(torch.ones(1))  # type: ignore[union-attr]

    with sharded(nn.Linear(2, 2), CPU, IDENTITY) as shards:
        with pytest.raises(MemoryError, match="shard 5"):
            shards.run(failing)  # type: ignore[union-attr]
        assert shards.run(int) == list(range(N_SHARDS))  # type: ignore[union-attr]


def test_a_number_of_workers_without_equal_shards_is_refused() -> None:
    for world_size in (1, 2, 3, 4, 6, 12):
        check_workers(world_size)
    with pytest.raises(ValueError, match=r"5 workers cannot share equally; start 1, 2, 3, 4, 6 or 12 workers"):
        check_workers(5)


def test_models_and_batches_that_cannot_be_divided_are_refused() -> None:
    with pytest.raises(ValueError, match="torch's batch norms"), sharded(nn.BatchNorm1d(2), CPU, IDENTITY):
        pass
    with sharded(nn.Linear(2, 2), CPU, IDENTITY) as shards, pytest.raises(TypeError, match="a tuple has no method"):
        shards.divided([(torch.ones(4, 2), torch.ones(4))])  # type: ignore[union-attr]
