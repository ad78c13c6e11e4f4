"""Things that are looked up by name: metrics, baselines, splits, styles, schedules, loggers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from gears.core.messages import unknown_name

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
        """Add a thing and return it.

        Raises
        ------
        ValueError
            There is one of that name.
        """
        if name in self._things:
            msg = f"a {self.kind} named {name!r} is already registered; choose another name"
            raise ValueError(msg)
        self._things[name] = thing
        return thing

    def get(self, name: str, default: Any = None) -> Any:
        """The thing of that name, or `default`."""
        return self._things.get(name, default)

    def __getitem__(self, name: str) -> T:
        if name not in self._things:
            raise ValueError(unknown_name(self.kind, str(name), list(self._things)))
        return self._things[name]

    def __delitem__(self, name: str) -> None:
        del self._things[name]

    def __contains__(self, name: object) -> bool:
        return name in self._things

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def __len__(self) -> int:
        return len(self._things)
