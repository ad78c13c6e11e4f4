"""Cross-validation: repeated k-fold splits of a screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gears.conditions import Condition
from gears.core._numbers import whole_number
from gears.data.splits._make import make_split
from gears.data.splits._registry import SPLITS, Labels
from gears.data.splits._split import Split

if TYPE_CHECKING:
    from gears.data.screen._prepared import PreparedScreen


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
