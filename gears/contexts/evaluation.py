"""Validation of a model with contexts: each unit within its own context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gears.conditions import Condition
from gears.data.unit_screen import UnitScreen
from gears.evaluation.scoring import by_setting, truth_in
from gears.evaluation.truth import Truth

if TYPE_CHECKING:
    from gears.pertdata import PertData


def unit_truths(pert_data: PertData, units: Sequence[Condition]) -> tuple[list[Truth], list[Condition]]:
    """Truth of each setting with some of the validation units, and the units in that order."""
    screen, split = pert_data.screen_of("val"), pert_data.split
    assert isinstance(screen, UnitScreen)
    assert split is not None
    truths, ordered = [], []
    for view, rows in by_setting(screen, units):
        own = [units[row] for row in rows]
        truths.append(truth_in(screen, view, own, split.conditions("train")))
        ordered += own
    return truths, ordered
