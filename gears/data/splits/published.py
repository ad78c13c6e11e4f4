"""Splits that the published package left on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gears.data.pickles import load_plain
from gears.data.splits.labels import Labels
from gears.data.splits.make import finish
from gears.data.splits.registry import Draw, SplitArguments
from gears.data.splits.split import PARTS, Split
from gears.files import user_path
from gears.messages import shorten


def read_published_split(path: str | Path, labels: Sequence[str]) -> Split:
    """Read a split pickle of cell-gears, with the subgroups beside it.

    Parameters
    ----------
    path
        Such as ``norman/splits/norman_simulation_1_0.75.pkl``; subgroups are taken from
        ``..._subgroup.pkl`` where it is there. Nothing in a pickle can run.
    labels
        Labels of the screen. Conditions that the file does not name are excluded;
        spellings of one condition in several parts are put together (test before
        val before train), with a warning.

    Raises
    ------
    ValueError
        If the file is no such split, or names labels that the screen lacks.
    """
    path = user_path(path)
    parts = _lists(path, load_plain(path))
    unknown = sorted({name for names in parts.values() for name in names} - set(labels))
    if unknown or not parts or set(parts) - set(PARTS):
        what = (
            f"labels that the screen lacks ({shorten(unknown)})" if unknown else f"the keys {shorten(parts)}"
        )
        msg = f"{path} has {what}; expected labels of this screen in {', '.join(PARTS)}"
        raise ValueError(msg)
    beside = path.with_name(f"{path.stem}_subgroup.pkl")
    subgroup = None
    if beside.is_file():
        found = load_plain(beside)
        if isinstance(found, dict):
            subgroup = {str(key): _lists(beside, groups) for key, groups in found.items()}
    used = {name for names in parts.values() for name in names}
    excluded = {name: "not named in the published split" for name in labels if name not in used}
    draw = Draw(parts=parts, excluded=excluded, subgroup=subgroup)
    return finish(Labels(tuple(labels)), "custom", SplitArguments(), draw)


def _lists(path: Path, found: Any) -> dict[str, list[str]]:
    if not isinstance(found, dict) or any(isinstance(names, str) for names in found.values()):
        msg = f"{path} holds no dict of lists"
        raise ValueError(msg)
    return {str(part): [str(name) for name in names] for part, names in found.items()}
