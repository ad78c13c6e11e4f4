"""Annotation tables in the published layout, in a form that h5ad can hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from gears.conditions import split_label
from gears.data.labels import LabelTable
from gears.data.layout import Layout

POOLED = "pooled"


def plain_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """A copy that h5ad can hold: plain column names, text instead of mixed objects, unique index."""
    plain = frame.copy()
    plain.columns = [str(column).replace("/", "_") for column in plain.columns]
    plain = plain.rename(columns={"_index": "index_"})  # h5ad keeps that name for itself
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


def published_obs(
    obs: pd.DataFrame, cell_types: pd.Series, table: LabelTable, layout: Layout
) -> tuple[pd.DataFrame, list[str]]:
    """Columns of the published layout, and the published condition name of each label."""
    types = cell_types.astype(str)
    shown = POOLED if types.nunique() > 1 else str(types.iloc[0])
    doses = ["+".join("1" * len(split_label(label))) for label in table.labels]
    names = [f"{shown}_{label}_{dose}" for label, dose in zip(table.labels, doses, strict=True)]
    is_control = np.array([table.conditions[i].is_control for i in table.label_condition], dtype=np.int64)
    plain = plain_frame(obs)
    if not layout.is_published:
        plain["condition_source"] = pd.Categorical(obs[layout.condition_key].astype(str))
    codes = table.cell_label
    columns: dict[str, Any] = {
        "condition": np.asarray(table.labels, dtype=object)[codes],
        "cell_type": types.to_numpy(),
        "dose_val": np.asarray(doses, dtype=object)[codes],
        "control": is_control[codes],
        "condition_name": np.asarray(names, dtype=object)[codes],
    }
    for name, values in columns.items():
        plain[name] = pd.Categorical(values)
    plain["condition_id"] = table.cell_condition
    return plain, names
