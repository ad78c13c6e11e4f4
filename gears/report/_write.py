"""Write a report: tables as CSV, everything as JSON, figures as PNG and SVG, and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from gears.evaluation.compare import Comparison
from gears.evaluation.intervals import DEFAULT_BOOTSTRAP, Bootstrap
from gears.evaluation.verdict import Results
from gears.files._atomic import write_atomically
from gears.files._paths import user_path
from gears.files.formats import write_text
from gears.plotting._style import image_bytes
from gears.report._figures import Profiles, report_figures
from gears.report._page import build_page


def write_report(
    evaluation: pd.DataFrame | Comparison,
    folder: str | Path,
    *,
    title: str | None = None,
    models: Sequence[str] = (),
    runs: pd.DataFrame | None = None,
    left_out: Mapping[str, str] | None = None,
    profiles: Profiles | None = None,
    details: Mapping[str, str] | None = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> dict[str, Path]:
    """Write the page of an evaluation into a folder, with its tables as CSV and JSON and its figures.

    Parameters
    ----------
    evaluation
        The result of :func:`gears.evaluation.compare`, or a tidy table such as that of
        :func:`gears.evaluation.comparison_table`.
    folder
        Folder of the report, created if missing; an earlier report there is replaced.
    title
        Title of the page; "Comparison" or "Evaluation" by default.
    models
        Methods that are compared with all others; by default the models of the comparison, or the table's first.
    runs, left_out
        Costs of fits, and excluded methods with the reason; by default those of the comparison or the table.
    profiles
        Profiles for the figures of changes; without them the page has no such figures.
    details
        Further facts about the data, by name.
    bootstrap
        Options of the intervals.

    Returns
    -------
    dict
        Paths by kind: ``table``, ``summary``, ``differences``, ``json``, ``page``, and a figure's name.
    """
    folder = user_path(folder)
    if isinstance(evaluation, Comparison):
        title, models = title or "Comparison", models or evaluation.models
        runs = evaluation.runs if runs is None else runs
        left_out = evaluation.left_out if left_out is None else left_out
        evaluation = evaluation.table
    results = Results.of(
        evaluation, title=title or "Evaluation", models=models, runs=runs, left_out=left_out, details=details,
        bootstrap=bootstrap,
    )  # fmt: skip
    written = results.save(folder)
    images = {}
    for name, (figure, text) in report_figures(results, profiles).items():
        images[name] = (image_bytes(figure), text)
        for suffix, data in (("png", images[name][0]), ("svg", image_bytes(figure, "svg"))):
            path = folder / "figures" / f"{name}.{suffix}"
            written[f"{name}.{suffix}"] = write_atomically(path, partial(Path.write_bytes, data=data))
    written["page"] = write_text(folder / "report.html", build_page(results, images))
    return written
