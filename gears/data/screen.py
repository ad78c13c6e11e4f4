"""A prepared screen: everything that later steps need of the data, opened from its folder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gears.conditions import Condition
from gears.data.cells import CellMatrix, map_array
from gears.data.manifest import (
    FORMAT_VERSION,
    KIND,
    MANIFEST,
    STATISTICS,
    TABLES,
    is_prepared,
    read_manifest,
    read_tables,
)
from gears.data.statistics import ConditionStatistics, DERanking
from gears.files import content_hash, read_json, user_path
from gears.integrity import check_file
from gears.messages import nearest, shorten

__all__ = [
    "FORMAT_VERSION",
    "KIND",
    "CellMatrix",
    "ConditionStatistics",
    "DERanking",
    "PreparedScreen",
    "is_prepared",
]


class PreparedScreen:
    """A screen as :func:`gears.data.processing.prepare_screen` wrote it.

    Opening reads two small JSON files; arrays are mapped into memory when they
    are first used. An object sent to another process opens the folder again.

    Parameters
    ----------
    folder
        The prepared folder.
    manifest
        Its manifest, already checked (use :meth:`open`).
    kept
        Condition ids (of the folder) that this object shows; all by default.

    Attributes
    ----------
    folder : Path
    manifest : dict
        Format version, content hash, parameters, versions, shape.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any], kept: np.ndarray | None = None) -> None:
        self.folder = user_path(folder)
        self.manifest = manifest
        self._kept = kept

    @classmethod
    def open(cls, folder: str | Path) -> PreparedScreen:
        """Open a prepared folder.

        Raises
        ------
        FileNotFoundError
            If there is no prepared screen.
        ValueError
            If it has another format version, or files are missing or cut short.
        """
        manifest = read_manifest(folder)
        if cls is PreparedScreen and manifest.get("units"):
            from gears.data.unit_screen import UnitScreen

            return UnitScreen(user_path(folder), manifest)
        return cls(user_path(folder), manifest)

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "manifest": self.manifest, "_kept": self._kept}

    def __repr__(self) -> str:
        n_cells, n_genes = self.cells.shape
        size = f"{n_cells} cells, {n_genes} genes, {len(self.conditions)} conditions"
        return f"{type(self).__name__}({self.folder.name!r}: {size})"

    # Names and labels

    @cached_property
    def content_hash(self) -> str:
        """Hash of values, labels, genes and parameters (and of what is left out)."""
        whole = self.manifest["content_hash"]
        return whole if self._kept is None else content_hash(whole, self._kept.tolist())

    def check_unchanged(self) -> None:
        """Refuse to read from a folder that was replaced since this object was opened.

        Raises
        ------
        ValueError
            If it holds other content now.
        """
        found = read_json(self.folder / MANIFEST).get("content_hash")
        if found != self.manifest["content_hash"]:
            msg = f"{self.folder} was prepared again with other content since it was opened; load it again"
            raise ValueError(msg)

    def checked_file(self, name: str, *, whole: bool = False) -> Path:
        """A file of the folder, after a look whether it is still what was written."""
        self.check_unchanged()
        check_file(self.folder, name, self.manifest.get("checksums", {}), whole=whole)
        return self.folder / name

    def verify(self) -> None:
        """Compare every file with its checksum, also those too large to be compared whenever they are used.

        Raises
        ------
        FileNotFoundError, ValueError
            A file is missing or damaged.
        """
        for name in self.manifest["files"]:
            self.checked_file(name, whole=True)

    @cached_property
    def _tables(self) -> dict[str, Any]:
        return read_tables(self.checked_file(TABLES))

    @cached_property
    def gene_names(self) -> list[str]:
        """Measured genes (``var.gene_name``), G."""
        return self._tables["gene_names"]

    @cached_property
    def gene_ids(self) -> list[str]:
        """The index of ``var``, G."""
        return self._tables["gene_ids"]

    @cached_property
    def _all_label_condition(self) -> np.ndarray:
        return np.asarray(self._tables["label_condition"], dtype=np.int64)

    @cached_property
    def _label_ids(self) -> np.ndarray:
        """Labels of the folder that this object shows."""
        if self._kept is None:
            return np.arange(len(self._all_label_condition))
        return np.flatnonzero(np.isin(self._all_label_condition, self._kept))

    @cached_property
    def labels(self) -> list[str]:
        """The screen's own spellings in order of first appearance, L."""
        labels = self._tables["labels"]
        return [labels[i] for i in self._label_ids]

    @cached_property
    def condition_names(self) -> list[str]:
        """Published ``condition_name`` of each label, L."""
        names = self._tables["condition_names"]
        return [names[i] for i in self._label_ids]

    @cached_property
    def label_condition(self) -> np.ndarray:
        """Condition id of each label, (L,) int64."""
        return self._renumber(self._all_label_condition[self._label_ids], self._kept)

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        """Distinct conditions in order of first appearance, the control among them, C."""
        conditions = [Condition(tuple(genes)) for genes in self._tables["conditions"]]
        return tuple(conditions if self._kept is None else [conditions[i] for i in self._kept])

    @cached_property
    def _id_by_condition(self) -> dict[Condition, int]:
        return {condition: i for i, condition in enumerate(self.conditions)}

    @cached_property
    def control_id(self) -> int:
        """Condition id of the control."""
        return self._id_by_condition[Condition()]

    @property
    def perturbed_genes(self) -> list[str]:
        """Every gene perturbed in the screen, sorted."""
        return sorted({gene for condition in self.conditions for gene in condition.genes})

    def id_of(self, condition: Condition | str) -> int:
        """Condition id of a condition or of any spelling of it.

        Raises
        ------
        KeyError
            If the screen lacks it; near matches are named.
        """
        found = self._id_by_condition.get(Condition.of(condition))
        if found is None:
            names = [known.name for known in self.conditions]
            matches = nearest(Condition.of(condition).name, names)
            hint = (
                f"did you mean {' or '.join(map(repr, matches))}?" if matches else f"it has {shorten(names)}"
            )
            msg = f"the screen has no condition {str(condition)!r}; {hint}"
            raise KeyError(msg)
        return found

    # Cells

    @cached_property
    def cell_ids(self) -> np.ndarray | None:
        """Cells of the folder that this object shows; None for all."""
        if self._kept is None:
            return None
        return np.flatnonzero(np.isin(self._all_label_condition[self._cell_array("label")], self._kept))

    def _cell_array(self, name: str) -> np.ndarray:
        return map_array(self.checked_file(f"cells/{name}.npy"))

    @cached_property
    def cells(self) -> CellMatrix:
        """Expression of the cells, (N, G)."""
        for name in ("data", "indices", "indptr"):
            self.checked_file(f"cells/{name}.npy")
        cells = CellMatrix(self.folder / "cells", self.manifest["shape"]["genes"], self.cell_ids)
        cells.open()
        return cells

    @cached_property
    def cell_label(self) -> np.ndarray:
        """Label of each cell, (N,) int32."""
        labels = self._cell_array("label")
        if self.cell_ids is None:
            return labels
        return self._renumber(labels[self.cell_ids], self._label_ids).astype(np.int32)

    @cached_property
    def cell_condition(self) -> np.ndarray:
        """Condition of each cell, (N,) int32."""
        return self.label_condition[self.cell_label].astype(np.int32)

    @cached_property
    def _cells_by_condition(self) -> tuple[np.ndarray, np.ndarray]:
        order = np.argsort(self.cell_condition, kind="stable")
        ends = np.cumsum(np.bincount(self.cell_condition, minlength=len(self.conditions)))
        return order, np.concatenate(([0], ends))

    def cells_of(self, condition_id: int) -> np.ndarray:
        """Cells of a condition in the order of the screen, (n,) int64."""
        order, bounds = self._cells_by_condition
        return order[bounds[condition_id] : bounds[condition_id + 1]]

    @property
    def control_cells(self) -> np.ndarray:
        """Cells of the control, int64."""
        return self.cells_of(self.control_id)

    @cached_property
    def control_ids(self) -> np.ndarray:
        """Ids of the controls: one, or one per context."""
        return np.flatnonzero([condition.is_control for condition in self.conditions])

    def paired_controls(self, draw: np.random.Generator) -> np.ndarray:
        """A drawn control cell for each cell, (N,) int64."""
        control_cells = self.control_cells
        return control_cells[draw.integers(0, len(control_cells), size=len(self.cells))]

    # Statistics

    @cached_property
    def statistics(self) -> ConditionStatistics:
        """Moments of each condition."""
        tables = {name: map_array(self.checked_file(f"statistics/{name}.npy")) for name in STATISTICS}
        whole = ConditionStatistics(**tables, control_id=self._tables["conditions"].index([]))
        return whole if self._kept is None else whole.subset(self._kept, self.control_id)

    @cached_property
    def de(self) -> DERanking | None:
        """Ranking of the genes by differential expression; None where it was skipped."""
        if not self.manifest["differential_expression"]:
            return None
        order, scores = (map_array(self.checked_file(f"de/{name}.npy")) for name in ("order", "scores"))
        ranking = DERanking(order, scores, self.manifest["shape"]["genes"])
        return ranking if self._kept is None else ranking.subset(self._kept)

    def without(self, conditions: Sequence[Condition]) -> PreparedScreen:
        """The screen without some conditions and their cells; the folder stays as it is.

        Raises
        ------
        ValueError
            If the control, or every perturbed condition, would go.
        """
        dropped = {self.id_of(condition) for condition in conditions}
        if not dropped:
            return self
        kept = np.asarray([i for i in range(len(self.conditions)) if i not in dropped], dtype=np.int64)
        if dropped & set(self.control_ids.tolist()) or len(kept) <= len(self.control_ids):
            msg = (
                f"leaving out {len(dropped)} of {len(self.conditions)} conditions would leave a screen "
                "without control or without perturbed conditions"
            )
            raise ValueError(msg)
        return type(self)(self.folder, self.manifest, kept if self._kept is None else self._kept[kept])

    @staticmethod
    def _renumber(ids: np.ndarray, kept: np.ndarray | None) -> np.ndarray:
        return ids if kept is None else np.searchsorted(kept, ids)
