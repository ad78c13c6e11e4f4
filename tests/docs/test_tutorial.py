"""The page of the first result runs from top to bottom."""

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_figures: None) -> None:
    """With fewer genes and cells, and without the call for several processes, which the README's test makes."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    lines = "\n".join(block for block in blocks if "train_multi_gpu" not in block)
    lines = lines.replace("n_genes=120", "n_genes=40").replace("cells_per_condition=25", "cells_per_condition=12")
    lines = lines.replace("n_singles=20, n_pairs=16", "n_singles=10, n_pairs=8")
    lines = lines.replace("GEARS(pert_data)", 'GEARS(pert_data, device="cpu")')
    names: dict[str, Any] = {}
    exec(compile(lines, "tutorial.md", "exec"), names)
    assert len(names["predictions"]) == 2
    assert (tmp_path / "reports" / "run1" / "report.html").is_file()
