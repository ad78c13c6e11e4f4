"""Public names of a package that are imported on first use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package, so that importing it imports none of its modules.

    `homes` names the module that each public name is imported from; a module is its own home.

    Examples
    --------
    >>> find, names = lazy_names("gears.core", {"count": "gears.core.messages"})
    >>> find("count")(2, "gene")
    '2 genes'
    >>> find("cuont")
    Traceback (most recent call last):
        ...
    AttributeError: module 'gears.core' has no attribute 'cuont'; public names: count
    """

    def find(name: str) -> Any:
        if name not in homes:
            public = getattr(sys.modules[package], "__all__", sorted(homes))
            msg = f"module {package!r} has no attribute {name!r}; public names: {', '.join(public)}"
            raise AttributeError(msg)
        home = importlib.import_module(homes[name])
        return home if homes[name] == f"{package}.{name}" else getattr(home, name)

    def names() -> list[str]:
        return sorted([*vars(sys.modules[package]), *homes])

    return find, names
