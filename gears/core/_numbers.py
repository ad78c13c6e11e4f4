"""Numbers that users pass, as Python numbers and checked; arithmetic of arrays that several rooms share."""

from __future__ import annotations

import math
from typing import Any, TypeGuard

import numpy as np

from gears.core._messages import brief


def plain_number(value: Any) -> Any:
    """A numpy number or truth value (also a 0-d array) as a Python one; anything else unchanged.

    Examples
    --------
    >>> plain_number(np.int64(3)), plain_number(np.float32(0.5)), plain_number(np.True_), plain_number("a")
    (3, 0.5, True, 'a')
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    for numpy_type, plain in ((np.bool_, bool), (np.integer, int), (np.floating, float)):
        if isinstance(value, numpy_type):
            return plain(value)
    return value


def is_whole(value: object, least: int | None = None) -> TypeGuard[int]:
    """Whether a value is a whole number, not a truth value, and at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and (least is None or value >= least)


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a finite number and not a truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """A user's whole number as an ``int``; ValueError where it is none, or below `least`."""
    plain = plain_number(value)
    if not is_whole(plain, least):
        msg = f"{name} is {brief(plain)}; expected a whole number of at least {least}"
        raise ValueError(msg)
    return plain


def clips(clip: bool | None, nonnegative: bool) -> bool:
    """Whether values below 0 are set to 0: as `clip` says; by default (None) where a screen is `nonnegative`."""
    return nonnegative if clip is None else clip


def clipped(values: np.ndarray, clip: bool | None, nonnegative: bool) -> np.ndarray:
    """The values, with those below 0 set to 0 where :func:`clips` says so."""
    return np.maximum(values, 0.0) if clips(clip, nonnegative) else values


def unit_rows(values_NK: np.ndarray) -> np.ndarray:
    """Rows scaled to norm 1; rows of zeros stay zero, and rows with NaN become zero."""
    norm_N1 = np.linalg.norm(values_NK, axis=1, keepdims=True)
    return np.divide(values_NK, norm_N1, out=np.zeros_like(values_NK), where=norm_N1 > 0)
