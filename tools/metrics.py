"""Numbers about the source of a package: size, functions, names, rooms and imports, as a Markdown table.

    python tools/metrics.py [FOLDER ...]

One column per package folder (by default `gears` beside the folder of this file). Code lines are without docstrings,
comments and blank lines. Imports are those between modules of the package, inside functions too, without those for
annotations (`if TYPE_CHECKING`); modules on one circle count as one link of the longest chain.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def text_lines(tree: ast.Module) -> set[int]:
    """Lines of docstrings, and of texts below a constant that explain it."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


def lines_of(source: str) -> tuple[set[int], set[int]]:
    """Lines that hold a comment and nothing else, and lines with anything but comments."""
    comments, code = set(), set()
    layout = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in layout:
            code |= set(range(token.start[0], token.end[0] + 1))
    return comments - code, code


def n_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Named parameters, `self` among them."""
    arguments = function.args
    return len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)


def n_public(tree: ast.Module) -> int:
    """Functions and classes at the top of a module without a leading underscore; those of _modules are private."""
    return sum(isinstance(node, (*FUNCTIONS, ast.ClassDef)) and not node.name.startswith("_") for node in tree.body)


def running(tree: ast.Module) -> Iterator[ast.AST]:
    """Everything but what only type checkers see."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            yield node
            pending += ast.iter_child_nodes(node)


def imports_of(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Modules that each module imports."""
    found: dict[str, set[str]] = {}
    for module, tree in trees.items():
        names: set[str] = set()
        for node in running(tree):
            if isinstance(node, ast.ImportFrom) and not node.level:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    names.add(whole if whole in trees else node.module or "")
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
        found[module] = (names & trees.keys()) - {module}
    return found


def circles(imports: dict[str, set[str]]) -> list[frozenset[str]]:
    """Groups of modules that import each other."""
    reach = {}
    for module in imports:
        seen: set[str] = set()
        pending = [module]
        while pending:
            new = imports[pending.pop()] - seen
            seen |= new
            pending += new
        reach[module] = seen
    groups = {frozenset(other for other in reach[m] if m in reach[other]) for m in imports if m in reach[m]}
    return sorted(groups, key=sorted)


def longest_chain(imports: dict[str, set[str]]) -> int:
    """Modules on the longest way along imports; those of a circle count as one."""
    group = {module: min(circle) for circle in circles(imports) for module in circle}
    links: dict[str, set[str]] = {}
    for module, targets in imports.items():
        own = group.get(module, module)
        links.setdefault(own, set()).update({group.get(target, target) for target in targets} - {own})

    @cache
    def length(module: str) -> int:
        return 1 + max((length(target) for target in links[module]), default=0)

    return max(map(length, links))


def measure(folder: Path) -> dict[str, str]:
    """The numbers of one package by their names."""
    paths = sorted(folder.rglob("*.py"))
    sources = {path: path.read_text() for path in paths}
    trees = {path: ast.parse(source) for path, source in sources.items()}
    modules = {
        ".".join((folder.name, *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__"): tree
        for path, tree in trees.items()
    }
    n_code = n_comments = n_texts = 0
    for path, source in sources.items():
        comments, code = lines_of(source)
        texts = text_lines(trees[path])
        n_comments, n_texts, n_code = (n_comments + len(comments), n_texts + len(texts), n_code + len(code - texts))
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    functions = [node for node in nodes if isinstance(node, FUNCTIONS)]
    file_lines = [len(source.splitlines()) for source in sources.values()]
    function_lines = [(node.end_lineno or node.lineno) - node.lineno + 1 for node in functions]
    imports = imports_of(modules)
    return {
        "files": f"{len(paths):,}",
        "lines": f"{sum(file_lines):,}",
        "code lines": f"{n_code:,}",
        "comments per 100 code lines": f"{100 * n_comments / n_code:.1f}",
        "docstring lines per 100 code lines": f"{100 * n_texts / n_code:.1f}",
        "file, median lines": f"{np.median(file_lines):,.0f}",
        "file, 95th percentile": f"{int(np.percentile(file_lines, 95)):,}",
        "file, longest": f"{max(file_lines):,}",
        "function, median lines": f"{np.median(function_lines):.0f}",
        "function, 95th percentile": f"{int(np.percentile(function_lines, 95))}",
        "function, longest": f"{max(function_lines)}",
        "parameters, most": f"{max(map(n_parameters, functions))}",
        "public top-level names": f"{sum(n_public(tree) for name, tree in modules.items() if '._' not in name):,}",
        "raises": f"{sum(isinstance(node, ast.Raise) for node in nodes):,}",
        "sub-packages (with the package itself)": f"{len({path.parent for path in paths})}",
        "modules beside the sub-packages": f"{sum(p.parent == folder and p.name != '__init__.py' for p in paths)}",
        "circles among modules (lazy imports too)": f"{len(circles(imports))}",
        "longest import chain": f"{longest_chain(imports)}",
        "imports per file": f"{sum(map(len, imports.values())) / len(paths):.1f}",
    }


def main(folders: list[str]) -> None:
    """Print the table."""
    chosen = [Path(folder).resolve() for folder in folders] or [Path(__file__).resolve().parents[1] / "gears"]
    columns = [measure(folder) for folder in chosen]
    heads = [folder.name if len(chosen) == 1 else f"{folder.parent.name}/{folder.name}" for folder in chosen]
    print(f"| | {' | '.join(heads)} |\n|---|{'---|' * len(chosen)}")
    for name in columns[0]:
        print(f"| {name} | {' | '.join(column[name] for column in columns)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
