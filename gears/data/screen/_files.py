"""The files of a prepared screen: how they are written, and the manifest that lists them."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import sparse

from gears.conditions import Condition
from gears.core._messages import shorten
from gears.data.screen._cells import CellMatrix, map_array
from gears.data.screen._moments import moment_blocks
from gears.data.screen._spelling import Spelling
from gears.data.screen._statistics import (
    MATCHED,
    MEASURED,
    STATISTICS,
    ConditionStatistics,
    fill_unmeasured,
    moment_tables,
    rank_genes,
    statistics_of,
)
from gears.files._mapped import TableWriter, pieces
from gears.files._paths import reading, user_path
from gears.files.formats import (
    FolderFormat,
    checksums_of,
    content_hash,
    plain_adata,
    read_json,
    write_json,
)

if TYPE_CHECKING:
    from gears.data.checks._settings import SettingTable
    from gears.data.checks._survey import ScreenDraft

MOST_TABLE_VALUES = 1 << 23
"""Conditions x genes of a table of statistics that is held in memory; a larger one is made block by block."""
_PACKAGES = ("numpy", "scipy", "pandas", "anndata")

SCREEN = FolderFormat(
    "gears prepared screen",
    2,
    "prepared screen",
    "prepare one with PertData.new_data_process or PertData.load(data_path='<file>.h5ad')",
    "prepare the screen again from its AnnData",
)
TABLES = "screen.json"
H5AD = "perturb_processed.h5ad"
_OLD_FOLDER, _OLD_TABLES = "units", "units.json"
"""Where earlier versions wrote the tables of screens with contexts, beside those without the contexts."""


def screen_hash(draft: ScreenDraft) -> str:
    """Hash of everything that is written: values, labels, annotations, parameters."""
    matrix = draft.matrix
    arrays = matrix.data, matrix.indices, matrix.indptr
    frames: list[Any] = []
    for frame in (draft.obs, draft.var):  # one hash per row, index included; the same for text and its categories
        frames += [list(map(str, frame.columns)), pd.util.hash_pandas_object(frame).to_numpy()]
    options = draft.options.to_dict()
    return content_hash(SCREEN.version, list(matrix.shape), *arrays, draft.labels.labels, *frames, options)


def write_screen(
    folder: Path,
    draft: ScreenDraft,
    key: str,
    *,
    workers: int = 1,
    is_measured: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Fill an empty folder with everything that a prepared screen holds; `key` is its hash.

    `is_measured` says which genes, (G,) bool, each context measures, where these differ.
    """
    table = draft.settings
    assert table is not None
    CellMatrix.write(folder / "cells", [draft.matrix])
    np.save(folder / "cells" / "label.npy", table.cell_label.astype(np.int32))
    cells = draft.matrix
    # several processes share the written cells, and batches are parts of them
    if workers > 1 or len(table.batches) > 1:
        cells = CellMatrix(folder / "cells", draft.matrix.shape[1])
    statistics = _written_statistics(folder, cells, table, workers, is_measured)
    _write_h5ad(folder / H5AD, draft)
    finish_folder(folder, statistics, screen_tables(draft), screen_manifest(draft, key))


def screen_tables(draft: ScreenDraft) -> dict[str, Any]:
    """Names, labels and conditions as plain values, for :data:`TABLES`."""
    table = draft.settings
    assert table is not None
    published_name = dict(zip(draft.labels.labels, draft.condition_names, strict=True))
    return {
        "gene_names": draft.var["gene_name"].astype(str).tolist(),
        "gene_ids": draft.var.index.tolist(),
        "labels": table.labels,
        "label_condition": table.label_condition,
        "conditions": [[list(one.genes), one.context, one.kind] for one in table.conditions],
        "condition_names": [
            published_name[label.removesuffix(table.conditions[number].suffix)]
            for label, number in zip(table.labels, table.label_condition, strict=True)
        ],
        "batches": table.batches,
    }


def screen_manifest(draft: ScreenDraft, key: str) -> dict[str, Any]:
    """What a manifest says about a screen beside its files; `key` is its hash."""
    table, parameters = draft.settings, draft.options.to_dict()
    assert table is not None
    return {
        "content_hash": key,
        "parameters": parameters,
        "layout": draft.layout.to_dict(),
        "spelling": Spelling.of(draft.layout.controls, draft.layout.sep, draft.guides | draft.mapping).to_dict(),
        "dropped": list(map(dataclasses.asdict, draft.dropped)),
        "differential_expression": not parameters["skip_calc_de"],
        "has_negative": draft.has_negative,
        "scale": draft.scale,
        "cell_types": sorted(map(str, draft.obs["cell_type"].cat.categories)),
        "shape": {
            "cells": len(draft.cells),
            "genes": len(draft.var),
            "conditions": len(table.conditions),
            "labels": len(table.labels),
        },
        "versions": {"python": platform.python_version()}
        | dict(zip(_PACKAGES, map(importlib.metadata.version, _PACKAGES), strict=True)),
    }


def finish_folder(
    folder: Path, statistics: ConditionStatistics, tables: dict[str, Any], manifest: dict[str, Any]
) -> None:
    """Write the ranking of genes, the tables of names and, last, the manifest with every file of the folder."""
    if manifest["differential_expression"]:
        ranking = rank_genes(statistics, tables["gene_names"])
        (folder / "de").mkdir()
        np.save(folder / "de" / "order.npy", ranking.order)
        np.save(folder / "de" / "scores.npy", ranking.scores)
    write_json(folder / TABLES, tables)
    files = {}
    for path in sorted(filter(Path.is_file, folder.rglob("*"))):
        with open(path, "rb+") as file:  # on disk before the manifest says that it is there
            os.fsync(file.fileno())
        files[path.relative_to(folder).as_posix()] = path.stat().st_size
    SCREEN.write(folder, {**manifest, "files": files, "checksums": checksums_of(folder, files)})


def save_statistics(folder: Path, statistics: ConditionStatistics, control_mean_BG: np.ndarray | None) -> None:
    """Write tables of statistics, and the control means of several experimental batches."""
    folder.mkdir(exist_ok=True)
    if control_mean_BG is not None:
        np.save(folder / "control_mean.npy", control_mean_BG)
    for name in (*STATISTICS, *MATCHED):
        if (values := getattr(statistics, name)) is not None:
            np.save(folder / f"{name}.npy", values)


def _written_statistics(
    folder: Path,
    cells: sparse.csr_matrix | CellMatrix,
    table: SettingTable,
    workers: int,
    is_measured: Mapping[str, np.ndarray] | None,
) -> ConditionStatistics:
    """Write the moments of all conditions, block by block where there is one batch; the tables as mapped files."""
    target, control_of = folder / "statistics", controls_of(table.conditions)
    target.mkdir()
    if len(table.batches) > 1:
        ids = table.cell_condition
        statistics, control_mean_BG = statistics_of(cells, ids, control_of, table.cell_batch, workers=workers)
        if is_measured is not None:
            save_measured(folder, statistics, is_measured, table.conditions)
        np.save(folder / "cells" / "batch.npy", table.cell_batch.astype(np.int32))
        save_statistics(target, statistics, control_mean_BG)
        return statistics
    with contextlib.ExitStack() as stack:
        writers = {}
        for name in STATISTICS:
            row_shape = () if name == "n" else (cells.shape[1],)
            writer = TableWriter(target / f"{name}.npy", np.float64, row_shape)
            writers[name] = stack.enter_context(writer)
        options = {"control_id": int(control_of[0]), "most_values": MOST_TABLE_VALUES, "workers": workers}
        for moments in moment_blocks(cells, table.cell_condition, len(control_of), **options):
            for name, rows in moment_tables(moments):
                writers[name].add(rows)
            del moments, rows  # before the next block is made
    tables = {name: map_array(target / f"{name}.npy") for name in STATISTICS}
    return ConditionStatistics(**tables, control_of=control_of)


def save_measured(
    folder: Path,
    statistics: ConditionStatistics,
    is_measured: Mapping[str, np.ndarray],
    conditions: Sequence[Condition],
) -> None:
    """Write which genes, (G,) bool, each context measures, and fill the statistics of others in place."""
    contexts = sorted(is_measured)
    is_measured_KG = np.array([is_measured[name] for name in contexts])
    fill_unmeasured(statistics, is_measured_KG, np.array([contexts.index(one.context) for one in conditions]))
    file = folder / f"{MEASURED}.npy"
    file.parent.mkdir(exist_ok=True)
    np.save(file, is_measured_KG)


def controls_of(conditions: Sequence[Condition]) -> np.ndarray:
    """Number of each condition's control, that of its context, (C,) int64; KeyError where it has none."""
    control = {one.context: number for number, one in enumerate(conditions) if one.is_control}
    return np.array([control[one.context] for one in conditions], dtype=np.int64)


def _write_h5ad(path: Path, draft: ScreenDraft) -> None:
    import h5py

    matrix = draft.matrix
    plain_adata(draft.obs, draft.var).write_h5ad(path)
    if matrix.nnz <= np.iinfo(np.int32).max:
        # One type for both index arrays: scipy cannot take rows in reverse from mixed ones.
        parts = (matrix.data, matrix.indices, matrix.indptr.astype(np.int32))
        matrix = sparse.csr_matrix(parts, shape=matrix.shape, copy=False)
    with h5py.File(path, "r+") as file:
        if "X" in file:
            del file["X"]
        group = file.create_group("X")
        encoding = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0"}
        group.attrs.update(encoding | {"shape": matrix.shape})
        for name in ("data", "indices", "indptr"):
            array, start = getattr(matrix, name), 0
            stored = group.create_dataset(name, shape=array.shape, dtype=array.dtype)
            for piece in pieces(array):
                stored[start : start + len(piece)] = piece
                start += len(piece)


def is_prepared(folder: str | Path) -> bool:
    """Whether a folder says that it is a prepared screen (any format version)."""
    return SCREEN.marks(folder)


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """The manifest of a prepared folder, its version and files checked; FileNotFoundError or ValueError."""
    folder = user_path(folder)
    expected = {"content_hash": str, "differential_expression": bool}
    manifest = SCREEN.read(folder, expected | dict.fromkeys(("parameters", "files", "shape"), dict))
    wrong = []
    for name, size in manifest["files"].items():
        path = folder / name
        length = path.stat().st_size if path.is_file() else None
        if length != size:
            wrong.append(f"{name} ({'missing' if length is None else f'{length} bytes instead of {size}'})")
    if wrong:
        msg = f"the prepared screen {folder} is damaged: {shorten(wrong)}; prepare it again"
        raise ValueError(msg)
    return manifest


def array_path(manifest: dict[str, Any], name: str) -> str:
    """The file of an array such as "statistics/mean", relative to the folder."""
    if _OLD_TABLES in manifest["files"]:
        name = f"{_OLD_FOLDER}/{name.split('/')[1].replace('batch', 'stratum')}"
    return f"{name}.npy"


def read_tables(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """Names, labels and conditions (as objects) of a prepared screen, whose checksum was compared."""
    path = folder / TABLES
    with reading(path, "tables of a prepared screen", "it may be damaged: prepare the screen again"):
        tables = read_json(path)
        if _OLD_TABLES in manifest["files"]:
            tables = _with_old_tables(folder / _OLD_TABLES, tables)
        tables["conditions"] = tuple(map(_condition, tables["conditions"]))
        tables["label_condition"] = np.asarray(tables["label_condition"], dtype=np.int64)
    return tables


def _condition(entry: list[Any]) -> Condition:
    """A condition from its genes (screens of earlier versions without contexts), or from genes, context and type."""
    genes, context, kind = entry if entry and isinstance(entry[0], list) else (entry, "", "")
    return Condition(tuple(genes), context, kind)


def _with_old_tables(path: Path, plain: dict[str, Any]) -> dict[str, Any]:
    """Tables of a screen with contexts as earlier versions wrote them, in the form of today."""
    old = read_json(path)
    published_name = dict(zip(plain["labels"], plain["condition_names"], strict=True))
    conditions = [_condition(entry) for entry in old["units"]]
    names = [
        published_name[label.removesuffix(conditions[number].suffix)]
        for label, number in zip(old["labels"], old["label_condition"], strict=True)
    ]
    return plain | {
        "labels": old["labels"],
        "label_condition": old["label_condition"],
        "conditions": old["units"],
        "condition_names": names,
        "batches": old["strata"] or [""],
    }
