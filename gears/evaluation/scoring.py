"""The one scorer: predictions against the truth, setting by setting, for `evaluate` and `compare`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from gears.conditions import Condition
from gears.core.numbers import clips
from gears.core.options import Options, list_of_names, option, options, switch, whole
from gears.core.progress import followed
from gears.data.screen.prepared import PreparedScreen
from gears.data.splits.split import subgroup_names
from gears.evaluation.baselines.base import Baseline, ConditionMeans
from gears.evaluation.metrics.registry import ALL, DEFAULT, condition_metrics, get_metric, set_metrics
from gears.evaluation.predicted import Predicted
from gears.evaluation.scaled import half_scores, scaled_shares
from gears.evaluation.summary import EVERY
from gears.evaluation.truth import MAX_CELLS, ScreenCells, Truth

log = logging.getLogger(__name__)

_SAME = 0.01  # share of the true spread below which predictions count as the same

COLUMNS = ["condition", "subgroup", "n_cells", "method", "metric", "value"]
SCALED_COLUMNS = ["scaled", "half_value", "half_floor", "half_ceiling"]
STRATA = {"effect_size": ("1 weak", "2 medium", "3 strong"), "cell_number": ("1 few", "2 medium", "3 many")}
"""Columns that divide the conditions of a setting into thirds, by true effect and by number of cells."""
CONTEXT, KIND = "context", "perturbation_type"


def split_half(default: int) -> int:
    """The field `n_split_half`, whose default is 5 where several methods are compared."""
    return option(
        default=default,
        check=whole(0),
        help="""split-half repeats for scaled scores: how often each condition's cells are divided into two
        halves; 0: no scaled scores""",
        formerly="halvings",
    )


@options
class ScoreOptions(Options):
    """What is scored, and how."""

    kind = "scoring option"

    metrics: Sequence[str] = option(
        default=DEFAULT,
        check=list_of_names(),
        help="names of metrics; those over sets of conditions are computed per subgroup, for the condition '*'",
    )
    clip: bool | None = option(
        default=None,
        check=switch().or_none(),
        help="set negative predictions of every method to zero; by default where the screen has no values below 0",
    )
    n_split_half: int = split_half(0)
    seed: int = option(
        default=0, check=whole(0), help="seed of the split-half repeats and of the cells that are drawn"
    )
    max_cells: int = option(
        default=MAX_CELLS, check=whole(1), help="cells per condition that metrics over cells read"
    )
    mask_target: bool = option(
        default=False,
        check=switch(),
        help="exclude each condition's own target genes from its metrics; scaled scores count every gene",
    )

    def check_together(self) -> None:
        """Raise for unknown metrics, and where none has a value per condition."""
        if all(get_metric(name).scope == "set" for name in self.metrics):
            msg = f"metrics {list(self.metrics)} hold none with a value per condition; add one, such as 'mse'"
            raise ValueError(msg)


@dataclass(frozen=True)
class Setting:
    """Conditions that are scored together: those of one setting.

    Attributes
    ----------
    rows
        Positions of the conditions among all that are scored.
    means
        What baselines are fitted to here; the reference O is their mean (:func:`means_in`).
    """

    screen: PreparedScreen
    rows: np.ndarray
    conditions: tuple[Condition, ...]
    means: ConditionMeans

    def named(self, table: pd.DataFrame) -> pd.DataFrame:
        """A table of these conditions with the setting in their labels and in two columns, where it has a name."""
        view = self.screen
        if not view.suffix:
            return table
        labels = table["condition"].where(table["condition"] == EVERY, table["condition"] + view.suffix)
        return table.assign(condition=labels, **{CONTEXT: view.context, KIND: view.kind})


def score(
    predictions: Mapping[str, Any],
    conditions: Iterable[Condition | str],
    screen: PreparedScreen,
    part_screen: PreparedScreen,
    fitted: Sequence[Condition],
    options: ScoreOptions,
) -> pd.DataFrame:
    """Score the predictions of several methods for the same conditions, setting by setting.

    Parameters
    ----------
    predictions
        By method predicted means (U, G), :class:`gears.evaluation.Predicted` or :class:`gears.Predictions`. Metrics of
        standard deviations have rows for methods that state them. A method whose predictions are all NaN in a setting
        of a screen with several has no rows there.
    conditions
        The U conditions, each once.
    screen
        The screen that the methods were fitted on.
    part_screen
        The screen of the part that is scored: true changes count from its control cells.
    fitted
        The conditions that the methods are fitted to: the reference O is their mean, and subgroups count their genes.
    options
        What is scored, and how.

    Returns
    -------
    pd.DataFrame
        Columns ``condition``, ``subgroup``, ``n_cells``, ``method``, ``metric``, ``value`` (NaN where undefined),
        ``effect_size`` and ``cell_number`` (which third of the conditions, :data:`STRATA`); with split-half repeats
        also ``scaled`` (the condition's part in the mean scaled score over all conditions) and what it is made of:
        ``half_value``, ``half_floor`` (train mean), ``half_ceiling`` (other half); for screens with several
        settings also ``context`` and ``perturbation_type``. ``attrs["alike"]`` are methods whose predictions hardly
        differ between conditions.

    Raises
    ------
    ValueError
        There is no condition, or a prediction has another shape than (U, G).
    """
    chosen = [Condition.of(condition) for condition in conditions]
    if not chosen:
        msg = "there is no condition to evaluate; give the conditions of a part that is not empty"
        raise ValueError(msg)
    values = {
        name: Predicted.of(given, chosen, len(screen.gene_names), name) for name, given in predictions.items()
    }
    if clips(options.clip, screen.nonnegative):
        values = {name: predicted.clipped() for name, predicted in values.items()}
    subgroups = np.array(subgroup_names(chosen, fitted), dtype=object)
    tables = [
        _scored(setting, values, subgroups[setting.rows].tolist(), part_screen, options)
        for setting in settings_of(screen, chosen, fitted)
    ]
    table = pd.concat(tables, ignore_index=True)
    table.attrs["alike"] = [
        name for name, predicted in values.items() if _alike(predicted.mean_UG, chosen, screen)
    ]
    return table


def _alike(predicted_UG: np.ndarray, conditions: Sequence[Condition], screen: PreparedScreen) -> bool:
    """Whether predictions hardly differ between conditions: their spread is less than 1 % of the truth's.

    The spread is the root of the variances over conditions, within settings, summed over genes.
    """
    if len(conditions) < 2:
        return False
    squares = np.zeros(2)
    for _, rows in by_setting(screen, conditions):
        true_RG = screen.statistics.mean[[screen.id_of(conditions[row]) for row in rows.tolist()]]
        squares += [len(rows) * values.var(axis=0).sum() for values in (predicted_UG[rows], true_RG)]
    return bool(squares[0] < _SAME**2 * squares[1])


def _scored(
    setting: Setting,
    values: Mapping[str, Predicted],
    subgroups: Sequence[str],
    part_screen: PreparedScreen,
    options: ScoreOptions,
) -> pd.DataFrame:
    """Scores of one setting; `part_screen` is that of the part with all settings."""
    part_screen = part_screen.setting(setting.screen.context, setting.screen.kind)
    with_cells = any(get_metric(name).needs_cells for name in options.metrics)
    truth = Truth.of(
        part_screen,
        setting.conditions,
        cells=ScreenCells(part_screen, options.max_cells, options.seed) if with_cells else None,
        reference_mean_G=setting.means.reference_mean(),
    )
    predictions = {name: predicted.rows(setting.rows) for name, predicted in values.items()}
    if setting.screen.suffix:
        predicted_here = {name: own for name, own in predictions.items() if not np.isnan(own.mean_UG).all()}
        predictions = predicted_here or predictions
    methods = followed(predictions.items(), len(predictions), "scoring", "methods")
    tables = [_scores(name, own, truth, subgroups, options) for name, own in methods]
    table = pd.concat(tables, ignore_index=True)
    if options.n_split_half:
        table = _with_scaled(table, predictions, part_screen, truth, setting.means.reference_sd(), options)
    return setting.named(table.assign(**_strata(table, truth)))


def _strata(table: pd.DataFrame, truth: Truth) -> dict[str, pd.Series]:
    """The columns of :data:`STRATA`; conditions as large as each other are divided by their order."""
    sizes = {"effect_size": truth.effect_size_U, "cell_number": truth.n_cells_U}
    columns = {}
    for name, levels in STRATA.items():
        rank_U = np.argsort(np.argsort(sizes[name], kind="stable"), kind="stable")
        level_U = [levels[len(levels) * rank // len(rank_U)] for rank in rank_U.tolist()]
        by_label = dict(zip((one.name for one in truth.conditions), level_U, strict=True))
        columns[name] = table["condition"].map(by_label | {EVERY: ALL})
    return columns


def _scores(
    method: str, predicted: Predicted, truth: Truth, subgroups: Sequence[str], options: ScoreOptions
) -> pd.DataFrame:
    """Values of one method, tidy."""
    used = [name for name in options.metrics if predicted.sd_UG is not None or not get_metric(name).needs_sd]
    single = [name for name in used if get_metric(name).scope == "condition"]
    values_UM = condition_metrics(
        predicted.mean_UG, truth, single, sd_UG=predicted.sd_UG, mask_target=options.mask_target
    )
    labels = [condition.name for condition in truth.conditions]
    records = [
        (label, subgroup, int(n_cells), method, name, float(value))
        for label, subgroup, n_cells, row in zip(labels, subgroups, truth.n_cells_U, values_UM, strict=True)
        for name, value in zip(single, row, strict=True)
    ]
    whole = [name for name in used if name not in single]
    if whole:
        groups: dict[str, np.ndarray] = {ALL: np.arange(len(labels))}
        groups |= {name: np.flatnonzero(np.array(subgroups) == name) for name in sorted(set(subgroups))}
        for group, rows in groups.items():
            values = set_metrics(predicted.mean_UG[rows], truth.subset(rows), whole)
            n_cells = int(truth.n_cells_U[rows].sum())
            records += [(EVERY, group, n_cells, method, name, value) for name, value in values.items()]
    return pd.DataFrame(records, columns=COLUMNS)


def _with_scaled(
    table: pd.DataFrame,
    predictions: Mapping[str, Predicted],
    screen: PreparedScreen,
    truth: Truth,
    reference_sd_G: np.ndarray | None,
    options: ScoreOptions,
) -> pd.DataFrame:
    """The table with the columns of scaled scores; NaN for metrics over cells or over sets of conditions."""
    metrics = list(dict.fromkeys(table.loc[table["condition"] != EVERY, "metric"]))
    halves = half_scores(
        predictions, screen, truth, metrics, reference_sd_G, n=options.n_split_half, seed=options.seed
    )
    labels = [condition.name for condition in truth.conditions]
    parts = []
    for method, values_UM in halves.values.items():
        for column, name in enumerate(metrics):
            three = (values_UM[:, column], halves.floor_UM[:, column], halves.ceiling_UM[:, column])
            scaled = scaled_shares(*three, higher_is_better=get_metric(name).higher_is_better is not False)
            columns = dict(zip(SCALED_COLUMNS, (scaled, *three), strict=True))
            parts.append(pd.DataFrame({"condition": labels, "method": method, "metric": name, **columns}))
    return table.merge(pd.concat(parts, ignore_index=True), on=["condition", "method", "metric"], how="left")


# -- settings ------------------------------------------------------------------------------


def by_setting(
    screen: PreparedScreen, conditions: Sequence[Condition]
) -> list[tuple[PreparedScreen, np.ndarray]]:
    """Every setting with some of the conditions, and their positions among `conditions`."""
    rows_of: dict[tuple[str, str], list[int]] = {}
    for row, condition in enumerate(conditions):
        rows_of.setdefault((condition.context, condition.kind), []).append(row)
    pairs = [(view, rows_of.get((view.context, view.kind))) for view in screen.settings]
    return [(view, np.array(rows, dtype=np.int64)) for view, rows in pairs if rows]


def settings_of(
    screen: PreparedScreen, conditions: Sequence[Condition], fitted: Sequence[Condition]
) -> list[Setting]:
    """The settings of some conditions, with what baselines are fitted to in each."""
    return [
        Setting(
            view, rows, tuple(conditions[row].plain for row in rows.tolist()), means_in(screen, view, fitted)
        )
        for view, rows in by_setting(screen, conditions)
    ]


def means_in(screen: PreparedScreen, view: PreparedScreen, fitted: Iterable[Condition]) -> ConditionMeans:
    """Condition means as a method without a network reads them in one setting.

    A condition that is fitted in this setting has its measured mean. One that is fitted in others only has
    this setting's control mean plus its mean change there (of the same type of perturbation), each
    context once: what it would be if contexts did not matter.
    """
    same = [one for one in fitted if one.kind == view.kind and not one.is_control]
    here = dict.fromkeys(one.plain for one in same if one.context == view.context)
    means = ConditionMeans.of(view, here, screen)
    elsewhere: dict[Condition, list[Condition]] = {}
    for one in same:
        if one.context != view.context and one.plain not in here:
            elsewhere.setdefault(one.plain, []).append(one)
    if not elsewhere:
        return means
    changes = [
        screen.statistics.delta(np.array(list(map(screen.id_of, ones)))) for ones in elsewhere.values()
    ]
    moved_MG = means.control_mean_G + np.array([change.mean(axis=0) for change in changes])
    measured = [row for row, one in enumerate(means.conditions) if one not in elsewhere]
    conditions = (*elsewhere, *(means.conditions[row] for row in measured))
    n_cells = dict(zip(means.conditions, np.asarray(means.n_cells_C).tolist(), strict=True))
    return ConditionMeans(
        np.concatenate([moved_MG, means.mean_CG[measured]]),
        conditions,
        np.array([conditions.index(one) for one in (*elsewhere, *means.train)], dtype=np.int64),
        means.gene_names,
        np.array([n_cells.get(one, 1.0) for one in conditions]),
        means.nonnegative,
        means.profiles,
    )


def predict_baseline(
    baseline: Baseline, settings: Sequence[Setting], name: str
) -> tuple[Predicted, dict[str, str]]:
    """Fit a baseline in every setting and predict the conditions there.

    Returns its predictions, NaN in settings that it cannot be fitted to, and why, by `name` and setting.
    Raises ValueError if it can be fitted to no setting.
    """
    n_conditions = sum(len(setting.rows) for setting in settings)
    predicted_UG = np.full((n_conditions, len(settings[0].screen.gene_names)), np.nan)
    sd_UG = predicted_UG.copy()
    errors: dict[str, ValueError] = {}
    for setting in settings:
        try:
            baseline.fit_means(setting.means)
        except ValueError as error:
            errors[f"{name}{setting.screen.suffix}"] = error
        else:
            predicted_UG[setting.rows] = baseline.predict(setting.conditions)
            if baseline.sd_G is not None:
                sd_UG[setting.rows] = baseline.sd_G
    if len(errors) == len(settings):
        raise next(iter(errors.values()))
    left_out = {where: str(error) for where, error in errors.items()}
    for where, reason in left_out.items():
        log.warning("%s is excluded: %s", where, reason)
    return Predicted(predicted_UG, None if np.isnan(sd_UG).any() else sd_UG), left_out
