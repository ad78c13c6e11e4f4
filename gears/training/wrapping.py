"""The bare module inside wrappers, and its batch norms where there are several workers."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gears.distributed.world import is_main_process

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
