"""Registry of objects that are looked up by name: metrics, baselines, splits, styles, schedules, loggers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from gears.core._messages import unknown_name

T = TypeVar("T")


class Registry(Mapping[str, T]):
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
        self.kind = kind
        self._objects: dict[str, T] = {}

    def add(self, name: str, value: T) -> T:
        """Add an object and return it; ValueError where the name is taken."""
        if name in self._objects:
            msg = f"a {self.kind} named {name!r} is already registered; choose another name"
            raise ValueError(msg)
        self._objects[name] = value
        return value

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that adds an object."""
        return lambda value: self.add(name, value)

    def get(self, name: str, default: Any = None) -> Any:
        return self._objects.get(name, default)

    def __getitem__(self, name: str) -> T:
        if name not in self._objects:
            raise ValueError(unknown_name(self.kind, str(name), list(self._objects)))
        return self._objects[name]

    def __delitem__(self, name: str) -> None:
        del self._objects[name]

    def __contains__(self, name: object) -> bool:
        return name in self._objects

    def __iter__(self) -> Iterator[str]:
        return iter(self._objects)

    def __len__(self) -> int:
        return len(self._objects)
