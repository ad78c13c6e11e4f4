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

from gears.training.wrapping import unwrap

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


@contextlib.contextmanager
def compiled(model: nn.Module, device: torch.device, *, wanted: bool = True) -> Iterator[Any]:
    """The model through ``torch.compile``, or as it is where there is no compiler (said once).

    What a model names in ``hand_written()`` (pairs of a module and a method, with passes backwards
    and collectives of its own) is called as it is, not traced.
    """
    reason = no_compiler(device.type) if wanted else None
    if reason is not None:
        logger.warning("compile=True has no effect: %s", reason)
    if not wanted or reason is not None:
        yield model
        return
    own: list[tuple[nn.Module, str]] = getattr(unwrap(model), "hand_written", list)()
    for module, method in own:
        setattr(module, method, torch.compiler.disable(getattr(module, method)))
    try:
        # batches differ in their numbers of conditions: sizes are left open
        yield torch.compile(model, dynamic=True)
    finally:
        for module, method in own:
            delattr(module, method)  # the class's own is there again


def no_compiler(device_type: str) -> str | None:
    """What ``torch.compile`` lacks on this machine for a kind of device; None where nothing."""
    named = os.environ.get("CXX")
    names = (named,) if named else COMPILERS
    if not any(shutil.which(name) for name in names):
        return f"no C++ compiler was found (looked for {', '.join(names)}; CXX names another)"
    if device_type == "cuda" and importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    return None
