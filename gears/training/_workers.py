"""A model on several workers: bare modules, equal starts, averaged gradients, and shards.

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
import logging
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gears.distributed._devices import one_thread
from gears.distributed._world import IDENTITY, Reducer, is_main_process

logger = logging.getLogger(__name__)

RUNNING = ("running_mean", "running_var", "num_batches_tracked")
"""Buffers of batch norms that a forward in training mode changes."""


def unwrap(model: nn.Module) -> Any:
    """The bare module inside DDP and ``torch.compile`` wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if isinstance(model, DistributedDataParallel | nn.DataParallel):
            inner = model.module
        if inner is None:
            return model
        model = inner


def plain_state(model: nn.Module) -> dict[str, Tensor]:
    """The bare module's weights and buffers, copied to the CPU."""
    return {key: value.detach().cpu().clone() for key, value in unwrap(model).state_dict().items()}


def for_several_workers(model: nn.Module, device: torch.device, *, convert: bool = True) -> nn.Module:
    """A model whose ordinary batch norms are computed over the global batch; torch has such layers on CUDA only."""
    if not has_batch_norm(model) or not convert:
        return model
    if device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    if is_main_process():
        logger.warning(
            "the model has batch norms, whose statistics are those of each worker's own batch: torch synchronises "
            "them on CUDA only, and the result depends on the number of workers"
        )
    return model


def has_batch_norm(model: nn.Module) -> bool:
    """Whether a model has batch norms of torch that are not synchronised."""
    batch_norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    return any(isinstance(module, batch_norms) for module in model.modules())


class RunningStatistics:
    """Running statistics of a model's batch norms, which a step that is not finite must not change."""

    def __init__(self, model: nn.Module) -> None:
        by_type: dict[bool, list[Tensor]] = {}  # one vector cannot hold means and numbers of batches
        for name, buffer in model.named_buffers():
            if name.rpartition(".")[2] in RUNNING:
                by_type.setdefault(buffer.is_floating_point(), []).append(buffer)
        self._by_type = list(by_type.values())

    def values(self) -> list[Tensor]:
        """A copy of their values, for :meth:`put_back`."""
        return [nn.utils.parameters_to_vector(buffers) for buffers in self._by_type]

    def put_back(self, before: Sequence[Tensor], broken: Tensor) -> None:
        """Put values back where `broken`, on the device, is not 0."""
        for buffers, old in zip(self._by_type, before, strict=True):
            new = nn.utils.parameters_to_vector(buffers)
            parts = torch.where(broken > 0, old, new).split([buffer.numel() for buffer in buffers])
            views = [part.view_as(buffer) for part, buffer in zip(parts, buffers, strict=True)]
            torch._foreach_copy_(buffers, views)


def share_start(model: nn.Module, reducer: Reducer) -> None:
    """Give all workers the weights and buffers of rank 0."""
    tensors = list(model.state_dict().values())
    for dtype in sorted({tensor.dtype for tensor in tensors}, key=str):
        reducer.from_main([tensor for tensor in tensors if tensor.dtype == dtype])


def check_replicas(model: nn.Module, reducer: Reducer) -> None:
    """Compare the bits of parameters and buffers over workers; raises RuntimeError where they differ."""
    device = next(model.parameters()).device
    contents = (tensor.detach().cpu().contiguous().reshape(-1) for tensor in model.state_dict().values())
    checksums = [float(zlib.crc32(values.view(torch.uint8).numpy().tobytes())) for values in contents]
    all_signatures = reducer.gather(torch.tensor(checksums, dtype=torch.float64, device=device))
    if not bool((all_signatures == all_signatures[0]).all()):
        names = list(model.state_dict())
        differing = (all_signatures != all_signatures[0]).any(dim=0).nonzero().flatten().tolist()
        msg = f"the workers' models differ in {', '.join(names[index] for index in differing[:5])}"
        raise RuntimeError(msg)


class SharedGradients:
    """Gradients of all parameters as parts of one vector, which is reduced once per optimiser step."""

    # A hook per parameter, as DistributedDataParallel has it, could send a part while the others are still computed;
    # but the parts are small beside the layers' activations, and each would be copied by a separate operator.

    def __init__(self, parameters: Sequence[nn.Parameter], reducer: Reducer) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._reducer = reducer
        self._known = False

    def average(self, more_K: Tensor) -> Tensor:
        """Give every parameter the mean over workers of its gradient; returns the averaged vector, `more_K` last."""
        if not self._known:
            self._find_used()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        flat = torch.cat([*(gradient.reshape(-1) for gradient in gradients), more_K])
        flat.div_(self._reducer.world_size)
        flat = self._reducer.add_up(flat)
        parts = flat[: len(flat) - len(more_K)].split([gradient.numel() for gradient in gradients])
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter).to(parameter.dtype)
        return flat

    def _find_used(self) -> None:
        """Omit parameters that have no gradient on any worker (once: it waits for the device)."""
        device = self._parameters[0].device
        has_gradient = torch.tensor([float(p.grad is not None) for p in self._parameters], device=device)
        used = self._reducer.sum(has_gradient).tolist()
        self._parameters = [p for p, n_workers in zip(self._parameters, used, strict=True) if n_workers]
        self._known = True


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

    add_up = sum  # a new tensor: that of the other shards is unchanged


class Shards:
    """The shards of this worker, with a copy of the bare model for each; the first shard uses the model itself."""

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
        """Average the gradients of all shards, which `backward` computes; returns their vector, messages last."""
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
            # the next shard's turn; after a failure nobody waits any more
            for turn in self._turns[position + 1 : position + 2] if self._failure is None else self._turns:
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
