"""Pickles of cell-gears, read so that nothing in them can run.

The interpreter of pickles is Python's own in Python, not the one in C: that one, and numpy's way of
restoring arrays, trust numbers in the file (memo places, sizes, flags of a dtype) and can be made to
write outside of their memory. Here an array is made from bytes whose number is checked.

A tensor inside a plain pickle arrives through ``torch.storage._load_from_bytes``, which unpickles a
pickle inside the pickle, freely. Here that call is replaced by one that admits tensors only.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import torch

from gears.files.paths import user_path

_ARRAY_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")
_KINDS = "biufcOUS"
LARGE = 1 << 16
"""Bytes; who asks for more gets what there is."""
_Interpreter: Any = pickle._Unpickler  # type: ignore[attr-defined]


class _Admitted:
    """Stands for something that a pickle names; without attributes, so that no pickle can change it."""

    __slots__ = ()


class _NoArray(_Admitted):
    """In place of the class ``numpy.ndarray``, which only :class:`_Reconstruct` is given."""


class _Type(_Admitted):
    """In place of ``numpy.dtype``: numbers, text and objects, no structures."""

    def __call__(self, code: Any, *_: Any) -> np.dtype:
        found = np.dtype(code) if isinstance(code, str) and len(code) < 12 else None
        if (
            found is None
            or found.kind not in _KINDS
            or found.fields is not None
            or found.subdtype is not None
        ):
            msg = f"it holds an array of type {str(code)[:20]!r}"
            raise pickle.UnpicklingError(msg)
        return found


class _Blank:
    """An array before its content is read."""

    __slots__ = ()


class _Reconstruct(_Admitted):
    """In place of ``numpy._core.multiarray._reconstruct``."""

    def __call__(self, *_: Any) -> _Blank:
        return _Blank()


class _Scalar(_Admitted):
    """In place of ``numpy._core.multiarray.scalar``."""

    def __call__(self, dtype: Any, value: Any = None) -> Any:
        if not isinstance(dtype, np.dtype) or dtype.hasobject:
            msg = "it holds a scalar of objects"
            raise pickle.UnpicklingError(msg)
        return _array(dtype, (), value, fortran=False)[()]


_NAMES: dict[tuple[str, str], Any] = {
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("numpy", "ndarray"): _NoArray(),
    ("numpy", "dtype"): _Type(),
    **{(module, "_reconstruct"): _Reconstruct() for module in _ARRAY_MODULES},
    **{(module, "scalar"): _Scalar() for module in _ARRAY_MODULES},
}


def _array(dtype: Any, shape: Any, raw: Any, *, fortran: bool) -> np.ndarray:
    """An array from its bytes (or list of objects), which must be as many as its shape says."""
    whole = isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape) and len(shape) <= 32
    if (
        not isinstance(dtype, np.dtype)
        or not whole
        or not isinstance(raw, list if dtype.hasobject else bytes)
    ):
        msg = "an array in it is damaged"
        raise pickle.UnpicklingError(msg)
    expected = math.prod(shape) * (1 if dtype.hasobject else dtype.itemsize)
    if len(raw) != expected:
        msg = f"an array of shape {shape} in it has {len(raw)} values or bytes, expected {expected}"
        raise pickle.UnpicklingError(msg)
    if dtype.hasobject:
        flat = np.empty(len(raw), dtype=object)
        for place, value in enumerate(raw):
            flat[place] = value
    else:
        flat = (
            np.frombuffer(bytes(raw), dtype=dtype).copy()
            if dtype.itemsize
            else np.empty(math.prod(shape), dtype)
        )
    return flat.reshape(shape, order="F" if fortran else "C")


class _Within:
    """A file that is never asked for more than it has: memory would be taken for what a pickle only says."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.readline = file, file.readline

    def read(self, n: int) -> bytes:
        if n > LARGE:
            n = min(n, os.fstat(self._file.fileno()).st_size - self._file.tell())
        return self._file.read(n)


class PlainUnpickler(_Interpreter):
    """Admits plain containers, strings, numbers and numpy arrays; anything else is refused by name."""

    dispatch: ClassVar[dict[int, Any]] = dict(_Interpreter.dispatch)

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(_Within(file))

    def find_class(self, module: str, name: str) -> Any:
        """What a name in the pickle stands for; anything unknown is refused."""
        if (module, name) not in _NAMES:
            msg = f"it refers to {module}.{name}"
            raise pickle.UnpicklingError(msg)
        return _NAMES[module, name]

    def load_build(self) -> None:
        """Complete an array or a dtype from its state; nothing else has one."""
        state, found = self.stack.pop(), self.stack[-1]
        made: Any
        if isinstance(found, _Blank) and isinstance(state, tuple) and len(state) == 5:
            _, shape, dtype, fortran, raw = state
            made = _array(dtype, shape, raw, fortran=bool(fortran))
        elif isinstance(found, np.dtype) and isinstance(state, tuple) and state[2:5] == (None, None, None):
            made = found.newbyteorder(state[1]) if state[1] in ("<", ">") else found
        else:
            msg = f"it gives {type(found).__name__.lstrip('_')} a state"
            raise pickle.UnpicklingError(msg)
        self.stack[-1] = made
        for place in reversed(self.memo):
            if self.memo[place] is found:
                self.memo[place] = made
                break

    dispatch[pickle.BUILD[0]] = load_build

    def load_bytearray8(self) -> None:
        """Refuse: memory would be filled with as many zeros as the file says, and nothing plain is a bytearray."""
        msg = "it holds a bytearray"
        raise pickle.UnpicklingError(msg)

    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8


def is_pickle(path: str | Path) -> bool:
    """Whether a file begins as a pickle of protocol 2 or later does."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(1) == b"\x80"
    return False


def load_plain(path: str | Path, unpickler: type[PlainUnpickler] = PlainUnpickler) -> Any:
    """Read a pickle of plain containers and arrays, or of what another unpickler admits.

    Raises
    ------
    ValueError
        If the file is no pickle, or refers to anything that could run code.
    """
    path = user_path(path)
    try:
        with open(path, "rb") as file:
            return unpickler(file).load()
    except FileNotFoundError:
        raise
    except Exception as error:
        msg = (
            f"{path} is not read: {error}; a pickle may hold lists, sets, dicts, text, numbers and arrays only. "
            "Write it as text or JSON instead"
        )
        raise ValueError(msg) from error


def load_npy(path: str | Path) -> np.ndarray:
    """Read a ``.npy`` file, also one of text stored as objects, which is a pickle of plain values inside.

    Raises
    ------
    ValueError
        If the file is damaged, or refers to anything that could run code.
    """
    path = user_path(path)
    try:
        with open(path, "rb") as file:
            version = np.lib.format.read_magic(file)
            read = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            if read(file)[2].hasobject:
                return np.asarray(PlainUnpickler(file).load())
        return np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise
    except Exception as error:
        msg = f"{path} is not read: {error}; save the names with dtype=str, or as text"
        raise ValueError(msg) from error


class _Storage:
    """In place of ``torch.storage._load_from_bytes``."""

    __slots__ = ()  # nothing in a pickle can change it

    def __call__(self, data: Any) -> torch.TypedStorage:
        if not isinstance(data, bytes):
            msg = "a tensor in it has no bytes"
            raise pickle.UnpicklingError(msg)
        try:
            storage = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except Exception as error:  # torch's own words recommend to read it freely
            msg = "a pickle inside it is no storage of a tensor, and could run code"
            raise pickle.UnpicklingError(msg) from error
        if not isinstance(storage, torch.TypedStorage):
            msg = f"a pickle inside it holds {type(storage).__name__}, expected the storage of a tensor"
            raise pickle.UnpicklingError(msg)
        return storage


class _Tensor:
    """In place of ``torch._utils._rebuild_tensor_v2``: the tensor must lie within its storage."""

    __slots__ = ()

    def __call__(self, storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> torch.Tensor:
        whole = isinstance(offset, int) and all(isinstance(n, int) and n >= 0 for n in (*size, *stride))
        if not isinstance(storage, torch.TypedStorage) or not whole or len(size) != len(stride) or offset < 0:
            msg = "a tensor in it is damaged"
            raise pickle.UnpicklingError(msg)
        values = torch.empty(0, dtype=storage.dtype).set_(storage._untyped_storage)
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if 0 not in size and last >= len(values):
            msg = f"a tensor of size {tuple(size)} in it reaches beyond its {len(values)} values"
            raise pickle.UnpicklingError(msg)
        return values.as_strided(size, stride, offset).clone()


class _Device:
    """In place of ``torch.device``: a name is enough."""

    __slots__ = ()

    def __call__(self, *names: Any) -> str:
        return ":".join(str(name) for name in names)


_ADMITTED: dict[tuple[str, str], Callable[..., Any]] = {
    ("torch.storage", "_load_from_bytes"): _Storage(),
    ("torch._utils", "_rebuild_tensor_v2"): _Tensor(),
    ("torch", "device"): _Device(),
    ("collections", "OrderedDict"): OrderedDict,
}


class TensorUnpickler(PlainUnpickler):
    """Admits tensors beside what :class:`PlainUnpickler` admits."""

    def find_class(self, module: str, name: str) -> Any:
        """What a name in the pickle stands for; anything unknown is refused."""
        return _ADMITTED.get((module, name)) or super().find_class(module, name)


def load_tensors(path: str | Path) -> Any:
    """Read a pickle of plain containers, arrays and tensors (on the CPU).

    Raises
    ------
    ValueError
        If the file is no pickle, or refers to anything that could run code, in a pickle inside it too.
    """
    return load_plain(path, TensorUnpickler)
