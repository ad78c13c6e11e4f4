"""A prepared screen whose conditions are units, condition x context (x type), and its single contexts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from gears.conditions import Condition
from gears.data.cells import map_array
from gears.data.screen import PreparedScreen
from gears.data.statistics import ConditionStatistics, DERanking
from gears.data.unit_statistics import TABLES, UnitStatistics
from gears.data.unit_writing import FOLDER, NAMES
from gears.files import content_hash, read_json
from gears.messages import shorten, unknown_name


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
        tables = {name: self._cell_array(name) for name in TABLES}
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
