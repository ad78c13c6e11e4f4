"""Pictures made by the code that stands above them: ``{setup}`` and ``{drawn}`` blocks of a page.

The blocks of a page run in one namespace, in order, when the site is built; ``{drawn}`` shows its code
and the figure of the Axes or Figure that its last line gives. :func:`run_page` runs the same blocks without Sphinx.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```\{(setup|drawn)\}[^\n]*\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)


def run(code: str, namespace: dict[str, Any]) -> Any:
    """Execute lines; the value of the last one, if it is an expression."""
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "page", "exec"), namespace)
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), "page", "eval"), namespace)


def figure_of(value: Any) -> Any:
    """The figure of what a block gave."""
    figure = value if hasattr(value, "savefig") else getattr(value, "figure", None)
    if figure is None:
        msg = f"a drawn block ends with Axes or a Figure; found {type(value).__name__}"
        raise ValueError(msg)
    return figure


def run_page(path: Path) -> list[Any]:
    """Run all blocks of a page; the figures of its drawn blocks."""
    namespace: dict[str, Any] = {}
    figures = []
    for kind, code in BLOCK.findall(path.read_text(encoding="utf-8")):
        value = run(re.sub(r"^:[a-z]+:.*\n", "", code, flags=re.MULTILINE), namespace)
        if kind == "drawn":
            figures.append(figure_of(value))
    return figures


def setup(app: Any) -> dict[str, Any]:
    """Make the directives known to Sphinx."""
    from docutils import nodes
    from sphinx.util.docutils import SphinxDirective

    namespaces: dict[str, dict[str, Any]] = {}

    class Setup(SphinxDirective):
        """Code that is shown and run."""

        has_content = True

        def run(self) -> list[nodes.Node]:
            docname = self.env.docname
            if self.env.temp_data.get("drawn_page") != docname:
                self.env.temp_data["drawn_page"] = docname
                namespaces[docname] = {}
            code = "\n".join(self.content)
            self.value = run(code, namespaces[docname])
            return [nodes.literal_block(code, code, language="python")]

    class Drawn(Setup):
        """Code that is shown and run, and the picture that it gave."""

        optional_arguments = 1
        final_argument_whitespace = True

        def run(self) -> list[nodes.Node]:
            shown = super().run()
            number = self.env.temp_data["drawn_number"] = self.env.temp_data.get("drawn_number", 0) + 1
            name = f"{self.env.docname.replace('/', '-')}-{number}.png"
            folder = Path(self.env.srcdir) / "_drawn"
            folder.mkdir(exist_ok=True)
            figure_of(self.value).savefig(folder / name, dpi=130)
            alt = self.arguments[0] if self.arguments else "figure"
            picture = nodes.image(uri=f"/_drawn/{name}", alt=alt)
            return [*shown, nodes.container("", picture, classes=["drawn"])]

    app.add_directive("setup", Setup)
    app.add_directive("drawn", Drawn)
    return {"parallel_read_safe": False}
