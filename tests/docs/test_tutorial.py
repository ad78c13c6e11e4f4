"""The page of the first result runs from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one epoch, and without the call for several processes, which the README's test makes."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    lines = "\n".join(block for block in blocks if "train_multi_gpu" not in block)
    lines = lines.replace("epochs=20", "epochs=1").replace("GEARS(pert_data)", 'GEARS(pert_data, device="cpu")')
    names: dict[str, Any] = {}
    exec(compile(lines, "tutorial.md", "exec"), names)
    assert len(names["predictions"]) == 2
    assert (tmp_path / "reports" / "run1" / "report.html").is_file()
