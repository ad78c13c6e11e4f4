"""A screen with some of its control cells only: training that never sees the control cells of the test."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gears.data.de import rank_genes
from gears.data.screen import PreparedScreen
from gears.data.splits.split import Split
from gears.data.statistics import ConditionStatistics, DERanking
from gears.data.writing import statistics_of
from gears.files import content_hash

STREAM = 7
"""Part of the seed of the draw of control cells, so that it shares nothing with the split's own."""


class ControlView(PreparedScreen):
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

    def __init__(
        self, folder: Path, manifest: dict[str, Any], kept: np.ndarray | None, controls: np.ndarray
    ) -> None:
        super().__init__(folder, manifest, kept)
        self._controls = controls

    @classmethod
    def of(cls, screen: PreparedScreen, cells: np.ndarray) -> ControlView:
        """The screen with these control cells (by their number in `screen`) and no others."""
        numbers = np.asarray(cells, dtype=np.int64)
        ids = numbers if screen.cell_ids is None else screen.cell_ids[numbers]
        return cls(screen.folder, screen.manifest, screen._kept, np.sort(ids))

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_controls": self._controls}

    @cached_property
    def content_hash(self) -> str:
        """Hash of what is shown."""
        kept = None if self._kept is None else self._kept.tolist()
        return content_hash(self.manifest["content_hash"], kept, self._controls)

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


def control_parts(screen: PreparedScreen, split: Split) -> dict[str, np.ndarray]:
    """Control cells of each part, where the split divides them (``control_shares``); {} where it does not.

    Returns
    -------
    dict
        Part -> cell numbers of `screen`, ascending; no cell is in two parts.

    Raises
    ------
    ValueError
        If there are too few control cells for 2 in each part.
    """
    shares = split.arguments.get("control_shares")
    if shares is None:
        return {}
    if len(screen.control_ids) > 1:
        msg = "control_shares divides the cells of one control; this screen has one in each context: leave it out"
        raise ValueError(msg)
    cells = screen.control_cells
    order = np.random.default_rng([split.seed, STREAM]).permutation(len(cells))
    wanted = {part: share for part, share in zip(("train", "val", "test"), shares, strict=True) if share > 0}
    bounds = np.concatenate(([0], np.rint(np.cumsum(list(wanted.values())) * len(cells)))).astype(int)
    parts = {part: np.sort(cells[order[bounds[i] : bounds[i + 1]]]) for i, part in enumerate(wanted)}
    small = [f"{part} {len(own)}" for part, own in parts.items() if len(own) < 2]
    if small:
        msg = (
            f"control_shares={list(shares)} of {len(cells)} control cells leaves too few in a part "
            f"({', '.join(small)}; 2 are the least); give that part more, or 0 to use the training controls there"
        )
        raise ValueError(msg)
    return parts


def part_screens(screen: PreparedScreen, split: Split) -> dict[str, ControlView]:
    """The screen as each part sees it, where the split divides the control cells; {} where it does not."""
    return {part: ControlView.of(screen, cells) for part, cells in control_parts(screen, split).items()}
