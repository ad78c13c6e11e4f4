"""Splits of a screen with contexts: whole contexts or single units held out; other kinds divide conditions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gears.conditions import Condition
from gears.data.splits.exact import VALIDATION_SHARE, Conditions, generator, n_of, pick, without
from gears.data.splits.labels import Labels
from gears.data.splits.registry import Draw, SplitArguments, register_split
from gears.data.splits.split import Split, Subgroups
from gears.messages import unknown_name

TEST, VAL = 0, 1
UNIT_KINDS = ("context_held_out", "unit_held_out")
"""Kinds that divide units; all others divide conditions, each in all of its contexts."""


@register_split(
    "context_held_out",
    "Whole contexts (cell lines, donors) are held out with every condition in them; a tenth of the rest validates.",
    uses=("test_contexts",),
    needs="The screen needs two contexts or more (context_key=), and two conditions in those that train",
    exact=True,
)
def draw_context(labels: Labels, arguments: SplitArguments) -> Draw:
    """Test: the given contexts, or one that the seed chooses. Their controls do not train either."""
    conditions = Conditions.of(labels)
    contexts = sorted({condition.context for condition in conditions.all if condition.context})
    if len(contexts) < 2:
        msg = (
            f"split 'context_held_out' needs a screen with two contexts or more; found {contexts or 'none'}: "
            "prepare the screen with context_key="
        )
        raise ValueError(msg)
    given = arguments.test_contexts
    for name in given or ():
        if name not in contexts:
            raise ValueError(unknown_name("context", name, contexts))
    chosen = set(given or pick(generator(arguments.seed, TEST), contexts, 1))
    test = [condition for condition in conditions.all if condition.context in chosen]
    rest = without(conditions.all, test)
    val = pick(generator(arguments.seed, VAL), rest, n_of(VALIDATION_SHARE, len(rest)))
    return _with_controls(conditions, test, val, chosen)


@register_split(
    "unit_held_out",
    "Single units (a condition in one context) are held out; the condition may train in other contexts.",
    uses=("combo_single_split_test_set_fraction",),
    needs="A share of the units is tested, a tenth of the rest validates: 3 are the least",
    exact=True,
)
def draw_units(labels: Labels, arguments: SplitArguments) -> Draw:
    """Test: a share of all condition x context units."""
    conditions = Conditions.of(labels)
    n_test = n_of(arguments.combo_single_split_test_set_fraction, len(conditions.all))
    test = pick(generator(arguments.seed, TEST), conditions.all, n_test)
    rest = without(conditions.all, test)
    val = pick(generator(arguments.seed, VAL), rest, n_of(VALIDATION_SHARE, len(rest)))
    return _with_controls(conditions, test, val, set())


def _with_controls(
    conditions: Conditions, test: Sequence[Condition], val: Sequence[Condition], gone: set[str]
) -> Draw:
    """Every control trains but those of held-out contexts, which go with their contexts."""
    controls = [condition for condition in conditions.labels.condition.values() if condition.is_control]
    held = [control for control in controls if control.context in gone]
    train = without(conditions.all, test, val)
    return Draw(
        parts={
            "train": conditions.spelled([*train, *without(controls, held)]),
            "val": conditions.spelled(val),
            "test": conditions.spelled([*test, *held]),
        }
    )


def plain_labels(labels: Sequence[str]) -> dict[str, list[str]]:
    """Labels without type and context -> the units' labels, in order of first appearance."""
    members: dict[str, list[str]] = {}
    for label in labels:
        suffix = Condition.parse(label).suffix
        members.setdefault(label.removesuffix(suffix) if suffix else label, []).append(label)
    return members


def in_all_contexts(split: Split, members: dict[str, list[str]]) -> Split:
    """A split of plain labels as one of their units: each condition in all its contexts and types."""

    def spread(labels: Sequence[str]) -> list[str]:
        return [unit for label in labels for unit in members[label]]

    subgroup: Subgroups | None = None
    if split.subgroup is not None:
        subgroup = {
            part: {name: spread(labels) for name, labels in groups.items()}
            for part, groups in split.subgroup.items()
        }
    return replace(
        split,
        parts={part: tuple(spread(labels)) for part, labels in split.parts.items()},
        subgroup=subgroup,
        excluded={unit: why for label, why in split.excluded.items() for unit in members[label]},
    )
