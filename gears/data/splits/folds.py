"""Cross-validation: repeated k-fold splits of a screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gears.core._numbers import whole_number
from gears.data.splits._labels import Labels
from gears.data.splits._make import make_split
from gears.data.splits._split import Split

if TYPE_CHECKING:
    from gears.data.screen._prepared import PreparedScreen


def folds(
    screen: PreparedScreen | Sequence[str],
    n_folds: int = 5,
    repeats: int = 1,
    seed: int = 1,
    *,
    by: str = "condition",
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
