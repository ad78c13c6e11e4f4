"""Wrapping a model for several workers, and finding the bare module again."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from gears.messages import unknown_name

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
    if compression is not None:
        if compression not in COMPRESSIONS:
            raise ValueError(unknown_name("gradient compression", compression, list(COMPRESSIONS)))
        wrapped.register_comm_hook(None, COMPRESSIONS[compression])
    return wrapped


def synchronised(wrapped: nn.Module, *, last: bool) -> contextlib.AbstractContextManager[Any]:
    """Let gradients travel with the last micro-batch of a window only."""
    if last or not isinstance(wrapped, DistributedDataParallel):
        return contextlib.nullcontext()
    return wrapped.no_sync()
