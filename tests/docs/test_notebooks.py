"""The notebooks run from top to bottom, and are kept with small outputs of their own code."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"


def load_tool() -> Any:
    """notebooks/execute.py, which fills in the outputs that are kept."""
    spec = importlib.util.spec_from_file_location("execute", FOLDER / "execute.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


EXECUTE = load_tool()
NAMES = EXECUTE.names()
EXPECTED = {
    "campaign",
    "data",
    "evaluation",
    "explain",
    "from_cell_gears",
    "main_job",
    "own_graph",
    "prediction",
    "training",
    "uncertainty",
}


def outputs(notebook: Any) -> list[list[Any]]:
    """Outputs of each code cell."""
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


def kinds(notebook: Any) -> list[list[Any]]:
    """What kind of outputs each code cell has, whatever they say."""
    return [
        [(output.output_type, sorted(output.get("data", {})), output.get("name", "")) for output in cell]
        for cell in outputs(notebook)
    ]


def text_of(notebook: Any) -> str:
    """Everything that the cells have printed or shown as text."""
    shown = [output for cell in outputs(notebook) for output in cell]
    return "\n".join(output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in shown)


def test_there_is_a_notebook_for_each_subject() -> None:
    assert set(NAMES) == EXPECTED


@pytest.mark.parametrize("name", NAMES)
def test_each_begins_with_its_question_and_keeps_small_clean_outputs(name: str) -> None:
    notebook = EXECUTE.read(name)
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 300_000
    shown = [output for cell in outputs(notebook) for output in cell]
    assert any("image/png" in output.get("data", {}) for output in shown)
    assert len(notebook.cells) < 30
    assert notebook.cells[0].source.split("\n")[2].endswith("?")
    assert [output.output_type for output in shown if output.output_type == "error"] == []
    assert [output.text for output in shown if output.get("name") == "stderr"] == []
    assert re.findall(r"(?:^|[\s'\"(])/(?:tmp|home|root|usr|work|var)/\S*", text_of(notebook)) == []
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1)), "run notebooks/execute.py: not every cell was run in order"


def run_and_compare(name: str, manager: Any) -> Any:
    kept = EXECUTE.read(name)
    done = EXECUTE.run(EXECUTE.read(name), manager)
    assert kinds(done) == kinds(kept), f"the kept outputs of {name} are of other code: run notebooks/execute.py"
    return done


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the machinery around the kernel; the cells run elsewhere
def test_all_run_from_top_to_bottom(tmp_path: Path) -> None:
    """In one kernel, emptied in between: the libraries are imported once."""
    with EXECUTE.kernel(tmp_path) as manager:
        for name in NAMES:
            done = run_and_compare(name, manager)
            if name == "main_job":
                assert "AnnData object" in text_of(done)
                assert "additive" in text_of(done)
    assert len(list(tmp_path.glob("*/model/manifest.json"))) >= 4, "the notebooks saved no models"


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_each_runs_in_a_kernel_of_its_own(name: str, tmp_path: Path) -> None:
    with EXECUTE.kernel(tmp_path) as manager:
        run_and_compare(name, manager)
