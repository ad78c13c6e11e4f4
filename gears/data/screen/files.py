"""The files of a prepared screen: how they are written, and the manifest that lists them."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from gears.conditions import Condition
from gears.core.messages import shorten
from gears.data.checks.labels import LabelTable
from gears.data.checks.settings import UnitTable
from gears.data.checks.survey import ScreenDraft
from gears.data.screen.cells import CellMatrix, map_array
from gears.data.screen.moments import ConditionMoments, condition_moments, moment_blocks
from gears.data.screen.statistics import (
    MATCHED_TABLES,
    N_RANKED,
    ConditionStatistics,
    UnitStatistics,
    rank_genes,
    unit_statistics,
)
from gears.files.formats import (
    checksums_of,
    content_hash,
    need_names,
    need_types,
    read_json,
    write_json,
)
from gears.files.manifest import FolderFormat
from gears.files.mapped import TableWriter, pieces
from gears.files.paths import user_path

MOST_TABLE_VALUES = 1 << 23
"""Conditions x genes of a table of statistics that is held in memory; a larger one is made block by block."""
_PACKAGES = ("numpy", "scipy", "pandas", "anndata")

FOLDER = "units"
NAMES = "units.json"

SCREEN = FolderFormat(
    "gears prepared screen",
    2,
    "prepared screen",
    "prepare one with PertData.new_data_process or PertData.load(data_path='<file>.h5ad')",
    "prepare the screen again from its AnnData",
)
TABLES = "screen.json"
H5AD = "perturb_processed.h5ad"
STATISTICS = ("n", "mean", "m2", "m3", "m4", "nonzero", "above", "below")
"""Statistics by name, each a file of its own (an npz cannot be mapped into memory)."""


def screen_hash(draft: ScreenDraft) -> str:
    """Hash of everything that is written: values, labels, annotations, parameters."""
    matrix = draft.matrix
    return content_hash(
        SCREEN.version,
        list(matrix.shape),
        matrix.data,
        matrix.indices,
        matrix.indptr,
        draft.labels.labels,
        *_frame_values(draft.obs),
        *_frame_values(draft.var),
        draft.options.to_dict(),
    )


def _frame_values(frame: pd.DataFrame) -> tuple[list[str], np.ndarray]:
    """Column names and one hash per row, index included; the same for text and its categories."""
    return [str(column) for column in frame.columns], pd.util.hash_pandas_object(frame).to_numpy()


def write_screen(folder: Path, draft: ScreenDraft, key: str, *, workers: int = 1) -> None:
    """Fill an empty folder with everything that a prepared screen holds; `key` is its hash."""
    table, parameters = draft.labels, draft.options.to_dict()
    gene_names = draft.var["gene_name"].astype(str).tolist()
    CellMatrix.write(folder / "cells", draft.matrix)
    np.save(folder / "cells" / "label.npy", table.cell_label)
    # several processes share the written cells; one has them at hand already
    cells = CellMatrix(folder / "cells", draft.matrix.shape[1]) if workers > 1 else draft.matrix
    statistics = _written_statistics(folder / "statistics", cells, table, workers)
    if not parameters["skip_calc_de"]:
        ranking = rank_genes(statistics, gene_names)
        (folder / "de").mkdir()
        np.save(folder / "de" / "order.npy", ranking.order)
        np.save(folder / "de" / "scores.npy", ranking.scores)
    if draft.units is not None:
        write_units(folder, draft.units, parameters, gene_names, workers=workers)
    _write_h5ad(folder / H5AD, draft)
    write_json(
        folder / TABLES,
        {
            "gene_names": gene_names,
            "gene_ids": draft.var.index.tolist(),
            "labels": table.labels,
            "label_condition": table.label_condition,
            "conditions": [list(condition.genes) for condition in table.conditions],
            "condition_names": draft.condition_names,
        },
    )
    files = _flushed_files(folder)
    SCREEN.write(
        folder,
        {
            "content_hash": key,
            "parameters": parameters,
            "layout": draft.layout.to_dict(),
            "dropped": [dropped.to_dict() for dropped in draft.dropped],
            "differential_expression": not parameters["skip_calc_de"],
            "has_negative": draft.has_negative,
            "units": draft.units is not None,
            "cell_types": sorted(map(str, draft.obs["cell_type"].cat.categories)),
            "shape": {
                "cells": draft.matrix.shape[0],
                "genes": draft.matrix.shape[1],
                "conditions": len(table.conditions),
                "labels": len(table.labels),
            },
            "versions": {"python": platform.python_version()}
            | {name: importlib.metadata.version(name) for name in _PACKAGES},
            "files": files,
            "checksums": checksums_of(folder, files),
        },
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


def _write_h5ad(path: Path, draft: ScreenDraft) -> None:
    import h5py
    from anndata import AnnData

    matrix = draft.matrix
    AnnData(obs=draft.obs, var=draft.var).write_h5ad(path)
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
    arrays = {name: getattr(statistics, name) for name in MATCHED_TABLES}
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


def is_prepared(folder: str | Path) -> bool:
    """Whether a folder says that it is a prepared screen (any format version)."""
    return SCREEN.marks(folder)


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """The manifest of a prepared folder, after checking format version and files.

    Raises
    ------
    FileNotFoundError
        If there is no prepared screen.
    ValueError
        If it has another format version, or files are missing or cut short.
    """
    folder = user_path(folder)
    expected = {
        "content_hash": str,
        "parameters": dict,
        "files": dict,
        "shape": dict,
        "differential_expression": bool,
    }
    manifest = SCREEN.read(folder, expected)
    _check_files(folder, manifest["files"])
    return manifest


def _check_files(folder: Path, files: dict[str, int]) -> None:
    """Every file is there and as long as when it was written."""
    wrong = []
    for name, size in files.items():
        path = folder / name
        found = path.stat().st_size if path.is_file() else None
        if found != size:
            wrong.append(f"{name} ({'missing' if found is None else f'{found} bytes instead of {size}'})")
    if wrong:
        msg = f"the prepared screen {folder} is damaged: {shorten(wrong)}; prepare it again"
        raise ValueError(msg)


def read_tables(path: Path) -> dict[str, Any]:
    """Names, labels and conditions of a prepared screen.

    Raises
    ------
    ValueError
        They do not fit together.
    """
    plain = read_json(path)
    names = ("gene_names", "gene_ids", "labels", "condition_names")
    need_types(path, plain, dict.fromkeys((*names, "label_condition", "conditions"), list))
    need_names(path, plain, *names)
    ids, conditions = plain["label_condition"], plain["conditions"]
    genes_of = [genes for genes in conditions if isinstance(genes, list)]
    whole = (
        len(plain["gene_names"]) == len(plain["gene_ids"])
        and len(plain["labels"]) == len(plain["condition_names"]) == len(ids)
        and all(type(number) is int and 0 <= number < len(conditions) for number in ids)
        and len(genes_of) == len(conditions)
        and all(isinstance(gene, str) for genes in genes_of for gene in genes)
        and [] in conditions
    )
    if not whole:
        msg = f"the tables in {path} do not fit together; the screen is damaged: prepare it again"
        raise ValueError(msg)
    return plain
