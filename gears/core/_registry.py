"""Registry of objects that are looked up by name: metrics, baselines, splits, styles, schedules, loggers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gears.core._messages import unknown_name

T = TypeVar("T")


class Registry(dict[str, T]):
    """A mapping from names to objects of one kind ("metric"); the error for an unknown name suggests the nearest one.

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
        super().__init__()
        self.kind = kind

    def __missing__(self, name: str) -> T:
        raise ValueError(unknown_name(self.kind, str(name), list(self)))

    def add(self, name: str, value: T) -> T:
        """Add an object and return it; ValueError where the name is taken."""
        if name in self:
            msg = f"a {self.kind} named {name!r} is already registered; choose another name"
            raise ValueError(msg)
        self[name] = value
        return value

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that adds an object."""
        return lambda value: self.add(name, value)
