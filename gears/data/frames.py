"""Annotation tables in a form that h5ad can hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def plain_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """A copy that h5ad can hold: plain column names, text instead of mixed objects, unique index."""
    plain = frame.copy()
    plain.columns = [str(column).replace("/", "_") for column in plain.columns]
    plain = plain.loc[:, ~plain.columns.duplicated()].copy()
    plain.index = plain.index.astype(str)
    plain.index.name = None if plain.index.name in set(plain.columns) else plain.index.name
    if not plain.index.is_unique:
        from anndata.utils import make_index_unique

        plain.index = make_index_unique(plain.index)
    for column in plain.columns:
        if not _is_plain(plain[column].dtype):
            plain[column] = plain[column].astype(object).astype(str)
    return plain


def _is_plain(dtype: Any) -> bool:
    """Numbers, truth values, and categories of plain text or numbers."""
    if isinstance(dtype, pd.CategoricalDtype):
        categories = dtype.categories
        return categories.inferred_type == "string" or _is_plain(categories.dtype)
    return isinstance(dtype, np.dtype) and dtype.kind in "biuf"
