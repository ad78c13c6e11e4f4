"""``reproducible=True``: shards of a step (any number of workers and threads: test_exactness.py)."""

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info
from torch import Tensor, nn

from gears.distributed._world import IDENTITY
from gears.training._workers import N_SHARDS, Shards, check_workers, sharded

CPU = torch.device("cpu")


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


def test_numbers_of_workers_models_and_batches_that_cannot_be_divided_are_refused() -> None:
    for world_size in (1, 2, 3, 4, 6, 12):
        check_workers(world_size)
    with pytest.raises(ValueError, match=r"5 workers cannot share equally; start 1, 2, 3, 4, 6 or 12 workers"):
        check_workers(5)
    with pytest.raises(ValueError, match="torch's batch norms"), sharded(nn.BatchNorm1d(2), CPU, IDENTITY):
        pass
    with sharded(nn.Linear(2, 2), CPU, IDENTITY) as shards, pytest.raises(TypeError, match="a tuple has no method"):
        shards.divided([(torch.ones(4, 2), torch.ones(4))])  # type: ignore[union-attr]
