"""The source itself: nothing unpickles freely, nothing is evaluated, nothing is imported that is not declared."""

import ast
import functools
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "gears").rglob("*.py"))
OWN_PROCESSES = {"gears/distributed/_launch.py", "gears/jobs/_on_dask.py"}
"""Where cloudpickle travels between a process and the children it started itself, through an inherited pipe."""
REFUSED = {
    "pickle": "load loads Unpickler",
    "cPickle": "load loads Unpickler",
    "dill": "load loads",
    "cloudpickle": "load loads",
    "joblib": "load",
    "marshal": "load loads",
    "shelve": "open",
    "pandas": "read_pickle",
    "pd": "read_pickle eval",
    "yaml": "load load_all unsafe_load full_load unsafe_load_all full_load_all",
    "os": "system popen",
    "subprocess": "getoutput getstatusoutput",
}


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """All nodes of a file."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Every call of a file with the dotted name of what is called."""
    for node in nodes(path):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def keyword(call: ast.Call, name: str) -> object:
    found = next((word.value for word in call.keywords if word.arg == name), None)
    return found.value if isinstance(found, ast.Constant) else found


def free(name: str, call: ast.Call) -> bool:
    """Whether a call could run what is in a file."""
    module, _, function = name.rpartition(".")
    if name in ("eval", "exec", "compile", "__import__", "read_pickle"):
        return True
    if function in REFUSED.get(module.split(".")[-1], "").split():
        return True
    if name in ("torch.load", "torch.jit.load") and keyword(call, "weights_only") is not True:
        return True
    if name in ("np.load", "numpy.load") and keyword(call, "allow_pickle") is not False:
        return True
    return keyword(call, "allow_pickle") is True or keyword(call, "shell") is True or name.endswith(".extractall")


def test_no_code_path_runs_what_is_in_a_file():
    found = []
    for path in SOURCES:
        place = path.relative_to(ROOT).as_posix()
        for name, call in calls(path):
            if free(name, call) and not (place in OWN_PROCESSES and name == "cloudpickle.loads"):
                found.append(f"{place}:{call.lineno}: {name}")
    assert found == []


def test_functions_are_not_imported_past_the_scan():
    """``from pickle import loads`` would hide a call from the test above."""
    found = []
    for path in SOURCES:
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and node.module in REFUSED:
                names = {alias.name for alias in node.names} & set(REFUSED[node.module].split())
                found += [f"{path.name}:{node.lineno}: {name}" for name in names]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "pickle.load(f)", "torch.load(p)", "torch.load(p, weights_only=False)", "np.load(p)", "eval(x)",
        "np.load(p, allow_pickle=True)", "pd.read_pickle(p)", "joblib.load(p)", "yaml.load(f, Loader=L)",
        "tar.extractall(p)", "subprocess.run(c, shell=True)", "dill.loads(b)", "marshal.loads(b)",
    ],
)  # fmt: skip
def test_the_scan_finds_what_it_looks_for(line, tmp_path):
    (tmp_path / "bad.py").write_text(line)
    ((name, call),) = calls(tmp_path / "bad.py")
    assert free(name, call)


# Dependencies


def distribution(requirement: str) -> str:
    """Normalised name of a requirement."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s<>=!~\[;]", requirement, maxsplit=1)[0]).lower()


def declared() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    at_run_time = [line for name, part in extras.items() if name not in ("test", "docs") for line in part]
    return {distribution(line) for line in [*project["dependencies"], *at_run_time]}


BEHIND = {"zarr": "anndata", "pynvml": "nvidia-ml-py", "IPython": "ipykernel", "markupsafe": "jinja2"}
"""Modules of another name than their distribution's, and those that come with a declared one and serve it."""


def test_nothing_is_imported_that_is_not_declared():
    owners = metadata.packages_distributions()
    known, missing = declared(), set()
    for path in SOURCES:
        for node in nodes(path):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                modules = [str(node.module)]
            else:
                continue
            for top in {module.split(".")[0] for module in modules} - sys.stdlib_module_names - {"gears"}:
                names = {distribution(name) for name in owners.get(top, [top])} | {BEHIND.get(top, top), top}
                if not names & known:
                    missing.add(f"{path.relative_to(ROOT).as_posix()}: {top}")
    assert sorted(missing) == []


def test_every_dependency_says_its_licence():
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for line in project["dependencies"]:
        assert f"| {distribution(line)} |" in text, f"{line} is missing from the licences in docs/guarantees.md"
