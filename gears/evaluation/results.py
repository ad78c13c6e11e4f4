"""A tidy table with its averages, differences and verdicts, written as CSV and JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from gears.evaluation.intervals import DEFAULT_BOOTSTRAP, Bootstrap, difference_table, interval_table
from gears.evaluation.metrics.registry import ALL
from gears.evaluation.scoring import STRATA
from gears.evaluation.summary import model_name, notes_on
from gears.evaluation.verdict import verdict, verdict_table
from gears.files.formats import write_json, write_text
from gears.files.paths import check_folder

_TABLES = ("evaluation", "summary", "differences")


def check_report_folder(folder: str | Path, what: str) -> Path:
    """Check that a report can be written into a folder, before any work is done; `what` names it in messages.

    An earlier report there is replaced. FileExistsError where the folder has files of a report's names and no report,
    and the errors of :func:`gears.files.paths.check_folder`.
    """
    path = check_folder(folder, what)
    names = [*(f"{table}.csv" for table in _TABLES), "report.html"]
    there = [name for name in names if (path / name).exists()]
    if there and not (path / "evaluation.json").exists():
        msg = f"{what} {path} holds {', '.join(there)}, which are not of a report; choose another folder"
        raise FileExistsError(msg)
    return path


@dataclass(frozen=True)
class Results:
    """A tidy table with its averages, differences and verdicts.

    Attributes
    ----------
    table
        Tidy scores (:func:`gears.evaluation.comparison_table`).
    summary, differences
        :func:`gears.evaluation.interval_table` and, for every model, :func:`gears.evaluation.difference_table`.
    strata
        :func:`gears.evaluation.interval_table` by size of the effect and by number of cells, with both as columns
        ``stratum`` and ``subgroup``.
    verdicts, decisive
        :func:`gears.evaluation.verdict` and :func:`gears.evaluation.verdict_table` by model.
    runs
        Cost of every fit (:class:`gears.evaluation.Comparison`), where it was measured.
    left_out
        Methods that were excluded, with the reason.
    """

    title: str
    table: pd.DataFrame
    summary: pd.DataFrame
    differences: pd.DataFrame
    strata: pd.DataFrame
    verdicts: Mapping[str, str]
    decisive: pd.DataFrame
    runs: pd.DataFrame | None
    left_out: Mapping[str, str]
    details: Mapping[str, str]
    level: float

    @classmethod
    def of(
        cls,
        table: pd.DataFrame,
        *,
        title: str = "Evaluation",
        models: Sequence[str] = (),
        runs: pd.DataFrame | None = None,
        left_out: Mapping[str, str] | None = None,
        details: Mapping[str, str] | None = None,
        bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    ) -> Results:
        """Derive averages, differences and verdicts from a table.

        Parameters
        ----------
        models
            Methods that are compared with all others; by default the table's first.
        left_out
            Excluded methods with the reason; by default those of the table's attributes.
        """
        models = list(models) or [model_name(table)]
        differences = [difference_table(table, bootstrap, method=m).assign(model=m) for m in models]
        decisive = [verdict_table(table, method=m, bootstrap=bootstrap).assign(model=m) for m in models]
        return cls(
            title=title,
            table=table,
            summary=interval_table(table, bootstrap),
            differences=pd.concat(differences, ignore_index=True),
            strata=_strata(table, bootstrap),
            verdicts={m: verdict(table, method=m, bootstrap=bootstrap) for m in models},
            decisive=pd.concat(decisive, ignore_index=True),
            runs=runs,
            left_out=dict(table.attrs.get("left_out", {}) if left_out is None else left_out),
            details=dict(details or {}),
            level=bootstrap.level,
        )

    @property
    def notes(self) -> list[str]:
        """Remarks about the table."""
        return notes_on(self.table)

    def save(self, folder: str | Path) -> dict[str, Path]:
        """Write three CSV files and one JSON file, and return their paths by content."""
        folder = check_report_folder(folder, "the report's folder")
        frames = {"table": self.table, "summary": self.summary, "differences": self.differences}
        written = {}
        for (name, frame), file in zip(frames.items(), _TABLES, strict=True):
            written[name] = write_text(folder / f"{file}.csv", frame.to_csv(index=False))
        return written | {"json": write_json(folder / "evaluation.json", self._plain())}

    def _plain(self) -> dict[str, Any]:
        """All content as JSON values; undefined numbers as null."""
        return {
            "title": self.title,
            "details": self.details,
            "verdicts": self.verdicts,
            "decisive": _records(self.decisive),
            "notes": self.notes,
            "left_out": self.left_out,
            "summary": _records(self.summary),
            "strata": _records(self.strata),
            "differences": _records(self.differences),
            "runs": [] if self.runs is None else _records(self.runs),
            "table": _records(self.table),
        }


def _strata(table: pd.DataFrame, bootstrap: Bootstrap) -> pd.DataFrame:
    """Averages by each of :data:`gears.evaluation.scoring.STRATA` that the table has."""
    parts = [
        interval_table(table, bootstrap, by=name).assign(stratum=name) for name in STRATA if name in table
    ]
    if not parts:
        return pd.DataFrame()
    strata = pd.concat(parts, ignore_index=True)
    return strata[strata["subgroup"] != ALL].reset_index(drop=True)


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    rows = frame.to_dict("records")
    return [{str(key): _finite(value) for key, value in row.items()} for row in rows]


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def run_costs(runs: pd.DataFrame) -> pd.DataFrame:
    """Per method: runs, median seconds and CPU seconds, greatest peak memory (MB)."""
    groups = runs.groupby("method", sort=False)
    return groups.agg(
        runs=("seconds", "size"),
        seconds=("seconds", "median"),
        cpu_seconds=("cpu_seconds", "median"),
        peak_mb=("peak_mb", "max"),
    ).reset_index()
