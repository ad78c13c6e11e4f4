"""A report whose names come from somebody else's data: text in every place."""

from pathlib import Path

import pandas as pd

from gears.evaluation._scoring import COLUMNS
from gears.report import write_report


def test_names_in_a_report_are_text(tmp_path):
    """In every place of the page: conditions, methods, subgroups, the title."""
    page = hostile_page(tmp_path)
    text = page.read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert 'href="javascript' not in text


def hostile_page(folder: Path) -> Path:
    names = ["<script>alert(1)</script>+ctrl", '"><img src=x onerror=alert(1)>+ctrl', "javascript:alert(2)+ctrl"]
    rows = []
    for method in ("model <b>bold</b>", "no_change"):
        for number, name in enumerate(names):
            for metric in ("mse", "pearson_delta"):
                row = dict.fromkeys(COLUMNS, "") | {"condition": name, "method": method, "metric": metric}
                rows.append(row | {"value": 0.1 * (number + 1), "subgroup": "<i>unseen</i>", "n_cells": 5})
    table = pd.DataFrame(rows)
    return write_report(table, folder / "page", title="<script>alert(1)</script>", models=["model <b>bold</b>"])["page"]
