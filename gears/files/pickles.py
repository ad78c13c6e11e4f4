"""Read pickles of cell-gears with an unpickler that admits a list of names; any other name is an error.

Arrays and tensors are not restored by numpy's and torch's own functions: numpy trusts type and size in the file, which
could make it read and write outside of its memory, and torch unpickles a storage without any restriction.
"""

from __future__ import annotations

import contextlib
import io
import math
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gears.files.paths import reading, user_path

if TYPE_CHECKING:
    import torch

_KINDS = "biufcOUS"


class _Type:
    """Replaces ``numpy.dtype`` in a pickle: numbers, text and objects, no structures."""

    def __init__(self, code: Any) -> None:
        self.dtype = np.dtype(code) if isinstance(code, str) and len(code) < 12 else np.dtype("V")
        if self.dtype.kind not in _KINDS or self.dtype.subdtype is not None:
            msg = f"it holds an array of type {str(code)[:20]!r}"
            raise pickle.UnpicklingError(msg)

    def __setstate__(self, state: tuple) -> None:
        if state[2:5] != (None, None, None):
            msg = "it has a structured type of numbers"
            raise pickle.UnpicklingError(msg)
        if state[1] in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(state[1])


class _Array:
    """Replaces an array until the pickle is read; not hashable, like arrays."""

    __hash__: ClassVar[None] = None  # type: ignore[assignment]
    values = np.empty(0)

    def __setstate__(self, state: tuple) -> None:
        _, shape, kind, fortran, raw = state
        self.values = _values(kind, shape, raw).reshape(shape, order="F" if fortran else "C")


def _values(kind: Any, shape: tuple[int, ...], raw: Any) -> np.ndarray:
    """Flat values of an array from its bytes or list of objects; raises unless their number fits the shape."""
    dtype, size = kind.dtype, math.prod(shape)
    raw_type, itemsize = (list, 1) if dtype.hasobject else (bytes, dtype.itemsize)
    if not isinstance(raw, raw_type) or len(raw) != size * itemsize:
        msg = f"an array of shape {shape} in it has another number of values"
        raise pickle.UnpicklingError(msg)
    values = np.empty(size, dtype)
    if dtype.hasobject:
        for index, value in enumerate(raw):
            values[index] = value
    elif isinstance(raw, bytes) and raw:
        values[:] = np.frombuffer(raw, dtype)
    return values


class _Makers:
    """What the admitted names call; bound methods, whose attributes a pickle cannot set."""

    __slots__ = ()

    def dtype(self, code: Any, *_: Any) -> _Type:
        return _Type(code)

    def array(self, *_: Any) -> _Array:
        return _Array()

    def scalar(self, kind: Any, value: Any) -> Any:
        return _values(kind, (), value)[0]

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

    def tensor(
        self, storage: torch.TypedStorage, offset: int, size: Any, stride: Any, *_: Any
    ) -> torch.Tensor:
        import torch

        storage_values = torch.empty(0, dtype=storage.dtype).set_(storage._untyped_storage)
        return storage_values.as_strided(size, stride, offset).clone()  # torch raises if this reaches outside

    def device(self, *names: Any) -> str:
        return ":".join(map(str, names))


_MAKE = _Makers()
_PLAIN: dict[tuple[str, str], Any] = {
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("numpy", "ndarray"): None,  # an argument of _reconstruct
    ("numpy", "dtype"): _MAKE.dtype,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _MAKE.array for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _MAKE.scalar for core in ("core", "_core")},
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

    def load(self) -> Any:
        """Read the pickle."""
        return _with_arrays(super().load(), {})


class TensorUnpickler(PlainUnpickler):
    """Admits tensors beside what :class:`PlainUnpickler` admits."""

    admitted: ClassVar[dict[tuple[str, str], Any]] = {**_PLAIN, **_TENSORS}


def _with_arrays(old: Any, converted: dict[int, tuple[Any, Any]]) -> Any:
    """`old` with arrays in place of each :class:`_Array`.

    `converted` holds old and new objects by the identity of the old ones, which must therefore stay alive.
    """
    if not isinstance(old, list | tuple | dict | _Array):
        return old
    if id(old) not in converted:
        new = old.values if isinstance(old, _Array) else old
        converted[id(old)] = old, new
        if isinstance(new, dict | list):
            for key, value in list(new.items() if isinstance(new, dict) else enumerate(new)):
                new[key] = _with_arrays(value, converted)
        elif isinstance(new, tuple):
            new = tuple(_with_arrays(value, converted) for value in new)
        elif new.dtype.hasobject:
            for index in np.ndindex(new.shape):
                new[index] = _with_arrays(new[index], converted)
        converted[id(old)] = old, new
    return converted[id(old)][1]


def is_pickle(path: str | Path) -> bool:
    """Whether a file begins like a pickle of protocol 2 or later."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(1) == b"\x80"
    return False


def load_plain(path: str | Path, unpickler: type[PlainUnpickler] = PlainUnpickler) -> Any:
    """Read a pickle of plain containers and arrays, or of what another unpickler admits.

    ValueError if the file is no pickle, or refers to anything that could run code.
    """
    path = user_path(path)
    remedy = "it may hold lists, sets, dicts, text, numbers and arrays only: write it as text or JSON instead"
    with reading(path, "a pickle of plain values", remedy), open(path, "rb") as file:
        return unpickler(file).load()


def load_npy(path: str | Path) -> np.ndarray:
    """Read a ``.npy`` file, also one of text stored as objects, which is a pickle of plain values inside.

    ValueError if the file is damaged, or refers to anything that could run code.
    """
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
