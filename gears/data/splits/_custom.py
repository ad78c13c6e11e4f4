"""A split that the user gives, as a dict or a file, checked."""

from __future__ import annotations

from typing import Any

from gears.conditions import Condition
from gears.core._messages import nearest, shorten, suggestion
from gears.data.splits._labels import Labels
from gears.data.splits._registry import Draw, SplitOptions, check_parts, register_split
from gears.data.splits._split import PARTS


@register_split(
    "custom",
    "The parts are given as a dict or a file.",
    uses=("split_dict",),
    needs="Name at least one perturbed condition in each part",
)
def draw_custom(labels: Labels, arguments: SplitOptions) -> Draw:
    """Check the given parts: keys, unknown labels, overlap by genes, empty parts."""
    given = check_parts(arguments.split_dict)
    problems = [f"key {part!r} is missing" for part in PARTS if part not in given]
    unknown = [key for key in given if key not in PARTS]
    problems += [f"key {key!r} is unknown; {suggestion(str(key), PARTS, 'keys')}" for key in unknown]
    parts: dict[str, list[str]] = {}
    home: dict[Condition, tuple[str, str]] = {}
    for part in (part for part in PARTS if part in given):
        chosen, found = _part(labels, part, given[part], home)
        parts[part] = chosen
        problems += found
    if problems:
        lines = "\n".join(f"  - {problem}" for problem in problems)
        msg = f"the custom split does not fit this screen:\n{lines}"
        raise ValueError(msg)
    used = {name for names in parts.values() for name in names}
    excluded = {name: "not named in the split" for name in labels.names if name not in used}
    return Draw(parts=parts, excluded=excluded)


def _part(
    labels: Labels, part: str, names: Any, home: dict[Condition, tuple[str, str]]
) -> tuple[list[str], list[str]]:
    if isinstance(names, (str, bytes)) or not hasattr(names, "__iter__"):
        return [], [f"{part!r} must be a list of condition labels; found {names!r}"]
    chosen: list[str] = []
    unknown: list[str] = []
    twice: list[str] = []
    for name in names:
        try:
            found = labels.resolve(str(name))
        except ValueError:
            near = nearest(str(name), labels.names, 1)
            unknown.append(f"{name!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
            continue
        other, spelling = home.setdefault(labels.condition[found[0]], (part, str(name)))
        if other != part:
            twice.append(f"{str(name)!r} ({spelling!r} in {other!r})")
        chosen += found
    problems = []
    if unknown:
        problems.append(f"{part!r} names {len(unknown)} conditions that the screen lacks: {shorten(unknown)}")
    if twice:
        problems.append(f"{part!r} shares {len(twice)} conditions with another part: {shorten(twice)}")
    return labels.ordered(chosen), problems
