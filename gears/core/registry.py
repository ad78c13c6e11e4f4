"""Things that are looked up by name: metrics, baselines, splits, styles, schedules, loggers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from gears.messages import unknown_name

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """A mapping from names to things of one kind; an unknown name is answered with the nearest one.

    Parameters
    ----------
    kind
        What one of them is called in messages: "metric".

    Examples
    --------
    >>> shapes: Registry[int] = Registry("shape")
    >>> shapes.add("square", 4)
    4
    >>> shapes["square"]
    4
    >>> shapes["sqare"]
    Traceback (most recent call last):
    ...
    ValueError: unknown shape 'sqare'; did you mean 'square'? (valid: square)
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._things: dict[str, T] = {}

    def add(self, name: str, thing: T) -> T:
        """Add a thing, or replace the one of that name."""
        self._things[name] = thing
        return thing

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that adds what it decorates."""
        return lambda thing: self.add(name, thing)

    def __getitem__(self, name: str) -> T:
        if name not in self._things:
            raise ValueError(unknown_name(self.kind, str(name), list(self._things)))
        return self._things[name]

    def __contains__(self, name: object) -> bool:
        return name in self._things

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def __len__(self) -> int:
        return len(self._things)
