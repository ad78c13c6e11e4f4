"""A report whose names come from somebody else's data: text in every place, in a browser too."""

import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from gears.evaluation._scoring import COLUMNS
from gears.report import write_report

SPY = "<body><script>window.alert = () => document.title = 'RAN'</script>"


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


@pytest.mark.long
def test_names_in_a_report_are_text_in_a_browser(tmp_path):
    """A headless Chromium, where there is one, shows the name and runs no script of the data."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium on this machine")
    page = hostile_page(tmp_path)
    page.write_text(page.read_text(encoding="utf-8").replace("<body>", SPY, 1), encoding="utf-8")
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", profile, "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in done.stdout
    assert "<title>RAN</title>" not in done.stdout
