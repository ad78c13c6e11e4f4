"""What methods are fitted to: the condition means of a setting, and the lines that say which conditions these are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from gears.conditions import Condition
from gears.core._messages import check_unique, count, shorten
from gears.data.screen._statistics import variance_within
from gears.data.splits._split import Split, perturbed_in, subgroup_names
from gears.evaluation.metrics._registry import EVERY
from gears.evaluation.truth import mean_profile
from gears.graphs._profiles import control_profiles

if TYPE_CHECKING:
    from gears.data.screen._prepared import PreparedScreen

CONTEXT, KIND = "context", "perturbation_type"
PART_WORDS = {"train": "training", "val": "validation"}


@dataclass(frozen=True)
class ConditionMeans:
    """Mean expression of C conditions over G genes, and which of them are trained on.

    Parameters
    ----------
    mean_CG
        Mean expression (log-normalised) of each condition, (C, G) float64.
    conditions
        The C conditions; the control is among them.
    train_ids
        Rows of the training conditions, each once; the control is excluded.
    gene_names
        Names of the G measured genes; needed by baselines that use a target's own expression.
    n_cells_C
        Cells of each condition; needed by means weighted by cells.
    nonnegative
        Whether no value of the screen is below 0.
    cell_variance_G
        Variance of a cell's expression within a condition, pooled; needed by standard deviations.
    moved
        Conditions that are fitted in other contexts only.
    profiles
        Makes vectors of the measured genes whose cosines say which are co-expressed, (G, K), NaN for a gene without;
        needed by baselines that use co-expression, and called by no other.
    """

    mean_CG: np.ndarray
    conditions: tuple[Condition, ...]
    train_ids: np.ndarray
    gene_names: tuple[str, ...] | None = None
    n_cells_C: np.ndarray | None = None
    nonnegative: bool = True
    profiles: Callable[[], np.ndarray] | None = None
    cell_variance_G: np.ndarray | None = None
    moved: tuple[Condition, ...] = ()

    def __post_init__(self) -> None:
        mean_CG = np.asarray(self.mean_CG)
        if mean_CG.ndim != 2 or len(mean_CG) != len(self.conditions):
            msg = (
                f"mean_CG has shape {mean_CG.shape} for {len(self.conditions)} conditions; "
                "expected one row per condition, one column per gene"
            )
            raise ValueError(msg)
        check_unique((condition.name for condition in self.conditions), "conditions of a table of means")
        if Condition() not in self.conditions:
            msg = "the control ('ctrl') is not among the conditions; its mean is the origin of every change"
            raise ValueError(msg)
        if self.gene_names is not None and len(self.gene_names) != mean_CG.shape[1]:
            msg = f"{len(self.gene_names)} gene names for {mean_CG.shape[1]} genes; give one per column"
            raise ValueError(msg)
        if self.n_cells_C is not None and len(self.n_cells_C) != len(mean_CG):
            msg = f"{len(self.n_cells_C)} cell numbers for {len(mean_CG)} conditions; give one per row"
            raise ValueError(msg)
        train_ids = np.asarray(self.train_ids, dtype=np.int64).ravel()
        if len(train_ids) and not (train_ids.min() >= 0 and train_ids.max() < len(mean_CG)):
            msg = f"train_ids lie between {train_ids.min()} and {train_ids.max()}; expected 0 to {len(mean_CG) - 1}"
            raise ValueError(msg)
        perturbed_ids = list(dict.fromkeys(row for row in train_ids.tolist() if not self.conditions[row].is_control))
        object.__setattr__(self, "mean_CG", mean_CG)
        object.__setattr__(self, "train_ids", np.asarray(perturbed_ids, dtype=np.int64))

    @classmethod
    def of(
        cls, screen: PreparedScreen, fitted: Iterable[Condition], whole: PreparedScreen | None = None
    ) -> ConditionMeans:
        """From a prepared screen and the conditions to fit to (arrays stay mapped from disk).

        Where `screen` is one of several settings, `whole` has the control cells of all, which profiles are made from.
        """
        rows = np.array([screen.id_of(condition) for condition in fitted], dtype=np.int64)
        return cls(
            np.asarray(screen.statistics.mean),
            tuple(screen.conditions),
            rows,
            tuple(screen.gene_names),
            np.asarray(screen.statistics.n),
            screen.nonnegative,
            partial(control_profiles, screen if whole is None else whole),
            variance_within(screen.statistics, rows) if len(rows) else None,
        )

    @property
    def control_id(self) -> int:
        """Row of the control."""
        return self.conditions.index(Condition())

    @property
    def control_mean_G(self) -> np.ndarray:
        """Mean of the control cells, (G,)."""
        return np.asarray(self.mean_CG[self.control_id], dtype=np.float64)

    @property
    def train(self) -> tuple[Condition, ...]:
        """The training conditions, without the control."""
        return tuple(self.conditions[row] for row in self.train_ids)

    def reference_mean(self, *, weights: str = "conditions") -> np.ndarray:
        """Mean of the training conditions' means, (G,): each once, or ``weights="cells"``; NaN without any."""
        return mean_profile(self.mean_CG, self.train_ids, self.n_cells_C, weights)

    def reference_sd(self) -> np.ndarray | None:
        """Standard deviation over the training conditions' means without sampling noise, (G,); None for one alone."""
        if self.cell_variance_G is None or self.n_cells_C is None or len(self.train_ids) < 2:
            return None
        noise_G = self.cell_variance_G * float((1 / self.n_cells_C[self.train_ids]).mean())
        spread_G = np.asarray(self.mean_CG[self.train_ids], dtype=np.float64).var(axis=0, ddof=1)
        return np.sqrt(np.maximum(spread_G - noise_G, 0.0))

    def single_means(self, *, everywhere: bool = False) -> dict[str, np.ndarray]:
        """Mean expression (G,) of single-gene conditions by gene: of training, or of every part."""
        rows = range(len(self.conditions)) if everywhere else self.train_ids.tolist()
        return {
            self.conditions[row].genes[0]: np.asarray(self.mean_CG[row], dtype=np.float64)
            for row in rows
            if len(self.conditions[row]) == 1
        }

    def require_training(self, what: str) -> None:
        """Raise if there is no training condition."""
        if not len(self.train_ids):
            msg = f"{what} needs at least one training condition besides the control; the split has none"
            raise ValueError(msg)

    def require_gene_names(self, what: str) -> tuple[str, ...]:
        """The gene names; raises if there are none."""
        if self.gene_names is None:
            msg = f"{what} needs the names of the measured genes; give gene_names"
            raise ValueError(msg)
        return self.gene_names

    def require_profiles(self, what: str) -> tuple[tuple[str, ...], np.ndarray]:
        """The gene names and their profiles (G, K); raises if there are none."""
        names = self.require_gene_names(what)
        if self.profiles is None:
            msg = f"{what} needs profiles of the measured genes; give profiles"
            raise ValueError(msg)
        return names, self.profiles()


def fitted_conditions(split: Split, parts: Iterable[str] = ("train",)) -> tuple[Condition, ...]:
    """Perturbed conditions of some parts of a split, each once; a part that the split lacks has none."""
    return tuple(dict.fromkeys(condition for part in parts for condition in perturbed_in(split, part)))


@dataclass(frozen=True)
class Setting:
    """Conditions that are scored together: those of one setting."""

    screen: PreparedScreen
    rows: np.ndarray  # positions of the conditions among all that are scored
    conditions: tuple[Condition, ...]
    means: ConditionMeans
    """What baselines are fitted to here; the reference O is their mean (:func:`means_in`)."""

    def named(self, table: pd.DataFrame) -> pd.DataFrame:
        """A table of these conditions with the setting in their labels and in two columns, where it has a name."""
        view = self.screen
        if not view.suffix:
            return table
        labels = table["condition"].where(table["condition"] == EVERY, table["condition"] + view.suffix)
        n_control = int(view.statistics.n[view.control_id])
        return table.assign(condition=labels, n_control=n_control, **{CONTEXT: view.context, KIND: view.kind})


def by_setting(screen: PreparedScreen, conditions: Sequence[Condition]) -> list[tuple[PreparedScreen, np.ndarray]]:
    """Every setting with some of the conditions, and their positions among `conditions`."""
    rows_of: dict[tuple[str, str], list[int]] = {}
    for row, condition in enumerate(conditions):
        rows_of.setdefault((condition.context, condition.kind), []).append(row)
    pairs = [(view, rows_of.get((view.context, view.kind))) for view in screen.settings]
    return [(view, np.array(rows, dtype=np.int64)) for view, rows in pairs if rows]


def settings_of(screen: PreparedScreen, conditions: Sequence[Condition], fitted: Sequence[Condition]) -> list[Setting]:
    """The settings of some conditions, with what baselines are fitted to in each."""
    return [
        Setting(view, rows, tuple(conditions[row].plain for row in rows.tolist()), means_in(screen, view, fitted))
        for view, rows in by_setting(screen, conditions)
    ]


def means_in(screen: PreparedScreen, view: PreparedScreen, fitted: Iterable[Condition]) -> ConditionMeans:
    """Condition means as a method without a network reads them in one setting.

    A condition that is fitted in this setting has its measured mean. One that is fitted in others only has
    this setting's control mean plus its mean change there (of the same type of perturbation), each
    context once: what it would be if contexts did not matter.
    """
    of_type = [condition for condition in fitted if condition.kind == view.kind and not condition.is_control]
    here = dict.fromkeys(condition.plain for condition in of_type if condition.context == view.context)
    means = ConditionMeans.of(view, here, screen)
    elsewhere: dict[Condition, list[Condition]] = {}
    for condition in of_type:
        if condition.context != view.context and condition.plain not in here:
            elsewhere.setdefault(condition.plain, []).append(condition)
    if not elsewhere:
        return means
    moved_MG = means.control_mean_G + np.array([_mean_change(screen, contexts) for contexts in elsewhere.values()])
    measured = [row for row, condition in enumerate(means.conditions) if condition not in elsewhere]
    conditions = (*elsewhere, *(means.conditions[row] for row in measured))
    row_of = {condition: row for row, condition in enumerate(conditions)}
    n_cells = dict(zip(means.conditions, np.asarray(means.n_cells_C).tolist(), strict=True))
    return ConditionMeans(
        np.concatenate([moved_MG, means.mean_CG[measured]]),
        conditions,
        np.array([row_of[condition] for condition in (*elsewhere, *means.train)], dtype=np.int64),
        means.gene_names,
        np.array([n_cells.get(condition, 1.0) for condition in conditions]),  # 1: nothing was measured here
        means.nonnegative,
        means.profiles,
        moved=tuple(elsewhere),
    )


def _mean_change(screen: PreparedScreen, conditions: Sequence[Condition]) -> np.ndarray:
    """Mean change of a condition over contexts, (G,); of each gene over those that measure it."""
    change_RG = screen.statistics.delta(np.array(list(map(screen.id_of, conditions))))
    is_measured_RG = screen.is_measured(conditions)
    if is_measured_RG is None:
        return np.asarray(change_RG.mean(axis=0))
    return np.asarray((change_RG * is_measured_RG).sum(axis=0) / np.maximum(is_measured_RG.sum(axis=0), 1))


def count_parts(split: Split, parts: Iterable[str], fitted: Iterable[Condition] | None = None) -> dict[str, int]:
    """Number of perturbed conditions by part (of those among `fitted`) that a method is fitted to."""
    counted = None if fitted is None else set(fitted)
    conditions_of = {part: fitted_conditions(split, [part]) for part in parts}
    return {
        part: len([c for c in conditions if counted is None or c in counted])
        for part, conditions in conditions_of.items()
    }


def fitted_line(counts: Mapping[str, Sequence[Mapping[str, int]]]) -> str:
    """Line about the conditions that methods were fitted to, from their number by part, of each split."""
    methods: dict[str, list[str]] = {}
    for method, splits in counts.items():
        parts = {part: None for split in splits for part in split}
        numbers = {part: [split.get(part, 0) for split in splits] for part in parts}
        numbers_of_parts = [
            f"{_range(n)} {PART_WORDS.get(part, part)}" for part, n in numbers.items() if any(n) or part == "train"
        ]
        largest = sum(max(n) for n in numbers.values())
        text = f"{' and '.join(numbers_of_parts)} condition{'' if largest == 1 else 's'}"
        methods.setdefault(text, []).append(method)
    if len(methods) == 1 and sum(map(len, methods.values())) > 1:
        methods = {text: ["all methods"] for text in methods}
    return "; ".join(f"{shorten(names, 4)} fitted to {text}" for text, names in methods.items())


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} to {high}"


def control_lines(table: pd.DataFrame) -> list[str]:
    """A line about the control cells of each scored context; none without contexts."""
    if CONTEXT not in table:
        return []
    numbers = [f"{context} {int(n)}" for context, n in table.groupby(CONTEXT, sort=False)["n_control"].first().items()]
    return [f"control cells: {', '.join(numbers)}"] if numbers else []


def subgroup_line(split: Split, part: str, conditions: Sequence[Condition], fitted: Sequence[Condition]) -> str | None:
    """One line if subgroups, counted from the fitted conditions, differ from those of the split; else None."""
    published = split.subgroup_by_condition(part)
    counted = zip(conditions, subgroup_names(conditions, fitted), strict=True)
    differing = [
        f"{condition.name} {name}, there {published[condition]}"
        for condition, name in counted
        if published.get(condition, name) != name
    ]
    if not differing:
        return None
    return (
        f"{len(differing)} of {count(len(conditions), 'subgroup label')} differ from the split file's "
        f"(docs/screens.md), such as {differing[0]}"
    )
