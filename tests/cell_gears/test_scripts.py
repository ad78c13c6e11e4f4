"""Scripts written for cell-gears run unchanged: its demo notebooks, and what other projects do with it.

``python tests/cell_gears/test_scripts.py`` writes their table in ``benchmarks/results/cell_gears_names.md``.
"""

import ast
import os
import re
import runpy
import shutil
import tarfile
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest
from old_screens import few_genes, put_norman, renamed

SCRIPTS = sorted(Path(__file__).with_name("scripts").glob("*.py"))
PAGE = Path(__file__).parents[2] / "benchmarks" / "results" / "cell_gears_names.md"
FIRST = "demo_model_tutorial"
"""Runs first: others load its model, as the demos load the one that they published."""
OBJECTS = {"pert_data": "PertData", "gears_model": "GEARS"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, toy_template):
    """A working folder with screen and trained model; the annotation is that of few genes."""
    folder = tmp_path_factory.mktemp("scripts")
    put_norman(folder, renamed(toy_template.copy()))
    annotation, before = few_genes(), Path.cwd()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gears.graphs._annotation._human", lambda: annotation)
        os.chdir(folder)
        runpy.run_path(next(str(script) for script in SCRIPTS if script.stem == FIRST))
        yield folder
        os.chdir(before)


@pytest.fixture(scope="module")
def url(folder):
    """Address of a server with the files that the demo of inference downloads."""
    from driving import serving  # not where this file is run as a script

    served = folder / "served"
    served.mkdir()
    with tarfile.open(served / "6979957", "w:gz") as tar:
        tar.add(folder / "data" / "norman" / "perturb_processed.h5ad", "norman_umi_go/perturb_processed.h5ad")
    shutil.copytree(folder / "test_model", folder / "packed" / "model_ckpt")
    shutil.make_archive(str(served / "model"), "zip", folder / "packed")
    (served / "model.zip").rename(served / "10457098")
    with open(served / "6979958", "wb") as file:
        np.save(file, np.array(["KLF1", "FEV", "CBL"]))

    class Served(SimpleHTTPRequestHandler):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options, directory=str(served))

    with serving(Served) as server:
        yield server.url


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_it_runs(script, url, monkeypatch):
    monkeypatch.setenv("FILES_URL", url)
    if script.stem != FIRST:  # ran for the others
        runpy.run_path(str(script))


def calls(script: Path) -> list[str]:
    """What a script uses of the package: functions that it imports, attributes and methods of its objects."""
    tree = ast.parse(script.read_text())
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gears")
        for alias in node.names
    }
    used = imported - set(OBJECTS.values())
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in OBJECTS:
            used.add(f"{OBJECTS[node.value.id]}.{node.attr}")
    return sorted(used, key=str.lower)


def table() -> str:
    """The scripts and what they use, as a table of the page."""
    rows = ["| script | what it uses |", "|---|---|"]
    for script in SCRIPTS:
        title = (ast.get_docstring(ast.parse(script.read_text())) or "").split("\n")[0].rstrip(".")
        rows.append(f"| {title} | {', '.join(f'`{name}`' for name in calls(script))} |")
    return "\n".join(rows)


def with_table(page: str, name: str, rows: str) -> str:
    """A page with a table between its marks."""
    marks = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    return re.sub(f"{marks[0]}.*?{marks[1]}", lambda _: "\n".join([marks[0], rows, marks[1]]), page, flags=re.DOTALL)


def test_the_page_has_the_table_of_these_scripts():
    page = PAGE.read_text()
    assert table() in page
    assert with_table(page, "scripts", table()) == page


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(), "scripts", table()))
