"""Read untrusted files: text that is text, no links to other files, pickles of cell-gears without running their code.

Pickles are read with an unpickler that admits a list of names; any other name is an error. Tensors are not restored by
torch's own functions, which unpickle a storage without any restriction.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import pickle
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar

import numpy as np

from gears.core._messages import shorten
from gears.files._paths import existing_file, reading, user_path

if TYPE_CHECKING:
    import torch

DAMAGE = (UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error)


class WholeLines:
    """A binary file of text for scipy's matrix reader, which crashes on zero bytes and a missing last line feed."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._last = file, b"\n"

    def read(self, n: int = -1) -> bytes:
        """Some bytes; ValueError where one of them is zero."""
        content = self._file.read(n)
        if b"\x00" in content:
            msg = "it holds zero bytes, which are no text"
            raise ValueError(msg)
        if not content and n and self._last != b"\n":
            content = b"\n"
        self._last = content[-1:] or self._last
        return content


def text_lines(path: str | Path) -> Iterator[str]:
    """Lines of a text file (UTF-8; gzipped as ``.gz``) with their ends; ValueError if it is no text, or damaged."""
    path, number = user_path(path), 0
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8-sig", newline="") as file:  # type: ignore[operator]
        try:
            for line in file:
                number += 1
                yield line
        except DAMAGE as error:
            msg = f"{path}, after line {number}, cannot be read as text ({error}); get it again"
            raise ValueError(msg) from error


def listed_names(path: str | Path) -> list[str]:
    """Lines of a text file (:func:`text_lines`) without surrounding blanks; empty ones are skipped."""
    return [line.strip() for line in text_lines(existing_file(path)) if line.strip()]


def refuse_beyond(path: str | Path) -> None:
    """Raise ValueError for an HDF5 file with links to other files."""
    import h5py

    path = user_path(path)
    if not h5py.is_hdf5(path):
        return  # the reader raises a better error
    try:
        with h5py.File(path, "r") as file:
            outside = _entries_elsewhere(file)
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        if str(path) in str(error):
            raise
        msg = f"{path} is damaged or cut short ({error}); get it again"
        raise ValueError(msg) from error
    if outside:
        msg = f"{path} has entries that are stored in other files ({shorten(outside, 3)}); it is not opened"
        raise ValueError(msg)


def _entries_elsewhere(file: Any) -> list[str]:
    """Names of entries that are stored in other files."""
    import h5py

    outside, pending, visited = [], [file], set()
    while pending:
        group = pending.pop()
        for name in group:
            link = group.get(name, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                outside.append(f"{group.name}/{name}")
                continue
            entry = group.get(name)
            if isinstance(entry, h5py.Dataset):
                if entry.external or entry.is_virtual:
                    outside.append(entry.name)
            elif isinstance(entry, h5py.Group):
                address = h5py.h5o.get_info(entry.id).addr
                if address not in visited:  # groups may hold each other
                    visited.add(address)
                    pending.append(entry)
    return outside


def refuse_links(folder: str | Path) -> None:
    """Raise ValueError for a zarr store with links to other files."""
    folder = user_path(folder)
    links = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_symlink()]
    if links:
        msg = f"{folder} has links ({shorten(links, 3)}); it is not opened"
        raise ValueError(msg)


class _Makers:
    """What the admitted names of torch call; bound methods, whose attributes a pickle cannot set."""

    __slots__ = ()

    def storage(self, data: bytes) -> torch.TypedStorage:
        import torch

        try:
            storage = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except Exception as error:  # torch's message recommends to load it without restriction
            msg = "a pickle inside it is no storage of a tensor, and could run code"
            raise pickle.UnpicklingError(msg) from error
        if not isinstance(storage, torch.TypedStorage):
            msg = f"a pickle inside it holds {type(storage).__name__}, expected the storage of a tensor"
            raise pickle.UnpicklingError(msg)
        return storage

    def tensor(self, storage: torch.TypedStorage, offset: int, size: Any, stride: Any, *_: Any) -> torch.Tensor:
        import torch

        storage_values = torch.empty(0, dtype=storage.dtype).set_(storage._untyped_storage)
        return storage_values.as_strided(size, stride, offset).clone()  # torch raises if this reaches outside

    def device(self, *names: Any) -> str:
        return ":".join(map(str, names))


_MAKE = _Makers()
_PLAIN: dict[tuple[str, str], Any] = {
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0] for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): np.float64(0).__reduce__()[0] for core in ("core", "_core")},
}
_TENSORS: dict[tuple[str, str], Any] = {
    ("torch.storage", "_load_from_bytes"): _MAKE.storage,
    ("torch._utils", "_rebuild_tensor_v2"): _MAKE.tensor,
    ("torch", "device"): _MAKE.device,
    ("collections", "OrderedDict"): OrderedDict,
}


class PlainUnpickler(pickle.Unpickler):
    """Admits plain containers, strings, numbers and numpy arrays; any other name is an error."""

    admitted: ClassVar[dict[tuple[str, str], Any]] = _PLAIN

    def find_class(self, module: str, name: str) -> Any:
        """The object behind a name in the pickle; raises for a name that is not admitted."""
        if (module, name) not in self.admitted:
            msg = f"it refers to {module}.{name}"
            raise pickle.UnpicklingError(msg)
        return self.admitted[module, name]


class TensorUnpickler(PlainUnpickler):
    """Admits tensors beside what :class:`PlainUnpickler` admits."""

    admitted: ClassVar[dict[tuple[str, str], Any]] = {**_PLAIN, **_TENSORS}


def is_pickle(path: str | Path) -> bool:
    """Whether a file begins like a pickle of protocol 2 or later."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(1) == b"\x80"
    return False


def load_plain(path: str | Path, unpickler: type[PlainUnpickler] = PlainUnpickler) -> Any:
    """Read a pickle of what an unpickler admits; ValueError if it is none, or refers to what could run code."""
    path = user_path(path)
    remedy = "it may hold lists, sets, dicts, text, numbers and arrays only: write it as text or JSON instead"
    with reading(path, "a pickle of plain values", remedy), open(path, "rb") as file:
        return unpickler(file).load()


def load_npy(path: str | Path) -> np.ndarray:
    """Read a ``.npy`` file, also one of text stored as objects, which is a pickle of plain values inside."""
    path = user_path(path)
    with reading(path, "a .npy file", "save the names with dtype=str, or as text"):
        with open(path, "rb") as file:
            old = np.lib.format.read_magic(file) == (1, 0)
            read = np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
            if read(file)[2].hasobject:
                return np.asarray(PlainUnpickler(file).load())
        return np.load(path, allow_pickle=False)


def load_tensors(path: str | Path) -> Any:
    """Read a pickle of plain containers, arrays and tensors (on the CPU); errors as of :func:`load_plain`."""
    return load_plain(path, TensorUnpickler)
