"""Choices that trade exactness of arithmetic or time of compilation for speed, undone after training."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import shutil
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

logger = logging.getLogger(__name__)

COMPILERS = ("g++", "clang++", "c++", "cl")


@contextlib.contextmanager
def tf32(wanted: bool, device: torch.device) -> Iterator[None]:
    """On CUDA, multiply float32 matrices in TF32 (10 bits of mantissa); the setting of before comes back."""
    if not wanted or device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def compiled(model: nn.Module, device: torch.device) -> Any:
    """The model through ``torch.compile``, or as it is where there is no compiler (said once)."""
    reason = no_compiler(device.type)
    if reason is not None:
        logger.warning("compile=True has no effect: %s", reason)
        return model
    # batches differ in their numbers of conditions: sizes are left open
    return torch.compile(model, dynamic=True)


def no_compiler(device_type: str) -> str | None:
    """What ``torch.compile`` lacks on this machine for a kind of device; None where nothing."""
    named = os.environ.get("CXX")
    names = (named,) if named else COMPILERS
    if not any(shutil.which(name) for name in names):
        return f"no C++ compiler was found (looked for {', '.join(names)}; CXX names another)"
    if device_type == "cuda" and importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    return None
