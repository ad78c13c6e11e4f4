"""What a comparison of methods is asked for, and what it gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from gears.evaluation.baselines import DEFAULT_BASELINES, make_baseline
from gears.evaluation.halving import HALVINGS
from gears.evaluation.intervals import DEFAULT_BOOTSTRAP, Bootstrap, difference_table, interval_table
from gears.evaluation.scoring import ScoreOptions
from gears.evaluation.verdict import verdict
from gears.messages import unknown_name

RUN_COLUMNS = ["split", "seed", "method", "n_train", "n_test", "seconds", "cpu_seconds", "peak_mb"]


@dataclass(frozen=True)
class CompareOptions(ScoreOptions):
    """What is compared, beside the options of the scorer (:class:`gears.evaluation.ScoreOptions`).

    Parameters
    ----------
    halvings
        As for the scorer, by default 5.
    part
        Part of each split that is evaluated.
    baselines
        Names; every baseline is fitted to every split.
    """

    halvings: int = HALVINGS
    part: str = "test"
    baselines: Sequence[str] = DEFAULT_BASELINES

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.baselines:
            make_baseline(name)


@dataclass(frozen=True)
class Comparison:
    """What :func:`compare` returns.

    Attributes
    ----------
    table
        Tidy: ``split``, ``seed``, ``condition``, ``subgroup``, ``n_cells``, ``method``, ``metric``,
        ``value``, and with halvings ``scaled``, ``half_value``, ``half_floor``, ``half_ceiling``; of screens with
        contexts also ``context`` and ``perturbation_type``.
    runs
        Cost of every fit with its prediction: ``split``, ``seed``, ``method``, ``n_train`` (conditions that it
        was fitted to), ``n_test``, ``seconds``, ``cpu_seconds``, ``peak_mb``.
    models
        Names of the methods that are no baselines.
    left_out
        What was left out and why: by method, or method and split.
    """

    table: pd.DataFrame
    runs: pd.DataFrame
    models: tuple[str, ...]
    left_out: dict[str, str] = field(default_factory=dict)

    def summary(self, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> pd.DataFrame:
        """Means and scaled scores with intervals (:func:`gears.evaluation.intervals.interval_table`)."""
        return interval_table(self.table, bootstrap)

    def differences(self, model: str | None = None, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> pd.DataFrame:
        """A model against every other method (:func:`gears.evaluation.intervals.difference_table`)."""
        return difference_table(self.table, bootstrap, method=self._model(model))

    def verdict(self, model: str | None = None) -> str:
        """One line on whether the model is better than the best baseline of each decisive metric."""
        return verdict(self.table, method=self._model(model))

    def costs(self) -> pd.DataFrame:
        """Per method: runs, median seconds and CPU seconds, greatest peak memory (MB)."""
        groups = self.runs.groupby("method", sort=False)
        return groups.agg(
            runs=("seconds", "size"),
            seconds=("seconds", "median"),
            cpu_seconds=("cpu_seconds", "median"),
            peak_mb=("peak_mb", "max"),
        ).reset_index()

    def save(self, folder: str | Path, *, title: str = "Comparison") -> dict[str, Path]:
        """Write CSV, JSON and the HTML page into a folder (:func:`gears.evaluation.report.write_report`)."""
        from gears.evaluation.report import write_report

        return write_report(
            self.table, folder, title=title, runs=self.runs, models=self.models, left_out=self.left_out
        )

    def _model(self, model: str | None) -> str:
        if model is None:
            return self.models[0] if self.models else str(self.table["method"].iloc[0])
        names = list(dict.fromkeys(self.table["method"]))
        if model not in names:
            raise ValueError(unknown_name("method", model, names))
        return model
