"""The notebooks run from top to bottom, and are kept with small outputs of their own code.

The suite runs every cell of every notebook in this process, with few epochs and few cells; `make test-long` runs each
in a kernel, as it is.
"""

import ast
import contextlib
import importlib.util
import io
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from matplotlib import pyplot

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
    "campaign", "data", "evaluation", "explain", "from_cell_gears", "main_job", "one_screen", "own_graph",
    "second_screen", "several_workers", "three_lines",
    "uncertainty",
}  # fmt: skip
SMALL = (
    (r"\b(epochs\"?(?:=|: ))[1-9]\d*", r"\g<1>1"),
    (r"\bn_pairs=\d\d\d", "n_pairs=40"),
    (r"\bcells_per_condition=\d+", "cells_per_condition=12"),
    (r"\bn_genes=80\b", "n_genes=40"),
    (r"\bn_split_half=[1-9]", "n_split_half=1"),
    (r"\brange\(4\)", "range(2)"),
)
"""What the suite changes in a cell: one epoch, fewer genes, pairs, cells and repeats, two rounds of a campaign."""


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(notebook: Any) -> list[list[Any]]:
    """What kind of outputs each code cell has, whatever they say."""
    return [
        [(output.output_type, sorted(output.get("data", {})), output.get("name", "")) for output in cell.outputs]
        for cell in code_cells(notebook)
    ]


def text_of(notebook: Any) -> str:
    """Everything that the cells have printed or shown as text."""
    shown = [output for cell in code_cells(notebook) for output in cell.outputs]
    return "\n".join(output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in shown)


def test_there_is_a_notebook_for_each_subject() -> None:
    assert set(NAMES) == EXPECTED


@pytest.mark.parametrize("name", NAMES)
def test_each_begins_with_its_question_and_keeps_small_clean_outputs(name: str) -> None:
    notebook = EXECUTE.read(name)
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 300_000
    shown = [output for cell in code_cells(notebook) for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in shown)
    assert len(notebook.cells) < 30
    assert notebook.cells[0].source.split("\n")[2].endswith("?")
    assert [output.output_type for output in shown if output.output_type == "error"] == []
    assert [output.text for output in shown if output.get("name") == "stderr"] == []
    assert re.findall(r"(?:^|[\s'\"(])/(?:tmp|home|root|usr|work|var)/\S*", text_of(notebook)) == []
    counts = [cell.execution_count for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1)), "run notebooks/execute.py: not every cell was run in order"
    if name == "main_job":
        assert "AnnData object" in text_of(notebook)
        assert "additive" in text_of(notebook)


def run_cell(source: str, names: dict[str, Any]) -> tuple[bool, bool]:
    """Run a cell in its small form; whether it printed, and whether its last line has a value to show."""
    source = re.sub(r"^%.*$", "", source, flags=re.MULTILINE)
    for pattern, replacement in SMALL:
        source = re.sub(pattern, replacement, source)
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return out.getvalue() != "", value is not None


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_runs_and_shows_what_is_kept(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick_workers: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each cell prints and shows something if the notebook keeps that; nothing warns or is said on stderr."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(code_cells(EXECUTE.read(name)), start=1):
        types = {output.output_type for output in cell.outputs}
        kept = "stream" in types, bool(types - {"stream"})
        assert run_cell(cell.source, names) == kept, f"cell {number} of {name}: run notebooks/execute.py"
    assert capsys.readouterr().err == ""
    pyplot.close("all")
    if "save" in "".join(cell.source for cell in code_cells(EXECUTE.read(name))):
        assert list(tmp_path.glob("*/model/manifest.json"))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of the machinery around the kernel; the cells run elsewhere
@pytest.mark.parametrize("name", NAMES)
def test_each_runs_in_a_kernel_of_its_own(name: str, tmp_path: Path) -> None:
    kept = kinds(EXECUTE.read(name))
    with EXECUTE.kernel(tmp_path) as manager:
        done = EXECUTE.run(EXECUTE.read(name), manager)
    assert kinds(done) == kept, f"the kept outputs of {name} are of other code: run notebooks/execute.py"
