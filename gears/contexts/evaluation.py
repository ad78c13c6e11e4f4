"""Evaluation of a model with contexts: each unit within its own context, beside baselines that see the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.conditions import Condition
from gears.contexts.means import by_setting, means_in, truth_in
from gears.data.splits import Split, subgroup_name
from gears.data.unit_screen import UnitScreen
from gears.evaluation.summary import EVERY
from gears.evaluation.table import comparison_table
from gears.evaluation.truth import Truth
from gears.graphs import GeneAnnotation
from gears.training.units import UnitValidation

if TYPE_CHECKING:
    from gears.pertdata import PertData
    from gears.priors import Prior

CONTEXT, KIND = "context", "perturbation_type"


def unit_table_of(
    predicted_UG: np.ndarray,
    units: Sequence[Condition],
    screen: UnitScreen,
    split: Split,
    *,
    annotation: GeneAnnotation,
    **options: Any,
) -> pd.DataFrame:
    """The comparison of every setting under one another (:func:`gears.evaluation.comparison_table`).

    Baselines are fitted to what trains in the unit's own context, and for conditions that train in
    other contexts only to their mean change there (:func:`gears.contexts.means.means_in`).

    Returns
    -------
    pd.DataFrame
        With the columns ``context`` and ``perturbation_type`` besides; ``condition`` holds both
        ("A+ctrl [CRISPRi] @ K562"). Set metrics are those of each setting.
    """
    train = split.conditions("train")
    seen = {gene for unit in train for gene in unit.genes}
    tables = []
    left_out: dict[str, str] = {}
    for view, rows in by_setting(screen, units):
        own = [units[row] for row in rows]
        table = comparison_table(
            predicted_UG[rows],
            [unit.plain for unit in own],
            view,
            split,
            subgroups=[subgroup_name(unit, seen) for unit in own],
            annotation=annotation,
            means=means_in(screen, view, train),
            **options,
        )
        suffix = Condition(("A",), view.context, view.kind).suffix
        left_out |= {f"{name}{suffix}": why for name, why in table.attrs["left_out"].items()}
        named = table["condition"].where(table["condition"] == EVERY, table["condition"] + suffix)
        table["condition"], table[CONTEXT], table[KIND] = named, view.context, view.kind
        tables.append(table)
    whole = pd.concat(tables, ignore_index=True)
    whole.attrs.update(left_out=left_out, model=tables[0].attrs["model"])
    return whole


def unit_validation(
    pert_data: PertData,
    units: Sequence[Condition],
    metrics: Sequence[str],
    *,
    prior: Prior | None,
    mask_target: bool,
) -> UnitValidation:
    """Scorer of validation units."""
    truths, ordered = unit_truths(pert_data, units)
    nodes = [pert_data.condition_nodes(unit) for unit in ordered]
    return UnitValidation(truths, nodes, metrics=metrics, prior=prior, mask_target=mask_target)


def unit_truths(pert_data: PertData, units: Sequence[Condition]) -> tuple[list[Truth], list[Condition]]:
    """Truth of each setting with some of the units, and the units in that order."""
    screen, split = pert_data.screen, pert_data.split
    assert isinstance(screen, UnitScreen)
    assert split is not None
    truths, ordered = [], []
    for view, rows in by_setting(screen, units):
        own = [units[row] for row in rows]
        truths.append(truth_in(screen, view, own, split.conditions("train")))
        ordered += own
    return truths, ordered
