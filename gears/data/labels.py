"""The labels of a screen, parsed once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from gears.conditions import Condition


@dataclass(frozen=True)
class LabelTable:
    """Labels of a screen in order of first appearance, parsed once.

    Attributes
    ----------
    cell_label : np.ndarray (N,) int32
        Label of each cell.
    labels : list of str, L
    label_condition : np.ndarray (L,) int64
    conditions : tuple of Condition, C
    """

    cell_label: np.ndarray
    labels: list[str]
    label_condition: np.ndarray
    conditions: tuple[Condition, ...]

    @classmethod
    def of(cls, labels: pd.Series) -> LabelTable:
        """Parse one label per cell (strings without missing values)."""
        codes, own = pd.factorize(labels.astype(object))
        ids: dict[Condition, int] = {}
        label_condition = [ids.setdefault(Condition.parse(label), len(ids)) for label in own]
        return cls(codes.astype(np.int32), list(own), np.asarray(label_condition, dtype=np.int64), tuple(ids))

    @property
    def cell_condition(self) -> np.ndarray:
        """Condition of each cell, (N,) int32."""
        return self.label_condition[self.cell_label].astype(np.int32)

    def counts(self) -> np.ndarray:
        """Cells per condition, (C,)."""
        return np.bincount(self.cell_condition, minlength=len(self.conditions))
