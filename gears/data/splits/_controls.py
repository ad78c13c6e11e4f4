"""Which control cells each part of a split uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gears.data.screen._prepared import PreparedScreen
    from gears.data.splits._split import Split

STREAM = 7
"""Part of the seed of the draw of control cells, so that it shares nothing with the split's own."""


def control_parts(screen: PreparedScreen, split: Split) -> dict[str, np.ndarray]:
    """Control cells of each part, where the split divides them (``control_shares``); {} where it does not.

    The control cells of every experimental batch that controls are matched by are divided by the same shares. Cell
    numbers of `screen` ascend; no cell is in two parts. ValueError if there are too few control cells for 2 in each
    part (of each batch).
    """
    shares = split.arguments.get("control_shares")
    if shares is None:
        return {}
    cells, key = screen.control_cells, [split.seed, STREAM]
    if len(screen.batches) == 1:
        return _dealt(cells, shares, key)
    cell_batch = screen.cell_batch[cells]
    dealt = [
        _dealt(cells[cell_batch == batch], shares, [*key, batch], f" of {screen.batches[batch]}")
        for batch in np.unique(cell_batch).tolist()
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
    return {part: screen.with_controls(cells) for part, cells in control_parts(screen, split).items()}


def screens_of(screen: PreparedScreen, split: Split, part: str) -> tuple[PreparedScreen, PreparedScreen]:
    """The screen as training and as a part of a split see it, where the split divides the control cells.

    `screen` may show some of its control cells already: another split than the one that chose
    them divides all of them again, one that divides none uses those that are shown.
    """
    if split.arguments.get("control_shares") is None:
        return screen, screen
    whole = screen.with_controls(None)
    parts = part_screens(whole, split)
    train = parts.get("train", whole)
    return train, parts.get(part, train)
