"""Steps whose bits do not depend on the number of workers: a global batch in a fixed number of shards.

Sums of floating-point numbers depend on their order, and a matrix product on its shape and on the number of threads.
With ``reproducible=True`` a step is therefore computed as :data:`N_SHARDS` workers would compute it, however many
processes there are:

    shard s has row s, s + N, s + 2 N, ... of the global batch     N = N_SHARDS
    worker r of W computes the shards r, r + W, r + 2 W, ...        each alone, by one thread, in the same shapes
    gather   what all shards gave, shard by shard
    sum      ((t_0 + t_1) + t_2) + ... over shards, the same additions on every worker

Layers and tasks see a :class:`Reducer` of N workers, so that no code of the model is different. A layer needs what the
other shards have (the statistics of a batch norm) before it can go on, so each shard of a process has a thread. One of
them runs at a time: until it has given what the others need, then the next one runs. A shard has its own gradients and
running statistics; the memory of the parameters is shared.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from gears.distributed._world import IDENTITY, Reducer
from gears.training._workers import RUNNING, SharedGradients, has_batch_norm

N_SHARDS = 12
"""Shards of a global batch: 1, 2, 3, 4, 6 or 12 workers have equally many."""

T = TypeVar("T")


class ShardReducer(Reducer):
    """Sums and gathers over shards, as one of them uses them."""

    world_size = N_SHARDS

    def __init__(self, shards: Shards, position: int, rank: int) -> None:
        self._shards, self._position, self.rank = shards, position, rank

    def gather(self, tensor: Tensor) -> Tensor:
        """All shards' tensors, shape (N_SHARDS, ...)."""
        return torch.stack(self._shards.exchange(self._position, tensor.detach(), list))

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum over shards; one tensor for all shards of this worker, which they do not change."""
        return self._shards.exchange(self._position, tensor.detach(), in_order)

    def add_up(self, tensor: Tensor) -> Tensor:
        return self.sum(tensor)


class Shards:
    """The shards of this worker, with a copy of the model for each.

    `model`: the bare module; the first shard uses it itself.
    `reducer`: gathers over workers.
    """

    def __init__(self, model: nn.Module, device: torch.device, reducer: Reducer) -> None:
        self._reducer = reducer
        self.n = N_SHARDS // reducer.world_size
        self.models = [model, *(_twin(model) for _ in range(self.n - 1))]
        ranks = range(reducer.rank, N_SHARDS, reducer.world_size)
        self.reducers = [ShardReducer(self, position, rank) for position, rank in enumerate(ranks)]
        self.gradients = []
        for module, of_shard in zip(self.models, self.reducers, strict=True):
            self.gradients.append(SharedGradients(list(module.parameters()), of_shard))
            _use(module, of_shard)
        self._threads = ThreadPoolExecutor(self.n, initializer=_begin_thread, initargs=(device,))

    def close(self) -> None:
        """End the threads, and leave the model without a reducer."""
        self._threads.shutdown()
        _use(self.models[0], IDENTITY)

    def divided(self, window: Sequence[Any]) -> list[list[Any]]:
        """Micro-batches of each shard, from those of this worker."""
        for batch in window:
            if not hasattr(batch, "part"):
                msg = (
                    f"reproducible=True divides batches into shards, and a {type(batch).__name__} has no method "
                    "part(start, step); give it one, or omit reproducible"
                )
                raise TypeError(msg)
        return [[batch.part(position, self.n) for batch in window] for position in range(self.n)]

    def gradients_of(
        self,
        window: Sequence[Any],
        backward: Callable[[nn.Module, Sequence[Any], Reducer], Tensor],
        message: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """Average the gradients of all shards; `backward` computes a shard's and its loss, which its message has.

        Returns the averaged vector, messages last (:meth:`SharedGradients.average`).
        """
        windows = self.divided(window)

        def of_shard(position: int) -> Tensor:
            module = self.models[position]
            module.zero_grad(set_to_none=True)
            loss = backward(module, windows[position], self.reducers[position])
            return self.gradients[position].average(message(loss))

        averaged, *_ = self.run(of_shard)
        return averaged

    def run(self, function: Callable[[int], T]) -> list[T]:
        """Call a function with the position of each shard; every call makes the same exchanges."""
        self._given: list[Any] = [None] * self.n
        self._failure: BaseException | None = None
        self._turns = [threading.Semaphore(0) for _ in range(self.n)]
        self._turns[0].release()
        running = [self._threads.submit(self._in_turn, function, position) for position in range(self.n)]
        results = [future.result() for future in running]
        if self._failure is not None:
            raise self._failure
        return results

    def exchange(self, position: int, tensor: Tensor, combine: Callable[[list[Tensor]], Any]) -> Any:
        """What `combine` makes of the tensors of all shards of all workers, once each of them has given its own."""
        self._given[position] = tensor
        if position == self.n - 1:
            self._combined = combine(self._of_all())
        if self.n > 1:
            self._turns[(position + 1) % self.n].release()
            self._wait(position)
        return self._combined

    def _of_all(self) -> list[Tensor]:
        """Tensors of all shards, in their order."""
        n_workers = self._reducer.world_size
        if n_workers == 1:
            return self._given
        of_workers = self._reducer.gather(torch.stack(self._given))
        return [of_workers[shard % n_workers, shard // n_workers] for shard in range(N_SHARDS)]

    def _wait(self, position: int) -> None:
        self._turns[position].acquire()
        if self._failure is not None:
            raise self._failure

    def _in_turn(self, function: Callable[[int], T], position: int) -> Any:
        try:
            self._wait(position)
            return function(position)
        except BaseException as error:  # `run` raises it
            self._failure = self._failure or error
        finally:
            following = self._turns[position + 1 :] if self._failure is None else self._turns
            for turn in following[: 1 if self._failure is None else None]:
                turn.release()


def in_order(tensors: Sequence[Tensor]) -> Tensor:
    """Sum of tensors, one after the other."""
    first, *others = tensors
    total = first.clone()
    for other in others:
        total += other
    return total


@contextlib.contextmanager
def sharded(
    model: nn.Module, device: torch.device, reducer: Reducer, *, enabled: bool = True
) -> Iterator[Shards | None]:
    """The shards of a model, with one thread and deterministic kernels while the block runs; None if not enabled."""
    if not enabled:
        yield None
        return
    check_workers(reducer.world_size)
    if has_batch_norm(model):
        msg = (
            "reproducible=True computes each batch in shards, and the statistics of torch's batch norms would be those "
            "of one shard; use WeightedBatchNorm with a reducer, or omit reproducible"
        )
        raise ValueError(msg)
    deterministic = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    with one_thread():
        shards = Shards(model, device, reducer)
        try:
            if device.type == "cuda":
                torch.use_deterministic_algorithms(True)
            yield shards
        finally:
            torch.use_deterministic_algorithms(deterministic, warn_only=warns)
            shards.close()


@contextlib.contextmanager
def one_thread(*, enabled: bool = True) -> Iterator[None]:
    """Compute with one thread of torch and of numpy's libraries while the block runs."""
    if not enabled:
        yield
        return
    before = torch.get_num_threads()
    with threadpool_limits(limits=1):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def check_workers(world_size: int) -> None:
    """ValueError for a number of workers that cannot have equally many shards."""
    if N_SHARDS % world_size:
        possible = [str(n) for n in range(1, N_SHARDS + 1) if N_SHARDS % n == 0]
        msg = (
            f"reproducible=True divides each batch into {N_SHARDS} shards, which {world_size} workers cannot share "
            f"equally; start {', '.join(possible[:-1])} or {possible[-1]} workers, or omit reproducible"
        )
        raise ValueError(msg)


def _twin(model: nn.Module) -> nn.Module:
    """A copy with the same memory for its parameters, and its own gradients and running statistics."""
    shared: dict[int, Any] = {id(parameter): nn.Parameter(parameter.data) for parameter in model.parameters()}
    for name, buffer in model.named_buffers():
        if name.rpartition(".")[2] not in RUNNING:
            shared[id(buffer)] = buffer
    return copy.deepcopy(model, shared)


def _use(model: nn.Module, reducer: Reducer) -> None:
    """Let the modules that sum over workers use a reducer."""
    for module in model.modules():
        if isinstance(getattr(module, "reducer", None), Reducer):
            module.reducer = reducer  # type: ignore[assignment]


def _begin_thread(device: torch.device) -> None:
    torch.set_num_threads(1)
    # the backward runs in the thread of its shard, which waits for the others, and not in one thread for all of them
    torch.autograd.set_multithreading_enabled(False)
    if device.type == "cuda":
        torch.cuda.set_device(device)
