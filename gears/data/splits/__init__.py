"""Splits of a screen by condition: a registry of kinds, drawn as published, checked and cached."""

from gears.data.splits import _as_published, _strict  # noqa: F401  (they register themselves)
from gears.data.splits._leaks import SplitReport, check_split
from gears.data.splits._make import describe_splits, folds, folds_like, make_split, prepare_split
from gears.data.splits._registry import SPLITS, Draw, SplitKind, SplitOptions, register_split
from gears.data.splits._split import PARTS, Split, subgroup_name, subgroup_names

__all__ = [
    "PARTS", "SPLITS", "Draw", "Split", "SplitOptions", "SplitKind", "SplitReport", "check_split", "describe_splits",
    "folds", "folds_like", "make_split", "prepare_split", "register_split", "subgroup_name", "subgroup_names",
]  # fmt: skip
