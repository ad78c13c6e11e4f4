"""Grouping batches into accumulation windows, and telling loaders which epoch begins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell the sampler and the data set of a loader which epoch begins."""
    for part in (getattr(loader, "sampler", None), getattr(loader, "dataset", None)):
        tell = getattr(part, "set_epoch", None)
        if tell is not None:
            tell(epoch)


def windows(loader: Iterable[Any], size: int, *, skip: int = 0) -> Iterator[list[Any]]:
    """Group batches into windows of `size` (the last may be smaller), leaving out the first `skip`."""
    window: list[Any] = []
    done = 0
    for batch in loader:
        window.append(batch)
        if len(window) == size:
            if done >= skip:
                yield window
            window, done = [], done + 1
    if window and done >= skip:
        yield window
