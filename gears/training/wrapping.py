"""Wrap a model for several workers, and unwrap it."""

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
_NO_BUFFER_SYNC: dict[str, Any] = {"forward_sync_buffers" if _RENAMED else "broadcast_buffers": False}


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
    """DDP without exchange of buffers or search for unused parameters, with optional compression."""
    wrapped = DistributedDataParallel(
        model,
        device_ids=[device] if device.type == "cuda" else None,
        **_NO_BUFFER_SYNC,
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
    """Records when the last gradients of a backward were sent; the time after that is communication."""

    def __init__(self) -> None:
        self.sent: float | None = None

    def around(self, send: Callable[..., Any]) -> Callable[..., Any]:
        """A communication hook that records the time and sends."""
        # without annotations: DDP compares them with classes, and here they would be strings
        return lambda state, bucket: self._send(send, state, bucket)

    def _send(self, send: Callable[..., Any], state: Any, bucket: Any) -> Any:
        self.sent = time.perf_counter()
        return send(state, bucket)


def note_waiting(wrapped: nn.Module, reducer: Any) -> None:
    """After a backward: add the time since the last gradients were sent to communication."""
    timer = getattr(unwrap_compiled(wrapped), "gradient_timer", None)
    if timer is not None and timer.sent is not None:
        reducer.seconds += time.perf_counter() - timer.sent
        timer.sent = None


def unwrap_compiled(model: nn.Module) -> Any:
    """The module inside a ``torch.compile`` wrapper."""
    return getattr(model, "_orig_mod", model)


def for_several_workers(model: nn.Module, device: torch.device, *, convert: bool = True) -> nn.Module:
    """A model whose ordinary batch norms are computed over the global batch, on CUDA.

    On the CPU torch has no such layer: a model with batch norms causes a warning, because the result then
    depends on the number of workers.
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
    """Whether a model has batch norms of torch that are not synchronised."""
    batch_norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    return any(isinstance(module, batch_norms) for module in model.modules())


def synchronised(wrapped: nn.Module, *, last: bool) -> contextlib.AbstractContextManager[Any]:
    """Send gradients with the last micro-batch of a window only."""
    inner = unwrap_compiled(wrapped)
    if last or not isinstance(inner, DistributedDataParallel):
        return contextlib.nullcontext()
    return inner.no_sync()
