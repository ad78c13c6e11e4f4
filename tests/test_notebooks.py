"""The notebook runs from top to bottom in a kernel of its own, and is kept without outputs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "main_job.ipynb"


def read() -> Any:
    import nbformat

    return nbformat.read(NOTEBOOK, as_version=4)


def text_of(notebook: Any) -> str:
    """Everything that the cells have printed or shown as text."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "\n".join(
        output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in outputs
    )


def test_no_outputs_are_kept() -> None:
    assert all(not cell.get("outputs") for cell in read().cells)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the machinery around the kernel; the cells run elsewhere
def test_the_main_job_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nbclient import NotebookClient

    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where the notebook keeps its results
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = read()
    client = NotebookClient(
        notebook, timeout=200, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    shown = text_of(notebook)
    assert "AnnData object" in shown
    assert "additive" in shown
    assert list(tmp_path.glob("*/model/manifest.json")), "the notebook trained no model"
    assert any(
        "image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])
    )
