"""Evaluation of a model with contexts: each unit within its own context, beside baselines that see the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.conditions import Condition
from gears.data.splits import Split
from gears.data.unit_screen import SettingView, UnitScreen
from gears.evaluation.baselines.means_table import training_conditions
from gears.evaluation.settings import by_setting, means_in, scopes_of, truth_in
from gears.evaluation.table import comparison_table
from gears.evaluation.truth import Truth
from gears.graphs import GeneAnnotation

if TYPE_CHECKING:
    from gears.pertdata import PertData


def unit_table_of(
    predicted_UG: np.ndarray,
    units: Sequence[Condition],
    screen: UnitScreen,
    split: Split,
    *,
    annotation: GeneAnnotation,
    truth_screen: UnitScreen | None = None,
    **options: Any,
) -> pd.DataFrame:
    """The comparison of every setting under one another (:func:`gears.evaluation.comparison_table`).

    Baselines are fitted to what trains in the unit's own context, and for conditions that train in
    other contexts only to their mean change there (:func:`gears.evaluation.settings.means_in`).
    With `truth_screen`, which shows other control cells, true changes count from those.

    Returns
    -------
    pd.DataFrame
        With the columns ``context`` and ``perturbation_type`` besides; ``condition`` holds both
        ("A+ctrl [CRISPRi] @ K562"). Set metrics are those of each setting.
    """
    train = training_conditions(split)
    tables = []
    left_out: dict[str, str] = {}
    for scope in scopes_of(screen, units, train):
        view = scope.screen
        assert isinstance(view, SettingView)
        true = None if truth_screen is None else truth_screen.setting(view.context, view.kind)
        table = comparison_table(
            predicted_UG[scope.rows],
            scope.conditions,
            view,
            split,
            subgroups=scope.subgroups,
            annotation=annotation,
            means=means_in(screen, view, train),
            truth_screen=true,
            **options,
        )
        suffix = Condition(("A",), view.context, view.kind).suffix
        left_out |= {f"{name}{suffix}": why for name, why in table.attrs["left_out"].items()}
        tables.append(scope.named(table))
    whole = pd.concat(tables, ignore_index=True)
    whole.attrs.update(left_out=left_out, model=tables[0].attrs["model"])
    return whole


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
