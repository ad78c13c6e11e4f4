"""What is known of one context from all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from gears.conditions import Condition
from gears.contexts.names import ModelContexts
from gears.data.unit_screen import SettingView, UnitScreen
from gears.evaluation.baselines.means_table import ConditionMeans
from gears.evaluation.truth import Truth


def model_contexts(screen: UnitScreen) -> ModelContexts:
    """Names and control means of a screen's contexts."""
    return ModelContexts(screen.contexts, screen.kinds, control_means(screen))


def control_means(screen: UnitScreen) -> np.ndarray:
    """Mean of each context's control cells, (K, G) float64, in the order of the names."""
    names = screen.contexts or ("",)
    ids = [screen.id_of(Condition((), name)) for name in names]
    return np.asarray(screen.statistics.mean[ids], dtype=np.float64)


def overall_control_mean(screen: UnitScreen) -> np.ndarray:
    """Mean over the control cells of all contexts, (G,)."""
    ids = screen.control_ids
    n_K = np.asarray(screen.statistics.n[ids], dtype=np.float64)
    return np.asarray(n_K @ screen.statistics.mean[ids] / n_K.sum(), dtype=np.float64)


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
