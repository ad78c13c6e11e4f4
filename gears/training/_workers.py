"""A model and its gradients on several workers: bare modules, batch norms, equal starts, averaged gradients."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gears.distributed._world import Reducer, is_main_process

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
    """A model whose ordinary batch norms are computed over the global batch, on CUDA.

    On the CPU torch has no such layer: a model with batch norms causes a warning, because the result then
    depends on the number of workers.
    """
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
        buffers = [b for name, b in model.named_buffers() if name.rpartition(".")[2] in RUNNING]
        by_type = ([b for b in buffers if b.is_floating_point() == floating] for floating in (True, False))
        self._by_type = [buffers for buffers in by_type if buffers]

    def values(self) -> list[Tensor]:
        """A copy of their values, for :meth:`put_back`."""
        return [torch.cat([buffer.view(-1) for buffer in buffers]) for buffers in self._by_type]

    def put_back(self, before: Sequence[Tensor], broken: Tensor) -> None:
        """Put values back where `broken`, on the device, is not 0."""
        for buffers, old in zip(self._by_type, before, strict=True):
            new = torch.cat([buffer.view(-1) for buffer in buffers])
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
    checksums = [float(zlib.crc32(_bytes(tensor))) for tensor in model.state_dict().values()]
    all_signatures = reducer.gather(torch.tensor(checksums, dtype=torch.float64, device=device))
    if not bool((all_signatures == all_signatures[0]).all()):
        names = list(model.state_dict())
        differing = (all_signatures != all_signatures[0]).any(dim=0).nonzero().flatten().tolist()
        msg = f"the workers' models differ in {', '.join(names[index] for index in differing[:5])}"
        raise RuntimeError(msg)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


class SharedGradients:
    """Gradients of all parameters as parts of one vector, which is reduced once per optimiser step.

    A hook per parameter, as DistributedDataParallel has it, could send a part while the others are still computed; but
    the parts are small beside the layers' activations, and each would be copied by a separate operator.
    """

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
