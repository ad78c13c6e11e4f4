"""Published pickles that hold tensors, read so that nothing in them can run.

A tensor inside a plain pickle arrives through ``torch.storage._load_from_bytes``, which unpickles a
pickle inside the pickle, freely. Here that call is replaced by one that admits tensors only.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gears.data.pickles import PlainUnpickler, load_plain


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
