"""The files of a prepared screen."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from gears.conditions import Condition
from gears.data.cells import CellMatrix, map_array
from gears.data.de import rank_genes
from gears.data.labels import LabelTable
from gears.data.manifest import FORMAT_VERSION, H5AD, KIND, MANIFEST, STATISTICS, TABLES
from gears.data.moments import ConditionMoments
from gears.data.passes import condition_moments, moment_blocks
from gears.data.statistics import ConditionStatistics
from gears.data.unit_writing import write_units
from gears.data.units import UnitTable
from gears.files import content_hash, write_json
from gears.integrity import checksums_of, sealed
from gears.mapped import TableWriter, pieces

MOST_TABLE_VALUES = 1 << 23
"""Conditions x genes of a table of statistics that is held in memory; a larger one is made block by block."""
_PACKAGES = ("numpy", "scipy", "pandas", "anndata")


@dataclass(frozen=True)
class CheckedScreen:
    """A screen that passed all checks, ready to be written.

    Attributes
    ----------
    matrix : csr_matrix (N, G) float32
        Log-normalised expression.
    table : LabelTable
    obs, var : pd.DataFrame
        Annotations in the published layout.
    condition_names : list of str
        Published condition name of each label.
    has_negative : bool
    units : UnitTable or None
        How the cells are divided by context and type, where they are.
    """

    matrix: sparse.csr_matrix
    table: LabelTable
    obs: pd.DataFrame
    var: pd.DataFrame
    condition_names: list[str]
    has_negative: bool
    units: UnitTable | None = None


def screen_hash(checked: CheckedScreen, parameters: dict[str, Any]) -> str:
    """Hash of everything that is written: values, labels, annotations, parameters."""
    matrix = checked.matrix
    return content_hash(
        FORMAT_VERSION,
        list(matrix.shape),
        matrix.data,
        matrix.indices,
        matrix.indptr,
        checked.table.labels,
        *_frame_values(checked.obs),
        *_frame_values(checked.var),
        parameters,
    )


def _frame_values(frame: pd.DataFrame) -> tuple[list[str], np.ndarray]:
    """Column names and one hash per row, index included; the same for text and its categories."""
    return [str(column) for column in frame.columns], pd.util.hash_pandas_object(frame).to_numpy()


def write_screen(
    folder: Path,
    checked: CheckedScreen,
    key: str,
    parameters: dict[str, Any],
    *,
    workers: int = 1,
    more: dict[str, Any] | None = None,
) -> None:
    """Fill an empty folder with everything that a prepared screen holds; `more` goes into the manifest."""
    table = checked.table
    gene_names = checked.var["gene_name"].astype(str).tolist()
    CellMatrix.write(folder / "cells", checked.matrix)
    np.save(folder / "cells" / "label.npy", table.cell_label)
    # several processes share the written cells; one has them at hand already
    cells = CellMatrix(folder / "cells", checked.matrix.shape[1]) if workers > 1 else checked.matrix
    statistics = _written_statistics(folder / "statistics", cells, table, workers)
    if not parameters["skip_calc_de"]:
        ranking = rank_genes(statistics, gene_names)
        (folder / "de").mkdir()
        np.save(folder / "de" / "order.npy", ranking.order)
        np.save(folder / "de" / "scores.npy", ranking.scores)
    if checked.units is not None:
        write_units(folder, checked.units, parameters, gene_names, workers=workers)
    _write_h5ad(folder / H5AD, checked)
    write_json(
        folder / TABLES,
        {
            "gene_names": gene_names,
            "gene_ids": checked.var.index.tolist(),
            "labels": table.labels,
            "label_condition": table.label_condition,
            "conditions": [list(condition.genes) for condition in table.conditions],
            "condition_names": checked.condition_names,
        },
    )
    files = _flushed_files(folder)
    write_json(
        folder / MANIFEST,
        sealed(
            {
                "kind": KIND,
                "format_version": FORMAT_VERSION,
                "content_hash": key,
                "parameters": parameters,
                **(more or {}),
                "differential_expression": not parameters["skip_calc_de"],
                "has_negative": checked.has_negative,
                "units": checked.units is not None,
                "cell_types": sorted(map(str, checked.obs["cell_type"].cat.categories)),
                "shape": {
                    "cells": checked.matrix.shape[0],
                    "genes": checked.matrix.shape[1],
                    "conditions": len(table.conditions),
                    "labels": len(table.labels),
                },
                "versions": {"python": platform.python_version()}
                | {name: importlib.metadata.version(name) for name in _PACKAGES},
                "files": files,
                "checksums": checksums_of(folder, files),
            }
        ),
    )


def _written_statistics(
    folder: Path, cells: sparse.csr_matrix | CellMatrix, table: LabelTable, workers: int
) -> ConditionStatistics:
    """Write the moments of all conditions; tables too large to be held are written block by block, then mapped."""
    folder.mkdir()
    control_id, n_conditions = table.conditions.index(Condition()), len(table.conditions)
    shape = n_conditions, cells.shape[1]
    if shape[0] * shape[1] <= MOST_TABLE_VALUES:
        statistics = statistics_of(cells, table.cell_condition, n_conditions, control_id, workers)
        for name in STATISTICS:
            np.save(folder / f"{name}.npy", getattr(statistics, name))
        return statistics
    with contextlib.ExitStack() as stack:
        shapes = {name: shape[:1] if name == "n" else shape for name in STATISTICS}
        writers = {
            name: stack.enter_context(TableWriter(folder / f"{name}.npy", shapes[name], np.float64))
            for name in STATISTICS
        }
        for moments in moment_blocks(
            cells,
            table.cell_condition,
            n_conditions,
            control_id=control_id,
            most_values=MOST_TABLE_VALUES,
            workers=workers,
        ):
            for name, rows in _tables_of(moments):
                writers[name].add(rows)
            del moments, rows  # before the next block is made
    tables = {name: map_array(folder / f"{name}.npy") for name in STATISTICS}
    return ConditionStatistics(**tables, control_id=control_id)


def _tables_of(moments: ConditionMoments) -> Iterator[tuple[str, np.ndarray]]:
    """The tables of :data:`STATISTICS` one after another."""
    yield from (("n", moments.n.astype(np.float64)), ("mean", moments.mean))
    for order in (2, 3, 4):
        yield f"m{order}", moments.central(order)
    yield from ((name, getattr(moments, name)) for name in ("nonzero", "above", "below"))


def statistics_of(
    cells: sparse.csr_matrix | CellMatrix,
    cell_condition: np.ndarray,
    n_conditions: int,
    control_id: int,
    workers: int = 1,
) -> ConditionStatistics:
    """Moments of each condition of some cells, in one pass."""
    moments = condition_moments(cells, cell_condition, n_conditions, control_id=control_id, workers=workers)
    return ConditionStatistics(**dict(_tables_of(moments)), control_id=control_id)


def _write_h5ad(path: Path, checked: CheckedScreen) -> None:
    import h5py
    from anndata import AnnData

    matrix = checked.matrix
    AnnData(obs=checked.obs, var=checked.var).write_h5ad(path)
    if matrix.nnz <= np.iinfo(np.int32).max:
        # One type for both index arrays: scipy cannot take rows in reverse from mixed ones.
        parts = (matrix.data, matrix.indices, matrix.indptr.astype(np.int32))
        matrix = sparse.csr_matrix(parts, shape=matrix.shape, copy=False)
    with h5py.File(path, "r+") as file:
        if "X" in file:
            del file["X"]
        group = file.create_group("X")
        group.attrs.update(
            {"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": matrix.shape}
        )
        for name in ("data", "indices", "indptr"):
            array, start = getattr(matrix, name), 0
            stored = group.create_dataset(name, shape=array.shape, dtype=array.dtype)
            for piece in pieces(array):
                stored[start : start + len(piece)] = piece
                start += len(piece)


def _flushed_files(folder: Path) -> dict[str, int]:
    """Bring every file to disk; their sizes by relative name."""
    sizes = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with open(path, "rb+") as file:
                os.fsync(file.fileno())
            sizes[path.relative_to(folder).as_posix()] = path.stat().st_size
    return sizes
