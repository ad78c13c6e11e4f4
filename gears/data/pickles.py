"""Published pickles, read so that nothing in them can run."""

from __future__ import annotations

import contextlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np

_ARRAY_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")
_RECONSTRUCT = np.empty(0).__reduce__()[0]  # type: ignore[index]
_SCALAR = np.float64(0).__reduce__()[0]  # type: ignore[index]


def _plain_scalar(dtype: np.dtype, value: Any = None) -> Any:
    if dtype.hasobject:
        msg = "it holds a scalar of objects"
        raise pickle.UnpicklingError(msg)
    return _SCALAR(dtype, value)  # type: ignore[operator]


class PlainUnpickler(pickle.Unpickler):
    """Admits plain containers, strings, numbers and numpy arrays; anything else is refused by name."""

    def find_class(self, module: str, name: str) -> Any:
        """What a name in the pickle stands for; anything unknown is refused."""
        if module == "builtins" and name in ("set", "frozenset"):
            return {"set": set, "frozenset": frozenset}[name]
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if module in _ARRAY_MODULES and name in ("_reconstruct", "scalar"):
            return _RECONSTRUCT if name == "_reconstruct" else _plain_scalar
        msg = f"it refers to {module}.{name}"
        raise pickle.UnpicklingError(msg)


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
    path = Path(path)
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
    path = Path(path)
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
