"""Grouping batches into accumulation windows, and telling loaders which epoch begins."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import torch

from gears.training.tasks import Reducer


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell a loader, its sampler and its data set which epoch begins."""
    for part in (loader, getattr(loader, "sampler", None), getattr(loader, "dataset", None)):
        tell = getattr(part, "set_epoch", None)
        if tell is not None:
            tell(epoch)


def windows(
    loader: Iterable[Any], size: int, *, skip: int = 0, skipped: Callable[[], None] | None = None
) -> Iterator[list[Any]]:
    """Group batches into windows of `size` (the last may be smaller), leaving out the first `skip`.

    `skipped` is called between the last batch that is left out and the reading of the next; before
    the loader is opened where none is left out, since opening may draw random numbers.
    """
    if skipped is not None and skip == 0:
        skipped()
    batches = iter(loader)
    for _ in range(skip * size):
        next(batches, None)
    if skipped is not None and skip > 0:
        skipped()
    while window := list(itertools.islice(batches, size)):
        yield window


def check_equal_lengths(loader: Iterable[Any], reducer: Reducer, device: torch.device) -> None:
    """All workers must take the same number of steps; said before the first.

    Raises
    ------
    ValueError
        The workers' loaders have different numbers of batches.
    """
    if not isinstance(loader, Sized):
        return
    length = torch.tensor([float(len(loader))], dtype=torch.float32, device=device)
    lengths = reducer.gather(length).flatten().tolist()
    if len(set(lengths)) > 1:
        msg = f"the workers' loaders have different numbers of batches: {[int(n) for n in lengths]}"
        raise ValueError(msg)
