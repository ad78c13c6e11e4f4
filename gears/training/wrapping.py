"""Wrapping a model for several workers, and finding the bare module again."""

from __future__ import annotations

import contextlib
import inspect
import logging
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from gears.core.messages import unknown_name

logger = logging.getLogger(__name__)

COMPRESSIONS = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}

# Workers' buffers are equal by construction: none is sent. The argument was renamed in torch 2.13.
_RENAMED = "forward_sync_buffers" in inspect.signature(DistributedDataParallel.__init__).parameters
_OWN_BUFFERS: dict[str, Any] = {"forward_sync_buffers" if _RENAMED else "broadcast_buffers": False}


def unwrap(model: nn.Module) -> Any:
    """The bare module inside DDP and ``torch.compile`` wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if isinstance(model, DistributedDataParallel | nn.DataParallel):
            inner = model.module
        if inner is None:
            return model
        model = inner


def wrap(
    model: nn.Module, device: torch.device, *, compression: str | None = None
) -> DistributedDataParallel:
    """DDP as the exactness of a run asks for it: own buffers, no unused parameters, optional compression."""
    wrapped = DistributedDataParallel(
        model,
        device_ids=[device] if device.type == "cuda" else None,
        **_OWN_BUFFERS,
        gradient_as_bucket_view=True,
    )
    if compression is not None and compression not in COMPRESSIONS:
        raise ValueError(unknown_name("gradient compression", compression, list(COMPRESSIONS)))
    send = default_hooks.allreduce_hook if compression is None else COMPRESSIONS[compression]
    timer = GradientTimer()
    wrapped.register_comm_hook(None, timer.around(send))
    wrapped.gradient_timer = timer  # type: ignore[assignment]
    return wrapped


class GradientTimer:
    """Notes when the last gradients of a backward pass were sent: what follows is waiting."""

    def __init__(self) -> None:
        self.sent: float | None = None

    def around(self, send: Callable[..., Any]) -> Callable[..., Any]:
        """A communication hook that notes the time and sends."""
        # without annotations: DDP compares them with classes, and here they would be strings
        return lambda state, bucket: self._send(send, state, bucket)

    def _send(self, send: Callable[..., Any], state: Any, bucket: Any) -> Any:
        self.sent = time.perf_counter()
        return send(state, bucket)


def note_waiting(wrapped: nn.Module, reducer: Any) -> None:
    """After a backward pass: count the time since the last gradients were sent as communication."""
    timer = getattr(unwrap_compiled(wrapped), "gradient_timer", None)
    if timer is not None and timer.sent is not None:
        reducer.seconds += time.perf_counter() - timer.sent
        timer.sent = None


def unwrap_compiled(model: nn.Module) -> Any:
    """What ``torch.compile`` was given."""
    return getattr(model, "_orig_mod", model)


def for_several_workers(model: nn.Module, device: torch.device, *, convert: bool = True) -> nn.Module:
    """A model whose ordinary batch norms see the global batch, where torch can do that (CUDA).

    On the CPU torch has no such layer: a model that has batch norms is warned about, since
    W workers then no longer train as one.
    """
    if not has_batch_norm(model) or not convert:
        return model
    if device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    logger.warning(
        "the model has batch norms, whose statistics are those of each worker's own batch: torch synchronises "
        "them on CUDA only, and the result depends on the number of workers"
    )
    return model


def has_batch_norm(model: nn.Module) -> bool:
    """Whether a model holds torch's batch norms that are not synchronised yet."""
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    return any(isinstance(module, kinds) for module in model.modules())


def synchronised(wrapped: nn.Module, *, last: bool) -> contextlib.AbstractContextManager[Any]:
    """Let gradients travel with the last micro-batch of a window only."""
    inner = unwrap_compiled(wrapped)
    if last or not isinstance(inner, DistributedDataParallel):
        return contextlib.nullcontext()
    return inner.no_sync()
