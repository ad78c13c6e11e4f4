"""Screens of several contexts and types of perturbation: what is scored together, and what baselines see there."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gears.conditions import Condition
from gears.data.screen import PreparedScreen
from gears.data.splits import Split, subgroup_name
from gears.data.unit_screen import SettingView, UnitScreen
from gears.evaluation.baselines.base import Baseline
from gears.evaluation.baselines.means_table import ConditionMeans, training_conditions
from gears.evaluation.summary import EVERY
from gears.evaluation.truth import Truth, seen_subgroups

log = logging.getLogger(__name__)

CONTEXT, KIND = "context", "perturbation_type"


def by_setting(screen: UnitScreen, conditions: Sequence[Condition]) -> list[tuple[SettingView, np.ndarray]]:
    """Every setting with some of the units, and their places among `conditions`."""
    found = []
    for view in screen.settings:
        rows = [
            row
            for row, unit in enumerate(conditions)
            if (unit.context, unit.kind) == (view.context, view.kind)
        ]
        if rows:
            found.append((view, np.array(rows, dtype=np.int64)))
    return found


def means_in(screen: UnitScreen, view: SettingView, train: Iterable[Condition]) -> ConditionMeans:
    """Condition means as a method without a network sees them in one setting.

    A condition that trains in this setting has its own mean. One that trains in others only has this
    setting's control mean plus its mean change there (of the same type of perturbation), each
    context once: what it would be if contexts did not matter.

    Parameters
    ----------
    screen
        All contexts.
    view
        The setting.
    train
        Training units of all settings.
    """
    statistics = screen.statistics
    control_mean_G = np.asarray(view.statistics.mean[view.control_id], dtype=np.float64)
    own: dict[Condition, np.ndarray] = {}
    elsewhere: dict[Condition, list[np.ndarray]] = {}
    for unit in train:
        if unit.is_control or unit.kind != view.kind:
            continue
        place = np.array([screen.id_of(unit)])
        if unit.context == view.context:
            own[unit.plain] = np.asarray(statistics.mean[place[0]], dtype=np.float64)
        else:
            elsewhere.setdefault(unit.plain, []).append(statistics.delta(place)[0])
    moved = {plain: control_mean_G + np.mean(deltas, axis=0) for plain, deltas in elsewhere.items()}
    rows = {Condition(): control_mean_G} | moved | own
    rest = [condition for condition in view.conditions if condition not in rows]
    trained = len(rows)
    rows |= {one: np.asarray(view.statistics.mean[view.id_of(one)], dtype=np.float64) for one in rest}
    known = set(view.conditions)
    n_cells = [float(view.statistics.n[view.id_of(one)]) if one in known else 1.0 for one in rows]
    return ConditionMeans(
        np.array(list(rows.values())),
        tuple(rows),
        np.arange(1, trained),
        tuple(view.gene_names),
        np.array(n_cells),
    )


def truth_in(
    screen: UnitScreen, view: SettingView, units: Sequence[Condition], train: Iterable[Condition]
) -> Truth:
    """Truth of some units of one setting; the reference is the mean of what :func:`means_in` trains on."""
    reference = means_in(screen, view, train).reference_mean()
    return Truth.of(view, [unit.plain for unit in units], reference_mean_G=reference)


@dataclass(frozen=True)
class Scope:
    """Conditions that are scored together: all of a plain screen, those of one setting of a divided one.

    Attributes
    ----------
    screen
        Their screen, of one control.
    rows
        Their places among the evaluated conditions.
    conditions
        As `screen` knows them.
    subgroups
        By how many of their genes training has seen.
    train
        What their reference is the mean of, as `screen` knows it.
    reference_mean_G
        That mean, where it is not that of `train` in `screen`.
    """

    screen: PreparedScreen
    rows: np.ndarray
    conditions: tuple[Condition, ...]
    subgroups: tuple[str, ...]
    train: tuple[Condition, ...]
    reference_mean_G: np.ndarray | None = None

    def named(self, table: pd.DataFrame) -> pd.DataFrame:
        """A table of these conditions that says in which setting they are, where there are any."""
        view = self.screen
        if not isinstance(view, SettingView):
            return table
        suffix = Condition(("A",), view.context, view.kind).suffix
        own = table["condition"].where(table["condition"] == EVERY, table["condition"] + suffix)
        return table.assign(condition=own, **{CONTEXT: view.context, KIND: view.kind})


def scopes_of(
    screen: PreparedScreen, conditions: Sequence[Condition], train: Sequence[Condition]
) -> list[Scope]:
    """What is scored together of some conditions, with training conditions `train`."""
    if not isinstance(screen, UnitScreen):
        every = np.arange(len(conditions))
        groups = tuple(seen_subgroups(conditions, train))
        return [Scope(screen, every, tuple(conditions), groups, tuple(train))]
    seen = {gene for unit in train for gene in unit.genes}
    scopes = []
    for view, rows in by_setting(screen, conditions):
        own = [conditions[row] for row in rows.tolist()]
        means = means_in(screen, view, train)
        groups = tuple(subgroup_name(unit, seen) for unit in own)
        plain = tuple(unit.plain for unit in own)
        scopes.append(Scope(view, rows, plain, groups, means.train, means.reference_mean()))
    return scopes


class BaselineBySetting:
    """A baseline in every setting of a screen: a method with ``fit(screen, split)`` and ``predict(conditions)``.

    Parameters
    ----------
    baseline
        Fitted anew in each setting, to what :func:`means_in` knows there. In a plain screen it is the baseline itself.
    """

    def __init__(self, baseline: Baseline) -> None:
        self.baseline = baseline

    def fit(self, screen: PreparedScreen, split: Split) -> BaselineBySetting:
        """Read what is needed of the training part."""
        self._screen, self._split = screen, split
        if not isinstance(screen, UnitScreen):
            self.baseline.fit(screen, split)
        return self

    def predict(self, conditions: Iterable[Condition | str]) -> np.ndarray:
        """Predicted mean expression, (U, G); NaN in settings that it cannot be fitted to, unless these are all.

        Raises
        ------
        ValueError
            It can be fitted to no setting.
        """
        chosen, screen = [Condition.of(condition) for condition in conditions], self._screen
        if not isinstance(screen, UnitScreen):
            return self.baseline.predict(chosen)
        predicted_UG = np.full((len(chosen), len(screen.gene_names)), np.nan)
        train, refused = training_conditions(self._split), []
        settings = by_setting(screen, chosen)
        for view, rows in settings:
            try:
                self.baseline.fit_means(means_in(screen, view, train))
            except ValueError as error:
                refused.append(error)
                log.warning("%s is left out of %s: %s", type(self.baseline).__name__, view.name, error)
            else:
                predicted_UG[rows] = self.baseline.predict([chosen[row].plain for row in rows.tolist()])
        if refused and len(refused) == len(settings):
            raise refused[0]
        return predicted_UG
