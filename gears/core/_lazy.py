"""Public names that are imported on first use, and names that do not exist any more."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], gone: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package, so that importing it imports none of its modules.

    `homes` names the module that each public name is imported from; a module is its own home. `gone` says what
    replaces names of cell-gears: these raise an ImportError, since of an AttributeError
    ``from package import name`` would not show the message.

    Examples
    --------
    >>> find, names = lazy_names("gears.core", {"count": "gears.core._messages"})
    >>> find("count")(2, "gene")
    '2 genes'
    >>> find("cuont")
    Traceback (most recent call last):
        ...
    AttributeError: module 'gears.core' has no attribute 'cuont'; public names: count
    """

    def find(name: str) -> Any:
        if gone and name in gone:
            msg = f"{package}.{name} of cell-gears does not exist here: {gone[name]}"
            raise ImportError(msg)
        if name not in homes:
            public = vars(sys.modules[package]).get("__all__", sorted(homes))
            msg = f"module {package!r} has no attribute {name!r}; public names: {', '.join(public)}"
            raise AttributeError(msg)
        home = importlib.import_module(homes[name])
        return home if homes[name] == f"{package}.{name}" else getattr(home, name)

    def names() -> list[str]:
        module = vars(sys.modules[package])
        return sorted(module.get("__all__", [*module, *homes]))

    return find, names


class Gone:
    """An attribute of cell-gears that does not exist here: reading it is an AttributeError with a remedy.

    Examples
    --------
    >>> class Model:
    ...     weights = Gone("use state_dict()")
    >>> Model().weights
    Traceback (most recent call last):
        ...
    AttributeError: Model.weights of cell-gears does not exist here: use state_dict()
    """

    def __init__(self, instead: str) -> None:
        self.instead = instead

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.__doc__ = f"Does not exist any more: {self.instead}."

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        msg = f"{owner.__name__}.{self.name} of cell-gears does not exist here: {self.instead}"
        raise AttributeError(msg)
