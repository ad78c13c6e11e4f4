"""The one scorer: predictions against the truth, setting by setting, for `evaluate` and `compare`.

Scaled scores say where a method stands between the train mean (0) and half of the condition's own cells (1).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.conditions import Condition
from gears.core._numbers import clips
from gears.core._options import Options, list_of_names, option, options, switch, whole
from gears.core._progress import followed
from gears.data.screen._packs import half_means
from gears.data.splits._split import subgroup_names
from gears.evaluation._fitted import Setting, by_setting, settings_of
from gears.evaluation._rows import changes
from gears.evaluation.metrics._registry import ALL, DEFAULT, EVERY, condition_metrics, get_metric, set_metrics
from gears.evaluation.truth import MAX_CELLS, ScreenCells, Truth

if TYPE_CHECKING:
    from gears.data.screen._prepared import PreparedScreen
    from gears.evaluation.baselines._base import Baseline

log = logging.getLogger(__name__)

N_SPLIT_HALF = 5
"""Split-half repeats: how often each condition's cells are divided into two halves, by default."""
_SAME = 0.01  # share of the true spread below which predictions count as the same
COLUMNS = ["condition", "subgroup", "n_cells", "method", "metric", "value"]
SCALED_COLUMNS = ["scaled", "half_value", "half_floor", "half_ceiling"]
STRATA = {"effect_size": ("1 weak", "2 medium", "3 strong"), "cell_number": ("1 few", "2 medium", "3 many")}
"""Columns that divide the conditions of a setting into thirds, by true effect and by number of cells."""
_FLOOR, _CEILING = "<train mean>", "<other half>"


@dataclass(frozen=True)
class Predicted:
    """Predicted mean expression of U conditions, (U, G) float64; `sd_UG` is its standard deviation, or None."""

    mean_UG: np.ndarray
    sd_UG: np.ndarray | None = None

    @classmethod
    def of(
        cls, predicted: object, conditions: Sequence[Condition], n_genes: int, name: str = "the method"
    ) -> Predicted:
        """From an array of means, from :class:`gears.Predictions` or another of these; ValueError for another shape."""
        mean: Any = getattr(predicted, "expression_UG", predicted)
        sd: Any = getattr(predicted, "sd", None)
        if isinstance(predicted, cls):
            mean, sd = predicted.mean_UG, predicted.sd_UG
        mean_UG = np.asarray(mean, dtype=np.float64)
        if mean_UG.shape != (len(conditions), n_genes):
            msg = (
                f"{name} predicts an array of shape {mean_UG.shape}; expected {(len(conditions), n_genes)}: one row "
                "per condition, one column per gene"
            )
            raise ValueError(msg)
        return cls(mean_UG, None if sd is None else np.asarray(sd, dtype=np.float64))

    def clipped(self) -> Predicted:
        """With means below 0 set to 0."""
        return dataclasses.replace(self, mean_UG=np.maximum(self.mean_UG, 0.0))

    @classmethod
    def joined(cls, parts: Sequence[Predicted]) -> Predicted:
        """The rows of several; with standard deviations where all have them."""
        sd = [part.sd_UG for part in parts if part.sd_UG is not None]
        mean_UG = np.concatenate([part.mean_UG for part in parts])
        return cls(mean_UG, np.concatenate(sd) if len(sd) == len(parts) else None)

    def rows(self, rows: np.ndarray) -> Predicted:
        """Of some conditions."""
        return Predicted(self.mean_UG[rows], None if self.sd_UG is None else self.sd_UG[rows])


def split_half(default: int) -> int:
    """The field `n_split_half`, whose default is 5 where several methods are compared."""
    text = "split-half repeats for scaled scores: how often each condition's cells are divided into two halves; "
    return option(default, whole(0), formerly="halvings", help=f"{text}0: no scaled scores")


@options
class ScoreOptions(Options):
    """What is scored, and how."""

    kind = "scoring option"

    # fmt: off
    _: KW_ONLY
    metrics: Sequence[str] = option(DEFAULT, list_of_names(),
        help="names of metrics; those over sets of conditions are computed per subgroup, for the condition '*'")
    clip: bool | None = option(None, switch().or_none(), command="",
        help="set negative predictions of every method to zero; by default where the screen has no values below 0")
    n_split_half: int = split_half(0)
    seed: int = option(0, whole(0), command="",
        help="seed of the split-half repeats and of the cells that are drawn")
    max_cells: int = option(MAX_CELLS, whole(1), command="",
        help="cells per condition that metrics over cells read")
    mask_target: bool = option(False, switch(), command="",
        help="exclude each condition's own target genes from its metrics; scaled scores count every gene")
    # fmt: on

    def check_together(self) -> None:
        """Raise for unknown metrics, and where none has a value per condition."""
        if all(get_metric(name).scope == "set" for name in self.metrics):
            msg = f"metrics {list(self.metrics)} hold none with a value per condition; add one, such as 'mse'"
            raise ValueError(msg)


def score(
    predictions: Mapping[str, Any],
    conditions: Iterable[Condition | str],
    screen: PreparedScreen,
    part_screen: PreparedScreen,
    fitted: Sequence[Condition],
    options: ScoreOptions,
    fold: np.ndarray | None = None,
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
    fold
        Fold of each condition, where `fitted` are the same conditions and the methods were fitted to the other folds:
        O is the mean of these, and subgroups count their genes.

    Returns
    -------
    pd.DataFrame
        Columns ``condition``, ``subgroup``, ``n_cells``, ``method``, ``metric``, ``value`` (NaN where undefined),
        ``reason`` (why it is), ``effect_size`` and ``cell_number`` (which third of the conditions, :data:`STRATA`);
        with split-half repeats also ``scaled`` (the condition's part in the mean scaled score over all conditions) and
        what it is made of: ``half_value``, ``half_floor`` (train mean), ``half_ceiling`` (other half); for screens with
        several settings also ``context`` and ``perturbation_type``. ``attrs["alike"]`` are methods whose
        predictions hardly differ between conditions.

    Raises
    ------
    ValueError
        There is no condition, or a prediction has another shape than (U, G).
    """
    evaluated = [Condition.of(condition) for condition in conditions]
    if not evaluated:
        msg = "there is no condition to evaluate; give the conditions of a part that is not empty"
        raise ValueError(msg)
    values = {name: Predicted.of(means, evaluated, len(screen.gene_names), name) for name, means in predictions.items()}
    if clips(options.clip, screen.nonnegative):
        values = {name: predicted.clipped() for name, predicted in values.items()}
    reference_UG, subgroups = None, np.array(subgroup_names(evaluated, fitted), dtype=object)
    if fold is not None:
        reference_UG = np.empty((len(evaluated), len(screen.gene_names)))
        for rows, held_out, known in by_fold(evaluated, fold):
            subgroups[rows] = subgroup_names(held_out, known)
            for setting in settings_of(screen, held_out, known):
                reference_UG[rows[setting.rows]] = setting.means.reference_mean()
    tables = [
        _scored(setting, values, subgroups[setting.rows].tolist(), part_screen, options, reference_UG)
        for setting in settings_of(screen, evaluated, fitted)
    ]
    table = pd.concat(tables, ignore_index=True)
    table.attrs["alike"] = [name for name, predicted in values.items() if _alike(predicted.mean_UG, evaluated, screen)]
    return table


def by_fold(
    conditions: Sequence[Condition], fold_U: np.ndarray
) -> Iterator[tuple[np.ndarray, list[Condition], list[Condition]]]:
    """Of each fold the rows of its conditions, these, and those of the other folds."""
    for fold in np.unique(fold_U).tolist():
        held_out, known = (
            [conditions[row] for row in np.flatnonzero(inside).tolist()] for inside in (fold_U == fold, fold_U != fold)
        )
        yield np.flatnonzero(fold_U == fold), held_out, known


def _alike(predicted_UG: np.ndarray, conditions: Sequence[Condition], screen: PreparedScreen) -> bool:
    """Whether predictions hardly differ between conditions: within settings, by less than 1 % of the truth's spread."""
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
    reference_UG: np.ndarray | None,
) -> pd.DataFrame:
    """Scores of one setting; `part_screen` is that of the part with all settings."""
    part_screen, means = part_screen.setting(setting.screen.context, setting.screen.kind), setting.means
    with_cells = any(get_metric(name).needs_cells for name in options.metrics)
    truth = Truth.of(
        part_screen,
        setting.conditions,
        cells=ScreenCells(part_screen, options.max_cells, options.seed)
        if with_cells and part_screen.has_cells
        else None,
        reference_mean_G=means.reference_mean() if reference_UG is None else reference_UG[setting.rows],
    )
    predictions = {name: predicted.rows(setting.rows) for name, predicted in values.items()}
    if setting.screen.suffix:
        predicted_here = {
            name: predicted for name, predicted in predictions.items() if not np.isnan(predicted.mean_UG).all()
        }
        # a method without predictions here has no rows; where none has any, all are undefined
        predictions = predicted_here or predictions
    methods = followed(predictions.items(), len(predictions), "scoring", "methods")
    tables = [_scores(name, predicted, truth, subgroups, options) for name, predicted in methods]
    table = pd.concat(tables, ignore_index=True)
    if options.n_split_half:
        table = _with_scaled(table, predictions, part_screen, truth, means.reference_sd(), options)
    return setting.named(table.assign(**_strata(table, truth)))


def _strata(table: pd.DataFrame, truth: Truth) -> dict[str, pd.Series]:
    """The columns of :data:`STRATA`; conditions as large as each other are divided by their order."""
    sizes = {"effect_size": truth.effect_size_U, "cell_number": truth.n_cells_U}
    columns = {}
    for name, levels in STRATA.items():
        rank_U = np.argsort(np.argsort(sizes[name], kind="stable"), kind="stable")
        level_U = [levels[len(levels) * rank // len(rank_U)] for rank in rank_U.tolist()]
        by_label = dict(zip((condition.name for condition in truth.conditions), level_U, strict=True))
        columns[name] = table["condition"].map(by_label | {EVERY: ALL})
    return columns


def _scores(
    method: str, predicted: Predicted, truth: Truth, subgroups: Sequence[str], options: ScoreOptions
) -> pd.DataFrame:
    used = [name for name in options.metrics if predicted.sd_UG is not None or not get_metric(name).needs_sd]
    single = [name for name in used if get_metric(name).scope == "condition"]
    values_UM = condition_metrics(
        predicted.mean_UG, truth, single, sd_UG=predicted.sd_UG, mask_target=options.mask_target
    )
    labels = [condition.name for condition in truth.conditions]
    why = [reasons(name, values_UM[:, column], predicted.mean_UG, truth) for column, name in enumerate(single)]
    records = [
        (label, subgroup, int(n_cells), method, name, float(value), why[column][row])
        for row, (label, subgroup, n_cells) in enumerate(zip(labels, subgroups, truth.n_cells_U, strict=True))
        for column, (name, value) in enumerate(zip(single, values_UM[row], strict=True))
    ]
    whole = [name for name in used if name not in single]
    if whole:
        groups: dict[str, np.ndarray] = {ALL: np.arange(len(labels))}
        groups |= {name: np.flatnonzero(np.array(subgroups) == name) for name in sorted(set(subgroups))}
        for group, rows in groups.items():
            values = set_metrics(predicted.mean_UG[rows], truth.subset(rows), whole)
            n_cells = int(truth.n_cells_U[rows].sum())
            records += [
                (EVERY, group, n_cells, method, name, value, OTHER if np.isnan(value) else "")
                for name, value in values.items()
            ]
    return pd.DataFrame(records, columns=[*COLUMNS, "reason"])


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
    halves = half_scores(predictions, screen, truth, metrics, reference_sd_G, n=options.n_split_half, seed=options.seed)
    labels = [condition.name for condition in truth.conditions]
    parts = []
    for method, values_UM in halves.values.items():
        for column, name in enumerate(metrics):
            half_values = (values_UM[:, column], halves.floor_UM[:, column], halves.ceiling_UM[:, column])
            scaled = scaled_shares(*half_values, higher_is_better=get_metric(name).higher_is_better is not False)
            columns = dict(zip(SCALED_COLUMNS, (scaled, *half_values), strict=True))
            parts.append(pd.DataFrame({"condition": labels, "method": method, "metric": name, **columns}))
    return table.merge(pd.concat(parts, ignore_index=True), on=["condition", "method", "metric"], how="left")


@dataclasses.dataclass(frozen=True)
class HalfScores:
    """Scores against held-out halves of the cells, averaged over split-half repeats."""

    values: dict[str, np.ndarray]  # per method its values, (U, M)
    # floor_UM, ceiling_UM: values of the train mean, and of the other half's mean: the split-half noise ceiling
    floor_UM: np.ndarray
    ceiling_UM: np.ndarray


def split_halves(
    screen: PreparedScreen, truth: Truth, n: int = N_SPLIT_HALF, *, seed: int = 0
) -> Iterator[tuple[Truth, np.ndarray]]:
    """Divide each condition's cells at random into two halves, `n` times.

    Yields the truth with means and cell numbers of one half (differential genes and standard deviations stay those of
    all cells), and the means of the other half; NaN for a condition of one cell.
    """
    for repeat in followed(range(n), n, "split-half repeats", "repeats"):
        pairs = [half_means(screen, screen.id_of(condition), seed, [repeat]) for condition in truth.conditions]
        halves_U2G, n_U2 = np.concatenate([means for means, _ in pairs]), np.stack([n for _, n in pairs])
        yield truth.with_means(halves_U2G[:, 0], n_U2[:, 0]), halves_U2G[:, 1]


def half_scores(
    predictions: Mapping[str, Predicted],
    screen: PreparedScreen,
    truth: Truth,
    metrics: Sequence[str],
    reference_sd_G: np.ndarray | None = None,
    *,
    n: int = N_SPLIT_HALF,
    seed: int = 0,
) -> HalfScores:
    """Score methods, the train mean and the other half against the same held-out halves.

    `truth` holds the evaluated conditions whole (no shard). Metrics over cells stay NaN. `reference_sd_G` is the
    standard deviation of the train mean's errors; that of the other half is its sampling error.
    """
    used = [column for column, name in enumerate(metrics) if not get_metric(name).needs_cells]
    names = [metrics[column] for column in used]
    shape = (len(truth.conditions), len(names))
    once_U = np.ones((len(truth.conditions), 1))
    floor_sd_UG = None if reference_sd_G is None else once_U * reference_sd_G
    methods = {**predictions, _FLOOR: Predicted(once_U * truth.reference_mean_G, floor_sd_UG)}
    # sum of the defined values, and their number
    sums = {method: np.zeros((2, *shape)) for method in (*methods, _CEILING)}
    for held_out, other_UG in split_halves(screen, truth, n, seed=seed):
        n_other_U = np.maximum(truth.n_cells_U - held_out.n_cells_U, 1)
        other = Predicted(other_UG, truth.std_UG / np.sqrt(n_other_U)[:, None])
        # conditions without a second half are excluded, also as what others are compared with
        whole_U = np.isfinite(held_out.mean_UG).all(axis=1)
        if not whole_U.any():
            continue
        both = held_out if whole_U.all() else held_out.subset(whole_U).as_panel()
        for method, predicted in {**methods, _CEILING: other}.items():
            values = np.full(shape, np.nan)
            predicted = predicted.rows(whole_U)
            values[whole_U] = condition_metrics(predicted.mean_UG, both, names, sd_UG=predicted.sd_UG)
            defined = np.isfinite(values)
            sums[method] += np.stack([np.where(defined, values, 0.0), defined])
    whole = {method: np.full((len(truth.conditions), len(metrics)), np.nan) for method in sums}
    for method, (total, count) in sums.items():
        whole[method][:, used] = np.divide(total, count, out=np.full(shape, np.nan), where=count > 0)
    floor_UM, ceiling_UM = whole.pop(_FLOOR), whole.pop(_CEILING)
    if np.isnan(truth.reference_mean_G).any():  # without training conditions nothing is 0 on the scale
        ceiling_UM[:] = np.nan
    return HalfScores(whole, floor_UM, ceiling_UM)


def scaled_shares(
    value_U: np.ndarray, floor_U: np.ndarray, ceiling_U: np.ndarray, *, higher_is_better: bool
) -> np.ndarray:
    """(value - floor) / mean(ceiling - floor) of each condition, (U,); their mean is the scaled score."""
    kept = np.isfinite(value_U) & np.isfinite(ceiling_U)
    floor_U = np.where(np.isnan(floor_U), 0.0, floor_U)
    span = float((ceiling_U - floor_U)[kept].mean()) if kept.any() else 0.0
    if not (span > 0 if higher_is_better else span < 0):
        return np.full(len(value_U), np.nan)
    return np.where(kept, (value_U - floor_U) / span, np.nan)


def predict_baseline(baseline: Baseline, settings: Sequence[Setting], name: str) -> tuple[Predicted, dict[str, str]]:
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


NO_PREDICTION, NO_TRAINING, NOT_ASKED = "no finite prediction", "no training condition", "not asked"
ONE_CELL, NO_CHANGED, NO_HIT = "one cell", "no changed gene", "not among the largest effects"
CONSTANT, OTHER = "constant prediction", "undefined"
_OF_CHANGED = ("direction_changed", "hit_recall", "average_precision", "relative_error", "de_")
_RATE = 0.05  # of false discoveries, as in gears.evaluation.metrics.differential
_OF_REFERENCE = ("_ref", "relative_error", "amplitude_slope")


def reasons(name: str, value_U: np.ndarray, predicted_UG: np.ndarray, truth: Truth) -> list[str]:
    """Why each value of a metric is undefined, "" where it is not: no changed gene, one cell, constant prediction, ...

    "not asked": the metric reads what the truth was made without, such as cells or a ranking of genes.
    """
    undefined = np.isnan(value_U)
    if not undefined.any():
        return [""] * len(value_U)
    metric = get_metric(name)
    changed_UG = truth.adjusted_p_UG < _RATE
    for row, genes in enumerate(truth.targets):
        changed_UG[row, genes] = False  # no metric of changed genes is undefined where others change
    lacks = (metric.needs_cells and truth.cells is None) or (metric.needs_de and not any(map(len, truth.top_de)))
    reason_U = []
    for row, is_undefined in enumerate(undefined.tolist()):
        if not is_undefined:
            reason_U.append("")
        elif not np.isfinite(predicted_UG[row]).all():
            reason_U.append(NO_PREDICTION)
        elif np.isnan(truth.reference_mean_G).any() and name.endswith(_OF_REFERENCE):
            reason_U.append(NO_TRAINING)
        elif lacks:
            reason_U.append(NOT_ASKED)
        elif truth.n_cells_U[row] == 1:
            reason_U.append(ONE_CELL)
        elif name.startswith(_OF_CHANGED) and not changed_UG[row].any():
            reason_U.append(NO_CHANGED)
        elif name.startswith("size_recall"):
            reason_U.append(NO_HIT)
        else:
            reason_U.append(CONSTANT if _is_constant(name, predicted_UG, truth, row) else OTHER)
    return reason_U


def _is_constant(name: str, predicted_UG: np.ndarray, truth: Truth, row: int) -> bool:
    """Whether a condition's prediction does not differ between genes, as the metric sees it."""
    origin = truth.reference_mean_G if name.endswith(_OF_REFERENCE) else truth.control_mean_G
    origin = origin[row] if origin.ndim == 2 else origin
    one = predicted_UG[[row]]
    return any(float(np.ptp(values)) <= 1e-9 for values in (changes(one, origin)[0], one))
