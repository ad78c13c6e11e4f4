"""How the package is laid out: imports run one way through the rooms, never in a circle, and files stay readable.

A name that a module imports from a room's `__init__` counts as an import of the module that defines it, whether the
`__init__` imports it or names it in a lazy table (a dict of name -> module). Imports inside functions count; those for
annotations (`if TYPE_CHECKING`) may go against the order of rooms, but make no circle either.
``python tests/test_layout.py`` prints what stands against the rules.
"""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import networkx as nx
import pytest

import gears

ROOMS = (
    "core", "files", "conditions", "distributed", "data", "graphs", "pertdata", "evaluation", "simulate", "plotting",
    "priors", "model", "prediction", "report", "training", "cell_gears", "gears", "jobs", "design", "published",
    "hub", "inference", "utils", "data_utils", "version", "pl", "perturbation_model", "cli", "train_distributed",
    "__main__",
)  # fmt: skip
"""In import order: a room imports from rooms before it only. `resources` holds no code."""

DOORS = {
    "__init__", "__main__", "conditions", "data_utils", "gears", "hub", "inference", "pertdata", "perturbation_model",
    "pl", "published", "train_distributed", "utils", "version",
}  # fmt: skip
"""The modules beside the rooms: paths that users import, and those that Python asks for."""
MOST_LINES = 700
LONGEST_CHAIN = 20
"""Modules on the longest way along imports. It only falls."""
UNNAMED = {"files.formats", "model.network", "priors.joint"}
"""Modules that users have no need of, and yet without an underscore. There may be fewer, not more."""


def dotted_path(node: ast.expr) -> str:
    """A name with attributes, such as ``gears.data._loaders``; empty for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (path := dotted_path(node.value)):
        return f"{path}.{node.attr}"
    return ""


@dataclass(frozen=True)
class Layout:
    """The modules of a package called `gears` below a folder, and what they import."""

    root: Path
    _seen: dict[str, ast.Module] = field(default_factory=dict, repr=False)
    _passed: dict[str, dict[str, tuple[str, str]]] = field(default_factory=dict, repr=False)

    @cached_property
    def paths(self) -> dict[str, Path]:
        """Files by module."""
        found = {}
        for path in sorted(self.root.rglob("*.py")):
            if "resources" not in path.relative_to(self.root).parts:
                name = ".".join(path.relative_to(self.root).with_suffix("").parts)
                found[name.removesuffix(".__init__")] = path
        return found

    def tree(self, module: str) -> ast.Module:
        """The parsed file of a module."""
        if module not in self._seen:
            self._seen[module] = ast.parse(self.paths[module].read_text())
        return self._seen[module]

    def is_room(self, module: str) -> bool:
        """Whether a module is the `__init__` of a folder."""
        return self.paths[module].name == "__init__.py"

    def module_of(self, dotted: str) -> str | None:
        """The module that a dotted path such as ``gears.data._loaders`` names, if it is one."""
        name = "__init__" if dotted == "gears" else dotted.removeprefix("gears.")
        return name if name in self.paths else None

    def runs(self, module: str) -> Iterator[ast.AST]:
        """Everything in a module but what only type checkers see."""
        pending: list[ast.AST] = [self.tree(module)]
        while pending:
            node = pending.pop()
            yield node
            if isinstance(node, ast.If) and dotted_path(node.test).endswith("TYPE_CHECKING"):
                pending += node.orelse
            else:
                pending += ast.iter_child_nodes(node)

    def passed_on(self, module: str) -> dict[str, tuple[str, str]]:
        """Names that a module takes from others of the package: name -> (their dotted path, name there)."""
        if module in self._passed:
            return self._passed[module]
        found: dict[str, tuple[str, str]] = {}
        for node in ast.walk(self.tree(module)):
            if isinstance(node, ast.Dict) and self.is_room(module):
                for key, value in zip(node.keys, node.values, strict=True):
                    texts = [each.value for each in (key, value) if isinstance(each, ast.Constant)]
                    if len(texts) == 2 and all(isinstance(text, str) for text in texts) and self.module_of(texts[1]):
                        found[texts[0]] = (texts[1], texts[0])
        for node in self.tree(module).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gears":
                for alias in node.names:
                    found[alias.asname or alias.name] = (node.module or "", alias.name)
        self._passed[module] = found
        return found

    def defining(self, dotted: str, name: str, depth: int = 0) -> str | None:
        """The module that defines what ``from dotted import name`` gives."""
        module = self.module_of(dotted)
        if module is None:
            return None
        passed = self.passed_on(module)
        if name in passed and passed[name] != (dotted, name) and depth < 9:
            return self.defining(*passed[name], depth + 1)
        return self.module_of(f"{dotted}.{name}") or module

    def imports_of(self, module: str, *, annotations: bool = False) -> set[str]:
        """The modules that define what a module imports, at its top or inside functions, or for annotations too."""
        found: set[str | None] = set()
        for node in ast.walk(self.tree(module)) if annotations else self.runs(module):
            if isinstance(node, ast.ImportFrom) and node.level:
                msg = f"{module}:{node.lineno} imports relatively; write the whole path"
                raise AssertionError(msg)
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gears":
                found |= {self.defining(node.module or "", alias.name) for alias in node.names}
            elif isinstance(node, ast.Import):
                found |= {self.module_of(alias.name) for alias in node.names if alias.name != "gears"}
            elif isinstance(node, ast.Attribute) and (path := dotted_path(node)).startswith("gears."):
                found.add(self.defining(*path.rsplit(".", 1)))
            elif isinstance(node, ast.Call) and dotted_path(node.func).endswith("import_module"):
                names = [each.value for each in node.args if isinstance(each, ast.Constant)]
                found |= {self.module_of(str(name)) for name in names}
        return {name for name in found if name is not None and name != module}

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """What every module imports; the package's own `__init__` loads lazily and is excluded."""
        return {module: self.imports_of(module) - {"__init__"} for module in self.paths if module != "__init__"}

    def against_the_order(self) -> set[tuple[str, str]]:
        """(module, imported module) where the room of the second comes after that of the first."""
        rooms = {module: module.split(".")[0] for module in self.imports}
        unknown = sorted(set(rooms.values()) - set(ROOMS))
        assert not unknown, f"{unknown} are not in ROOMS: enter new rooms at their place in the order"
        return {
            (module, target)
            for module, targets in self.imports.items()
            for target in targets
            if ROOMS.index(rooms[target]) > ROOMS.index(rooms[module])
        }

    def on_circles(self) -> set[str]:
        """Modules that import themselves by way of others. Importing a module runs the `__init__` of its rooms."""
        read = {module: self.imports_of(module, annotations=True) & self.imports.keys() for module in self.imports}
        graph = {}
        for module, targets in self.imports.items():
            graph[module] = set(targets)
            for target in targets:
                parts = target.split(".")
                rooms = {".".join(parts[:n]) for n in range(1, len(parts))}
                graph[module] |= {room for room in rooms if not f"{module}.".startswith(f"{room}.")}
            graph[module] &= self.imports.keys()
        circles = [nx.strongly_connected_components(nx.DiGraph(edges)) for edges in (graph, read)]
        return {module for found in circles for circle in found if len(circle) > 1 for module in circle}

    def longest_chain(self) -> list[str]:
        """The modules on the longest way along imports, without those for annotations."""
        return nx.dag_longest_path(nx.DiGraph(self.imports))

    def through_a_room(self) -> set[str]:
        """Imports from an `__init__` of what another module defines: ``module: from room import name``."""
        found = set()
        for module in self.imports:
            if self.is_room(module) or module in DOORS:
                continue
            for node in ast.walk(self.tree(module)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gears":
                    given = self.module_of(node.module or "")
                    for alias in node.names:
                        home = self.defining(node.module or "", alias.name)
                        if given and home != given and home != self.module_of(f"{node.module}.{alias.name}"):
                            found.add(f"{module}:{node.lineno} from {node.module} import {alias.name} (of {home})")
        return found

    def long_files(self) -> set[str]:
        """Files of more than MOST_LINES lines."""
        return {name for name, path in self.paths.items() if len(path.read_text().splitlines()) > MOST_LINES}


@pytest.fixture(scope="module")
def layout():
    return Layout(Path(gears.__file__).parent)


@pytest.fixture
def copied(layout, tmp_path):
    """The source files of the package elsewhere, to plant faults in."""
    shutil.copytree(layout.root, tmp_path / "gears", ignore=lambda _, names: [n for n in names if "__pycache__" in n])
    return tmp_path / "gears"


def test_rooms_import_from_rooms_before_them_and_never_in_a_circle(layout):
    assert not layout.against_the_order()
    assert not layout.on_circles()
    chain = layout.longest_chain()
    assert len(chain) <= LONGEST_CHAIN, f"{len(chain)} modules: {' -> '.join(chain)}"


def test_inside_the_package_names_come_from_where_they_are_defined(layout):
    """Only an `__init__` and a door pass names on; else a move of rooms would not show in the imports."""
    assert not layout.through_a_room()


def test_only_the_doors_import_what_to_do_next(layout):
    """`design` is on top of everything: no model or evaluation may come to depend on it."""
    users = {module for module, targets in layout.imports.items() if any(_in_design(name) for name in targets)}
    doors = {"cli._design", "perturbation_model", "pl"}
    assert {module for module in users if not _in_design(module)} == doors


def _in_design(module: str) -> bool:
    return module.split(".")[0] == "design"


def test_metrics_are_computed_in_the_evaluation_only(layout):
    """Training and the prior choose by :mod:`gears.evaluation.metrics`, not by formulas of their own."""
    users = {module for module, targets in layout.imports.items() if "evaluation._rows" in targets}
    assert {module.split(".")[0] for module in users} == {"evaluation", "plotting", "cell_gears"}


def test_no_file_is_too_long_and_beside_the_rooms_there_are_doors_only(layout):
    assert not layout.long_files(), f"more than {MOST_LINES} lines"
    assert {path.stem for path in layout.root.glob("*.py")} == DOORS


def test_a_module_that_no_page_names_has_an_underscore(layout):
    """A page names the module itself, or a class or function of it."""
    root = layout.root.parent
    words = set(
        re.findall(r"[\w.]+\w", "\n".join(p.read_text() for p in (root / "README.md", *root.glob("docs/*.md"))))
    )
    words |= {word.rpartition(".")[2] for word in words} | {word.rpartition(".")[0] for word in words}
    unnamed = set()
    for module in layout.paths:
        is_public = "._" not in f".{module}" and module not in DOORS and not layout.is_room(module)
        if is_public and f"gears.{module}" not in words:
            names = {node.name for node in layout.tree(module).body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
            if not names & words:
                unnamed.add(module)
    assert unnamed == UNNAMED


CIRCLE = "def planted():\n    import gears\n\n    gears.PertData"  # a lazy table, inside a function
ANNOTATION = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from gears.pertdata import PertData"


@pytest.mark.parametrize(("planted", "upward"), [(CIRCLE, {"core._messages"}), (ANNOTATION, set())])
def test_a_planted_circle_is_seen_and_only_annotations_may_go_against_the_order(planted, upward, layout, tmp_path):
    copied = shutil.copytree(layout.root, tmp_path / "gears", ignore=shutil.ignore_patterns("__pycache__"))
    file = copied / "core" / "_messages.py"
    file.write_text(f"{file.read_text()}\n\n{planted}\n")
    after = Layout(copied, {name: tree for name, tree in layout._seen.items() if name != "core._messages"})
    assert "core._messages" in after.on_circles()
    assert {module for module, _ in after.against_the_order()} == upward


if __name__ == "__main__":
    here = Layout(Path(gears.__file__).parent)
    for title, found in {
        "against the order": here.against_the_order(),
        "on circles": here.on_circles(),
        "through a room": here.through_a_room(),
        "too long": here.long_files(),
        "longest chain": [" -> ".join(here.longest_chain())],
    }.items():
        print(f"{title} ({len(found)})", *sorted(map(str, found)), sep="\n  ")
