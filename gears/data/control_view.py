"""A screen with some of its control cells only: training that never sees the control cells of the test."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gears.data.de import rank_genes
from gears.data.screen import PreparedScreen
from gears.data.splits.split import Split
from gears.data.statistics import ConditionStatistics, DERanking
from gears.data.unit_screen import UnitScreen
from gears.data.unit_statistics import UnitStatistics, unit_statistics
from gears.data.unit_writing import rank_units
from gears.data.writing import statistics_of
from gears.files import content_hash

STREAM = 7
"""Part of the seed of the draw of control cells, so that it shares nothing with the split's own."""


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


def control_parts(screen: PreparedScreen, split: Split) -> dict[str, np.ndarray]:
    """Control cells of each part, where the split divides them (``control_shares``); {} where it does not.

    In a screen with contexts the control cells of every stratum are divided by the same shares.

    Returns
    -------
    dict
        Part -> cell numbers of `screen`, ascending; no cell is in two parts.

    Raises
    ------
    ValueError
        If there are too few control cells for 2 in each part (of each stratum).
    """
    shares = split.arguments.get("control_shares")
    if shares is None:
        return {}
    cells, key = screen.control_cells, [split.seed, STREAM]
    if not isinstance(screen, UnitScreen) or len(screen.control_mean_SG) == 1:
        return _dealt(cells, shares, key)
    of_cell, names = screen.cell_stratum[cells], screen.strata
    dealt = [
        _dealt(cells[of_cell == stratum], shares, [*key, stratum], f" of {names[stratum]}")
        for stratum in np.unique(of_cell).tolist()
    ]
    return {part: np.sort(np.concatenate([own[part] for own in dealt])) for part in dealt[0]}


def _dealt(
    cells: np.ndarray, shares: Sequence[float], key: Sequence[int], where: str = ""
) -> dict[str, np.ndarray]:
    """Some control cells by part, drawn by a key."""
    order = np.random.default_rng(key).permutation(len(cells))
    wanted = {part: share for part, share in zip(("train", "val", "test"), shares, strict=True) if share > 0}
    bounds = np.concatenate(([0], np.rint(np.cumsum(list(wanted.values())) * len(cells)))).astype(int)
    parts = {part: np.sort(cells[order[bounds[i] : bounds[i + 1]]]) for i, part in enumerate(wanted)}
    small = [f"{part} {len(own)}" for part, own in parts.items() if len(own) < 2]
    if small:
        msg = (
            f"control_shares={list(shares)} of {len(cells)} control cells{where} leaves too few in a part "
            f"({', '.join(small)}; 2 are the least); give that part more, or 0 to use the training controls there"
        )
        raise ValueError(msg)
    return parts


def part_screens(screen: PreparedScreen, split: Split) -> dict[str, PreparedScreen]:
    """The screen as each part sees it, where the split divides the control cells; {} where it does not."""
    return {part: shown_with(screen, cells) for part, cells in control_parts(screen, split).items()}


def screens_of(screen: PreparedScreen, split: Split, part: str) -> tuple[PreparedScreen, PreparedScreen]:
    """The screen as training and as a part of a split see it, where the split divides the control cells.

    `screen` may show some of its control cells already: another split than the one that chose
    them divides all of them again, one that divides none uses those that are shown.
    """
    if split.arguments.get("control_shares") is None:
        return screen, screen
    whole = whole_of(screen)
    parts = part_screens(whole, split)
    train = parts.get("train", whole)
    return train, parts.get(part, train)


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
