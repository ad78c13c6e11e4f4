"""Files of a prepared screen that is divided into condition x context units."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gears.data.cells import CellMatrix
from gears.data.de import N_RANKED, rank_genes
from gears.data.unit_statistics import TABLES, UnitStatistics, unit_statistics
from gears.data.units import UnitTable
from gears.files import write_json

FOLDER = "units"
NAMES = "units.json"


def write_units(
    folder: Path, table: UnitTable, parameters: dict[str, Any], gene_names: Sequence[str], *, workers: int = 1
) -> None:
    """Write labels, statistics and rankings of the units; the cells were written before."""
    target = folder / FOLDER
    target.mkdir()
    control_of = np.array([_control_of(table, unit) for unit in range(len(table.units))], dtype=np.int64)
    cells = CellMatrix(folder / "cells", len(gene_names))
    cells.open()
    statistics, control_mean_SG = unit_statistics(
        cells, table.cell_unit, table.cell_stratum, control_of, workers=workers
    )
    arrays = {name: getattr(statistics, name) for name in TABLES}
    arrays |= {"control_mean": control_mean_SG, "label": table.cell_label, "stratum": table.cell_stratum}
    if not parameters["skip_calc_de"]:
        arrays |= dict(zip(("order", "scores"), rank_units(statistics, gene_names), strict=True))
    for name, array in arrays.items():
        np.save(target / f"{name}.npy", array)
    write_json(
        folder / NAMES,
        {
            "contexts": table.contexts,
            "kinds": table.kinds,
            "strata": table.strata,
            "labels": table.labels,
            "label_condition": table.label_unit,
            "units": [[list(unit.genes), unit.context, unit.kind] for unit in table.units],
            "control_of": control_of,
        },
    )


def rank_units(statistics: UnitStatistics, gene_names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Genes of each unit by absolute Welch's t against its own control, and t; -1 and 0 for controls."""
    n_units, n_genes = statistics.mean.shape
    order = np.full((n_units, min(N_RANKED, n_genes)), -1, dtype=np.int32)
    scores = np.zeros(order.shape)
    for control in np.flatnonzero(statistics.is_control):
        units = np.flatnonzero(statistics.control_of == control)
        place = int(np.searchsorted(units, control))
        ranking = rank_genes(statistics.of_setting(units, place), gene_names)
        order[units], scores[units] = ranking.order, ranking.scores
    return order, scores


def _control_of(table: UnitTable, unit: int) -> int:
    """The control of a unit's context."""
    wanted = table.units[unit].context
    return next(i for i, other in enumerate(table.units) if other.is_control and other.context == wanted)
