"""Names and aliases of an annotation as plain arrays, and back."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gears.messages import shorten


def aliases_of(arrays: Mapping[str, np.ndarray], genes: list[str]) -> dict[str, str]:
    """Alias -> symbol, from the arrays of an annotation file."""
    names = unpack(arrays["alias"]) if "alias" in arrays else []
    owners = arrays["alias_gene"].tolist() if names else []
    return {name: genes[owner] for name, owner in zip(names, owners, strict=True)}


class PackagedAliases(Mapping[str, str]):
    """The package's aliases, unpacked when a name is looked up that is no symbol (many screens have none)."""

    def __init__(self, arrays: Mapping[str, np.ndarray], genes: list[str]) -> None:
        self._arrays, self._genes = {name: arrays[name] for name in ("alias", "alias_gene")}, genes

    @functools.cached_property
    def _names(self) -> dict[str, str]:
        return aliases_of(self._arrays, self._genes)

    def __getitem__(self, name: str) -> str:
        return self._names[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._arrays["alias_gene"])


def pack(names: Sequence[str]) -> np.ndarray:
    """Names as bytes: an npz of fixed-width strings would be many times larger, objects would need pickle."""
    broken = [name for name in names if "\n" in name or not name]
    if broken:
        msg = f"names must be non-empty and hold no line feed; found {shorten(map(repr, broken))}"
        raise ValueError(msg)
    return np.frombuffer("\n".join(names).encode(), dtype=np.uint8)


def unpack(packed: np.ndarray) -> list[str]:
    """Inverse of :func:`pack`."""
    text = packed.astype(np.uint8).tobytes().decode()
    return text.split("\n") if text else []
