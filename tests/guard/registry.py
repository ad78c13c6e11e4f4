"""What the package reads from disk: how such a file comes about, and what reading it gives.

`sealed` files are the package's own: any change of a byte must be noticed or be without effect. The others are the
user's text and tables, in which another letter is another content: they must be read or raise an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gears.files.formats import content_hash

if TYPE_CHECKING:
    from anndata import AnnData

GENES = [f"GX{i:02d}" for i in range(30)]


@dataclass(frozen=True)
class Reader:
    """A kind of file: made in a folder, read from it as values that can be hashed."""

    name: str
    make: Callable[[Path, AnnData], Any]
    read: Callable[[Path], Any]
    sealed: bool = False


READERS: dict[str, Reader] = {}


def reader(make: Callable[[Path, AnnData], Any], *, sealed: bool = False) -> Callable[..., Any]:
    def note(read: Callable[[Path], Any]) -> Callable[[Path], Any]:
        name = read.__name__.removeprefix("read_")
        READERS[name] = Reader(name, make, read, sealed)
        return read

    return note


def files(folder: Path) -> list[Path]:
    """What may be damaged: everything but locks."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if not path.name.endswith(".lock"))


def plain(value: Any) -> Any:
    """Tensors and arrays as arrays, containers as they are, for a hash of everything."""
    import torch

    if isinstance(value, torch.Tensor):
        values = value.double() if value.is_floating_point() else value
        return ["tensor", str(value.dtype), values.tolist()]
    if isinstance(value, np.ndarray):
        return ["array", str(value.dtype), value.tolist()]
    if isinstance(value, dict):
        return [[str(key), plain(value[key])] for key in value]
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    return value if isinstance(value, str | int | float | bool | type(None)) else str(value)


def digest(value: Any) -> str:
    return content_hash(plain(value))
