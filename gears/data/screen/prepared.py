"""A prepared screen, opened from its folder: one setting or several, with all or some of its control cells."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gears.conditions import Condition
from gears.core.messages import nearest, shorten, unknown_name
from gears.data.screen.cells import CellMatrix, map_array
from gears.data.screen.contexts import ModelContexts
from gears.data.screen.files import (
    FOLDER,
    NAMES,
    STATISTICS,
    TABLES,
    rank_units,
    read_manifest,
    read_tables,
    statistics_of,
)
from gears.data.screen.statistics import (
    MATCHED_TABLES,
    ConditionStatistics,
    DERanking,
    UnitStatistics,
    rank_genes,
    unit_statistics,
)
from gears.files.formats import check_file, content_hash, read_json
from gears.files.manifest import MANIFEST
from gears.files.paths import user_path


class PreparedScreen:
    """A screen as :func:`gears.data.screen.prepare.prepare_screen` wrote it.

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
        """Hash of values, labels, genes and parameters (and of what is excluded)."""
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
    def condition_of_label(self) -> dict[str, Condition]:
        """Condition of each label, as stored: no label is parsed again."""
        ids = self.label_condition.tolist()
        return {label: self.conditions[i] for label, i in zip(self.labels, ids, strict=True)}

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


class UnitScreen(PreparedScreen):
    """A screen with contexts, perturbation types or matched controls.

    What :class:`PreparedScreen` says of conditions holds of units here: ``conditions`` are genes
    with a context and a type, every context has its own control, ``labels`` are the
    screen's own spellings with both behind them ("A+ctrl [CRISPRi] @ K562").

    Attributes
    ----------
    pooled : PreparedScreen
        The same folder without the division.
    """

    @cached_property
    def pooled(self) -> PreparedScreen:
        """The screen as if all cells were of one context."""
        screen = PreparedScreen(self.folder, self.manifest)
        if self._kept is None:
            return screen
        shown = {condition.plain for condition in self.conditions}
        return screen.without([condition for condition in screen.conditions if condition not in shown])

    @cached_property
    def _units(self) -> dict[str, Any]:
        self.check_unchanged()
        return read_json(self.folder / NAMES)

    @cached_property
    def _tables(self) -> dict[str, Any]:
        plain = PreparedScreen(self.folder, self.manifest)._tables
        names = self._units["labels"]
        return plain | {
            "labels": names,
            "label_condition": self._units["label_condition"],
            "condition_names": names,
        }

    @cached_property
    def contexts(self) -> tuple[str, ...]:
        """Names of the contexts, sorted; empty where the screen is not divided by them."""
        return tuple(self._units["contexts"])

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Names of the perturbation types, sorted; empty where the screen does not say."""
        return tuple(self._units["kinds"])

    @cached_property
    def strata(self) -> tuple[str, ...]:
        """Names of the strata whose cells are compared with control cells of their own."""
        return tuple(map(str, self._units["strata"]))

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        """The units in order of first appearance, every context's control among them."""
        units = [Condition(tuple(genes), context, kind) for genes, context, kind in self._units["units"]]
        return tuple(units if self._kept is None else [units[i] for i in self._kept])

    @property
    def control_id(self) -> int:  # type: ignore[override]
        """The one control, where there is one.

        Raises
        ------
        ValueError
            If every context has its own.
        """
        if len(self.control_ids) > 1:
            msg = (
                f"this screen has a control in each of {len(self.control_ids)} contexts; "
                "use control_ids, or setting(context) for a single one"
            )
            raise ValueError(msg)
        return int(self.control_ids[0])

    def _cell_array(self, name: str) -> np.ndarray:
        self.check_unchanged()
        return map_array(self.folder / FOLDER / f"{name}.npy")

    @cached_property
    def cell_stratum(self) -> np.ndarray:
        """Stratum of each cell, (N,) int32."""
        strata = self._cell_array("stratum")
        return strata if self.cell_ids is None else strata[self.cell_ids]

    @property
    def control_cells(self) -> np.ndarray:
        """Control cells of all contexts, int64."""
        return np.flatnonzero(np.isin(self.cell_condition, self.control_ids))

    @cached_property
    def control_mean_SG(self) -> np.ndarray:
        """Mean of each stratum's control cells, (S, G)."""
        return np.asarray(self._cell_array("control_mean"))

    def paired_controls(self, draw: np.random.Generator) -> np.ndarray:
        """A control cell of the same stratum for each cell, (N,) int64."""
        control_cells = self.control_cells
        of_control = self.cell_stratum[control_cells]
        by_stratum = control_cells[np.argsort(of_control, kind="stable")]
        n_S = np.bincount(of_control, minlength=len(self.control_mean_SG))
        first_S = np.concatenate(([0], np.cumsum(n_S)[:-1]))
        share_N = draw.random(len(self.cell_stratum))
        return by_stratum[first_S[self.cell_stratum] + (share_N * n_S[self.cell_stratum]).astype(np.int64)]

    @cached_property
    def statistics(self) -> UnitStatistics:  # type: ignore[override]
        """Moments of each unit against its own control."""
        tables = {name: self._cell_array(name) for name in MATCHED_TABLES}
        whole = UnitStatistics(**tables, control_of=np.asarray(self._units["control_of"], dtype=np.int64))
        return whole if self._kept is None else whole.subset(self._kept)

    @cached_property
    def de(self) -> DERanking | None:
        """Ranking of the genes of each unit against its own control."""
        if not self.manifest["differential_expression"]:
            return None
        ranking = DERanking(
            self._cell_array("order"), self._cell_array("scores"), self.manifest["shape"]["genes"]
        )
        return ranking if self._kept is None else ranking.subset(self._kept)

    @cached_property
    def settings(self) -> tuple[SettingView, ...]:
        """Every context and type of perturbation in it, as a screen of its own, that holds a perturbed unit."""
        pairs = dict.fromkeys((unit.context, unit.kind) for unit in self.conditions if not unit.is_control)
        return tuple(SettingView(self, context, kind) for context, kind in sorted(pairs))

    def setting(self, context: str = "", kind: str = "") -> SettingView:
        """One context (and type), as a plain screen.

        Raises
        ------
        ValueError
            There is none of that name.
        """
        for view in self.settings:
            if (view.context, view.kind) == (context, kind):
                return view
        known = [view.name for view in self.settings]
        raise ValueError(unknown_name("context", Condition((), context, kind).suffix.strip(), known))


class SettingView(PreparedScreen):
    """One context of a screen, and one type of perturbation in it: plain conditions with one control.

    Cells are shown as they are; statistics are those of the units (matched by stratum).
    """

    def __init__(self, parent: UnitScreen, context: str, kind: str) -> None:
        self.parent, self.context, self.kind = parent, context, kind
        pooled = PreparedScreen(parent.folder, parent.manifest)
        own = {
            unit.plain: place
            for place, unit in enumerate(parent.conditions)
            if unit.context == context and (unit.is_control or unit.kind == kind)
        }
        kept = [place for place, condition in enumerate(pooled.conditions) if condition in own]
        super().__init__(parent.folder, parent.manifest, np.asarray(kept, dtype=np.int64))
        self.unit_ids = np.array([own[pooled.conditions[place]] for place in kept], dtype=np.int64)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {
            name: getattr(self, name) for name in ("parent", "context", "kind", "unit_ids")
        }

    @property
    def name(self) -> str:
        """Type and context as labels spell them."""
        return Condition(("A",), self.context, self.kind).suffix.strip()

    @cached_property
    def content_hash(self) -> str:
        """Hash of what is shown."""
        return content_hash(self.parent.content_hash, self.context, self.kind)

    @cached_property
    def cell_ids(self) -> np.ndarray | None:
        """Cells of the folder that this object shows."""
        parent = self.parent
        shown = np.flatnonzero(np.isin(parent.cell_condition, self.unit_ids))
        return shown if parent.cell_ids is None else parent.cell_ids[shown]

    @cached_property
    def statistics(self) -> ConditionStatistics:
        """Moments of each condition of this context."""
        return self.parent.statistics.of_setting(self.unit_ids, self.control_id)

    @cached_property
    def de(self) -> DERanking | None:
        """Ranking of the genes against this context's control."""
        ranking = self.parent.de
        return None if ranking is None else ranking.subset(self.unit_ids)

    def without(self, conditions: Sequence[Condition]) -> PreparedScreen:
        """Not offered: leave conditions out of the whole screen."""
        msg = f"leave {shorten(conditions)} out of the whole screen, not of one context"
        raise NotImplementedError(msg)


class _ChosenControls(PreparedScreen):
    """What both views share: the control cells shown, and a hash that tells them from the whole screen."""

    _hashed_as: tuple[str, ...] = ()

    def __init__(
        self, folder: Path, manifest: dict[str, Any], kept: np.ndarray | None, controls: np.ndarray
    ) -> None:
        super().__init__(folder, manifest, kept)
        self._controls = controls

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_controls": self._controls}

    @cached_property
    def content_hash(self) -> str:
        """Hash of what is shown."""
        kept = None if self._kept is None else self._kept.tolist()
        return content_hash(self.manifest["content_hash"], *self._hashed_as, kept, self._controls)


class ControlView(_ChosenControls):
    """A prepared screen that shows some control cells and every perturbed cell.

    Statistics and differential genes are those of the cells shown, computed when
    they are first used; the folder stays as it is.

    Parameters
    ----------
    folder, manifest, kept
        As for :class:`PreparedScreen`.
    controls
        Control cells that are shown, by their number in the folder, ascending.
    """

    @cached_property
    def cell_ids(self) -> np.ndarray | None:
        """Cells of the folder that this object shows."""
        conditions = self._all_label_condition[self._cell_array("label")]
        shown = conditions != self._tables["conditions"].index([])
        if self._kept is not None:
            shown &= np.isin(conditions, self._kept)
        shown[self._controls] = True
        return np.flatnonzero(shown)

    @cached_property
    def statistics(self) -> ConditionStatistics:
        """Moments of each condition, over the cells shown."""
        return statistics_of(self.cells, self.cell_condition, len(self.conditions), self.control_id)

    @cached_property
    def de(self) -> DERanking | None:
        """Ranking of the genes against the control cells shown; None where it was skipped."""
        if not self.manifest["differential_expression"]:
            return None
        return rank_genes(self.statistics, self.gene_names)


class UnitControlView(_ChosenControls, UnitScreen):
    """The same of a screen with contexts: statistics of units against the control cells shown of their strata.

    Parameters
    ----------
    folder, manifest, kept, controls
        As for :class:`ControlView`; every stratum has some of the control cells.
    """

    _hashed_as = ("units",)

    @cached_property
    def cell_ids(self) -> np.ndarray | None:
        """Cells of the folder that this object shows."""
        units = self._all_label_condition[self._cell_array("label")]
        is_control = np.array([not genes for genes, *_ in self._units["units"]])
        shown = ~is_control[units]
        if self._kept is not None:
            shown &= np.isin(units, self._kept)
        shown[self._controls] = True
        return np.flatnonzero(shown)

    @cached_property
    def _computed(self) -> tuple[UnitStatistics, np.ndarray]:
        control_of = np.asarray(self._units["control_of"], dtype=np.int64)
        if self._kept is not None:
            control_of = np.searchsorted(self._kept, control_of[self._kept])
        return unit_statistics(self.cells, self.cell_condition, self.cell_stratum, control_of)

    @cached_property
    def statistics(self) -> UnitStatistics:  # type: ignore[override]
        """Moments of each unit against its own control, over the cells shown."""
        return self._computed[0]

    @cached_property
    def control_mean_SG(self) -> np.ndarray:
        """Mean of each stratum's control cells that are shown, (S, G)."""
        return self._computed[1]

    @cached_property
    def de(self) -> DERanking | None:
        """Ranking of the genes of each unit against the control cells shown; None where it was skipped."""
        if not self.manifest["differential_expression"]:
            return None
        return DERanking(*rank_units(self.statistics, self.gene_names), len(self.gene_names))


def whole_of(screen: PreparedScreen) -> PreparedScreen:
    """The same screen with every control cell."""
    if not isinstance(screen, _ChosenControls):
        return screen
    kind = UnitScreen if isinstance(screen, UnitScreen) else PreparedScreen
    return kind(screen.folder, screen.manifest, screen._kept)


def shown_with(screen: PreparedScreen, cells: np.ndarray) -> ControlView | UnitControlView:
    """A screen with these control cells (by their number in `screen`) and no others."""
    numbers = np.asarray(cells, dtype=np.int64)
    ids = np.sort(numbers if screen.cell_ids is None else screen.cell_ids[numbers])
    kind = UnitControlView if isinstance(screen, UnitScreen) else ControlView
    return kind(screen.folder, screen.manifest, screen._kept, ids)


def model_contexts(screen: UnitScreen) -> ModelContexts:
    """Names and control means of a screen's contexts."""
    return ModelContexts(screen.contexts, screen.kinds, control_means(screen))


def control_means(screen: UnitScreen) -> np.ndarray:
    """Mean of each context's control cells, (K, G) float64, in the order of the names."""
    names = screen.contexts or ("",)
    ids = [screen.id_of(Condition((), name)) for name in names]
    return np.asarray(screen.statistics.mean[ids], dtype=np.float64)


def overall_control_mean(screen: UnitScreen) -> np.ndarray:
    """Mean over the control cells of all contexts, (G,)."""
    ids = screen.control_ids
    n_K = np.asarray(screen.statistics.n[ids], dtype=np.float64)
    return np.asarray(n_K @ screen.statistics.mean[ids] / n_K.sum(), dtype=np.float64)


def control_mean_of(screen: PreparedScreen, conditions: Sequence[Condition]) -> np.ndarray:
    """Mean of the control cells that conditions start from: (G,), or of each context's (U, G)."""
    if isinstance(screen, UnitScreen):
        return model_contexts(screen).control_means(conditions)
    return np.asarray(screen.statistics.mean[screen.control_id], dtype=np.float64)


def control_mean_over_all(screen: PreparedScreen) -> np.ndarray:
    """Mean of all control cells, (G,) float64."""
    if isinstance(screen, UnitScreen):
        return overall_control_mean(screen)
    return np.array(screen.statistics.mean[screen.control_id], dtype=np.float64)
