"""Draw a split, put the spellings of a condition together, check it, cache it; folds for cross-validation."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gears.conditions import Condition, conditions_of
from gears.core._messages import count, shorten
from gears.core._numbers import whole_number
from gears.data.splits._registry import SPLITS, Draw, Labels, SplitOptions
from gears.data.splits._split import FORMAT_VERSION, PARTS, Split, Subgroups, subgroup_name
from gears.files._cache import writable_folder
from gears.files.formats import content_hash

if TYPE_CHECKING:
    from gears.data.screen._prepared import PreparedScreen


logger = logging.getLogger(__name__)

PRECEDENCE = ("test", "val", "train")
"""Where the labels of one condition go that were drawn into several parts."""
ALWAYS_USED = frozenset({"mode", "keep_excluded", "control_shares"})


def make_split(labels: Sequence[str] | Labels, name: str = "simulation", **arguments: Any) -> Split:
    """Draw a split over labels.

    Parameters
    ----------
    labels
        Distinct labels in order of first appearance in the screen.
    name
        Kind of split, see :data:`gears.data.splits.SPLITS`.
    **arguments
        See :class:`~gears.data.splits._registry.SplitOptions`.

    Returns
    -------
    Split
        No condition, however spelled, is in two parts, and no part is empty.

    Raises
    ------
    ValueError
        If the kind is unknown, an argument does not fit, or a part stays empty.
    """
    split_kind, table = SPLITS[name], Labels.of(labels)
    members = {} if split_kind.by_setting else plain_labels(table)
    if members and tuple(members) != table.names and not _names_settings(table, arguments):
        plain = {label: table.condition[each[0]].plain for label, each in members.items()}
        return in_all_contexts(make_split(Labels(tuple(plain), plain), name, **arguments), members, table)
    settings = SplitOptions(split=name, **arguments)
    idle = [name for name in settings.changed() if name not in {*split_kind.uses, *ALWAYS_USED, "split", "seed"}]
    if idle:
        logger.warning("split %r makes no use of %s", name, ", ".join(idle))
    draw = split_kind.draw_by(table, settings)
    if settings.keep_excluded:
        _keep_excluded(table, draw)
    return finish(table, name, settings, draw)


def _names_settings(table: Labels, arguments: dict[str, Any]) -> bool:
    """Whether a custom split names conditions of single settings (labels with a context or type)."""
    given = arguments.get("split_dict")
    if not isinstance(given, Mapping):
        return False
    names = [name for part in given.values() if isinstance(part, list | tuple | set) for name in part]
    named = conditions_of((name for name in names if isinstance(name, str)), table.condition)
    return any(condition.suffix for condition in named.values())


def finish(table: Labels, name: str, settings: SplitOptions, draw: Draw) -> Split:
    """A split from what was drawn: spellings together, no part empty, everything else excluded."""
    split_kind = SPLITS[name]
    before = {part: set(names) for part, names in draw.parts.items()}
    parts = _together(table, draw)
    n_moved = sum(len(set(names) - before[part]) for part, names in parts.items())
    if n_moved:
        logger.warning(
            "%s of a condition whose other labels split %r drew into another part: "
            "all are moved to one (test before val before train)", count(n_moved, "label"), name,
        )  # fmt: skip
    _check_filled(table, name, settings, parts)
    placed = {label for names in parts.values() for label in names}
    excluded = {label: reason for label, reason in draw.excluded.items() if label not in placed}
    if excluded:
        n = count(len(excluded), "label")
        logger.warning("split %r has %s in no part: %s", name, n, shorten(excluded))
    exact = split_kind.exact or settings.mode == "strict"
    # a custom split's parts are in the split itself
    shown = {*split_kind.uses, *(name for name in settings.changed() if name in ALWAYS_USED)} - {"split_dict"}
    return Split(
        name=name,
        seed=settings.seed,
        arguments={key: value for key, value in asdict(settings).items() if key in shown},
        parts={part: tuple(names) for part, names in parts.items()},
        subgroup=_subgroups(table, draw, parts, exact=exact),
        excluded=excluded,
        exact=exact,
        parsed=table.condition,
    )


def prepare_split(screen: PreparedScreen, name: str = "simulation", **arguments: Any) -> Split:
    """Draw a split over a screen, or take it from the screen's ``splits/`` folder.

    The file name holds a hash of every argument and of the labels, so a split is never reused for other conditions.
    Splits of a read-only screen are stored in the user's cache folder.
    """
    settings, labels = asdict(SplitOptions(split=name, **arguments)), Labels.of(screen)
    del settings["split"], settings["split_dict_path"]
    key = content_hash(FORMAT_VERSION, name, settings, screen.labels)
    path = screen.folder / "splits" / f"{SPLITS[name].name}-{key[:16]}.json"
    split = _cached(path, labels)
    if split is not None:
        return split
    try:
        path = writable_folder(path.parent) / path.name  # of a read-only screen one in the user's cache
        split = _cached(path, labels)
        if split is None:
            split = make_split(labels, name, **arguments)
            split.save(path, overwrite=True)
    except OSError as error:
        logger.warning("the split could not be cached in %s (%s)", path.parent, error)
    return make_split(labels, name, **arguments) if split is None else split


def _cached(path: Path, labels: Labels) -> Split | None:
    """A split of exactly these labels from a file, or None where the file does not hold one."""
    if not path.is_file():
        return None
    try:
        split = Split.load(path, labels.condition)
    except (ValueError, TypeError, AttributeError) as error:
        logger.warning("%s; drawing the split again", error)
        return None
    placed = [label for names in split.parts.values() for label in names] + list(split.excluded)
    return split if sorted(placed) == sorted(labels.names) else None


def _together(labels: Labels, draw: Draw) -> dict[str, list[str]]:
    """Parts in which all labels of a condition stand together, in the screen's order."""
    home: dict[Condition, str] = {}
    for part in PRECEDENCE:
        for name in draw.parts.get(part, ()):
            home.setdefault(labels.condition[name], part)
    return {
        part: [name for name in labels.names if home.get(labels.condition[name]) == part]
        for part in PARTS
        if part in draw.parts
    }


def _keep_excluded(labels: Labels, draw: Draw) -> None:
    """Put labels that were excluded into the part whose genes they hold (test before val)."""
    if "train" not in draw.parts:
        return
    trained = set(labels.genes(draw.parts["train"]).tolist())
    parts = [part for part in ("test", "val") if part in draw.parts]
    held = {part: set(labels.genes(draw.parts[part]).tolist()) - trained for part in parts}
    for name in list(draw.excluded):
        genes = labels.condition[name].genes
        home = next((part for part, own in held.items() if not own.isdisjoint(genes)), None)
        if home is not None:
            draw.parts[home].append(name)
            del draw.excluded[name]


def _subgroups(labels: Labels, draw: Draw, parts: dict[str, list[str]], *, exact: bool) -> Subgroups | None:
    """Subgroups of validation and test labels: as drawn, else by the genes seen.

    For test, a gene counts as seen when it is perturbed in train or, unless
    `exact`, in val (as published); for val, when it is perturbed in train.
    """
    if "train" not in parts:
        return None
    result: Subgroups = {}
    for part, seen_in in (("test", ("train",) if exact else ("train", "val")), ("val", ("train",))):
        if part not in parts:
            continue
        key = f"{part}_subgroup"
        drawn = (draw.subgroup or {}).get(key, {})
        group_of = {labels.condition[name]: group for group, names in drawn.items() for name in names}
        seen = set(labels.genes([name for other in seen_in for name in parts.get(other, ())]).tolist())
        groups: dict[str, list[str]] = {group: [] for group in drawn}
        for name in parts[part]:
            condition = labels.condition[name]
            if not condition.is_control:
                groups.setdefault(group_of.get(condition) or subgroup_name(condition, seen), []).append(name)
        result[key] = groups
    return result


def _empty_parts(labels: Labels, parts: dict[str, list[str]]) -> list[str]:
    perturbed = set(labels.perturbed)
    return [part for part, names in parts.items() if perturbed.isdisjoint(names)]


def _check_filled(labels: Labels, name: str, settings: SplitOptions, parts: dict[str, list[str]]) -> None:
    """Every part has a perturbed condition, or an error with counts and splits that would work."""
    empty = _empty_parts(labels, parts)
    if not empty:
        return
    n_singles = len(labels.singles(labels.perturbed))
    n_combinations = len(labels.combinations(labels.perturbed))
    counts = ", ".join(f"{part} {len(names)}" for part, names in parts.items())
    working = ", ".join(_working(labels, name, settings))
    advice = f"these splits work with seed {settings.seed}: {working}" if working else "try another seed"
    if name != "custom":
        advice += "; or change the shares held out, or give the parts with split='custom'"
    msg = (
        f"split {name!r} leaves {' and '.join(empty)} without a perturbed condition (labels: {counts}) of "
        f"{count(n_singles, 'single')} and {count(n_combinations, 'combination')}. {SPLITS[name].needs}; {advice}"
    )
    raise ValueError(msg)


def _working(labels: Labels, name: str, settings: SplitOptions) -> list[str]:
    """Other kinds of split that fill their parts on these labels."""
    working = []
    plain = replace(settings, test_perts=None, test_pert_genes=None, only_test_set_perts=False)
    for other, split_kind in SPLITS.items():
        if other in (name, "custom", "no_split"):
            continue
        try:
            parts = _together(labels, split_kind.draw_by(labels, plain))
        except ValueError:
            continue
        if not _empty_parts(labels, parts):
            working.append(f"{other!r}")
    return working


def describe_splits() -> str:
    """One line per kind of split."""
    return "\n".join(f"{kind.name}: {kind.description}" for kind in SPLITS.values())


def plain_labels(labels: Labels) -> dict[str, list[str]]:
    """Labels without type and context -> the labels with them, in order of first appearance."""
    members: dict[str, list[str]] = {}
    for label, condition in labels.condition.items():
        suffix = condition.suffix
        members.setdefault(label.removesuffix(suffix) if suffix else label, []).append(label)
    return members


def in_all_contexts(split: Split, members: dict[str, list[str]], labels: Labels) -> Split:
    """A split of plain labels with each condition in all its contexts and types."""

    def spread(labels: Sequence[str]) -> list[str]:
        return [member for label in labels for member in members[label]]

    subgroup: Subgroups | None = None
    if split.subgroup is not None:
        subgroup = {
            part: {name: spread(labels) for name, labels in groups.items()} for part, groups in split.subgroup.items()
        }
    return replace(
        split,
        parts={part: tuple(spread(labels)) for part, labels in split.parts.items()},
        subgroup=subgroup,
        excluded={member: why for label, why in split.excluded.items() for member in members[label]},
        parsed=labels.condition,
    )


def folds(
    screen: PreparedScreen | Sequence[str], n_folds: int = 5, repeats: int = 1, seed: int = 1, *, by: str = "condition"
) -> Iterator[Split]:
    """Splits for repeated k-fold cross-validation, one after another.

    Parameters
    ----------
    screen
        A prepared screen, or its labels.
    n_folds
        Folds of a repeat; over them every condition is in the test part once
        (``by="gene"``: every gene is held out once).
    repeats
        How often the conditions are divided again.
    seed
        Of all draws. Fold i of repeat r does not depend on `repeats`.
    by
        ``"condition"``: conditions are divided, singles and combinations evenly; genes of a test pair may be seen in
        training. ``"gene"``: genes are divided, and a fold tests every condition that perturbs one of its genes, so
        that a pair is tested in up to two folds.

    Yields
    ------
    Split
        Kind ``"cross_validation"``, in the order repeat 0 fold 0, fold 1, ...; ``split.arguments`` has "repeat" and
        "fold". A tenth of the conditions outside the fold validates.

    Raises
    ------
    ValueError
        If there are fewer conditions (genes) than folds, or a part would stay empty.

    Examples
    --------
    >>> labels = ["ctrl", "A+ctrl", "B+ctrl", "C+ctrl", "D+ctrl"]
    >>> sorted(split.parts["test"][0] for split in folds(labels, n_folds=4))
    ['A+ctrl', 'B+ctrl', 'C+ctrl', 'D+ctrl']
    """
    repeats = whole_number("repeats", repeats)
    labels = Labels.of(screen)
    for repeat in range(repeats):
        for fold in range(n_folds):
            yield make_split(
                labels, "cross_validation", seed=seed, n_folds=n_folds, fold=fold, repeat=repeat, fold_by=by
            )


def folds_like(screen: PreparedScreen, split: Split, n_folds: int = 5) -> list[Split]:
    """Folds that hold out what a split of the screen holds out: genes, contexts or conditions.

    Every perturbed condition is in the test part of one fold (but those that "custom" and "simulation_single" leave in
    no part: they are in none here either). Where genes are held out, a pair can be drawn into the
    folds of both: it trains in neither, and is tested in the one that tests fewer conditions so far. There are no more
    folds than contexts where contexts are held out.
    """
    labels = Labels.of(screen)
    if split.name in ("custom", "simulation_single"):
        included = tuple(label for label in labels.names if label not in split.excluded)
        labels = Labels(included, labels.condition)
    holds_out = split.arguments.get("fold_by", SPLITS[split.name].holds_out)
    shared = {name: split.arguments[name] for name in ("control_shares",) if name in split.arguments}
    if holds_out == "context":
        contexts = sorted({condition.context for condition in labels.condition.values()})
        shares = [contexts[first::n_folds] for first in range(min(n_folds, len(contexts)))]
        options = [("context_held_out", {"test_contexts": share}) for share in shares]
    else:
        by_number = {"n_folds": n_folds, "fold_by": holds_out}
        options = [("cross_validation", by_number | {"fold": fold}) for fold in range(n_folds)]
    drawn = [make_split(labels, name, seed=split.seed, **values, **shared) for name, values in options]
    folds_of: dict[Condition, list[int]] = {}
    for fold, each in enumerate(drawn):
        for condition in each.conditions("test"):
            folds_of.setdefault(condition, []).append(fold)
    n_tested, home = Counter[int](), {}
    for condition, numbers in folds_of.items():
        home[condition] = min(numbers, key=n_tested.__getitem__)
        n_tested[home[condition]] += 1
    return [_tested_once(labels, each, fold, home) for fold, each in enumerate(drawn) if n_tested[fold]]


def _tested_once(labels: Labels, split: Split, fold: int, home: Mapping[Condition, int]) -> Split:
    """A fold without the test conditions whose home is another fold; they train in neither."""
    elsewhere = [label for label in split.parts["test"] if home[labels.condition[label]] != fold]
    if not elsewhere:
        return split
    test = tuple(label for label in split.parts["test"] if label not in elsewhere)
    excluded = split.excluded | dict.fromkeys(elsewhere, "tested in another fold")
    return replace(
        split, parts={**split.parts, "test": test}, subgroup=None, excluded=excluded, parsed=labels.condition
    )
