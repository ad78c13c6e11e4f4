"""Pages of the site that are kept elsewhere: notebooks with their saved outputs, and results of benchmarks."""

from __future__ import annotations

import base64
import json
import re
import shutil
from pathlib import Path
from typing import Any

NOTE = "*This page is the notebook [`notebooks/{name}`](../../notebooks/{name}), with its saved outputs.*"


def write_pages(notebooks: Path, pages: Path) -> list[Path]:
    """Write one Markdown page per notebook, and its pictures; what is there is replaced."""
    shutil.rmtree(pages, ignore_errors=True)
    pages.mkdir(parents=True)
    written = []
    for path in sorted(notebooks.glob("*.ipynb")):
        page = pages / f"{path.stem}.md"
        page.write_text(as_markdown(path, pages), encoding="utf-8")
        written.append(page)
    return written


def as_markdown(path: Path, pages: Path) -> str:
    """A notebook as Markdown; pictures are written beside the page."""
    parts = []
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            if number == 0:
                parts.append(NOTE.format(name=path.name))
            continue
        parts.append(f"```python\n{source}\n```")
        for place, output in enumerate(cell.get("outputs", [])):
            parts.append(_output(output, pages, f"{path.stem}-{number}-{place}.png"))
    return "\n\n".join(part for part in parts if part) + "\n"


def _output(output: dict[str, Any], pages: Path, picture: str) -> str:
    if output["output_type"] == "stream":
        return _literal("".join(output["text"]))
    data = {kind: _joined(value) for kind, value in output.get("data", {}).items()}
    if "image/png" in data:
        (pages / picture).write_bytes(base64.b64decode(data["image/png"]))
        return f"![output]({picture})"
    if "<table" in data.get("text/html", ""):
        shown = re.findall(r"<p>.*?</p>|<table.*?</table>", data["text/html"], flags=re.DOTALL)
        return f'```{{raw}} html\n<div class="output">{"".join(shown)}</div>\n```'
    return _literal(data.get("text/plain", ""))


def _literal(text: str) -> str:
    return f"```{{code-block}} text\n:class: output\n\n{text.rstrip()}\n```" if text.strip() else ""


def _joined(value: Any) -> str:
    return "".join(value) if isinstance(value, list) else str(value)


def copy_results(results: Path, pages: Path) -> None:
    """Copy the results of benchmarks and their pictures, so that pages can link to them, out of the sidebar."""
    shutil.rmtree(pages, ignore_errors=True)
    pages.mkdir(parents=True)
    for path in sorted(results.glob("*.png")):
        shutil.copy(path, pages / path.name)
    for path in sorted(results.glob("*.md")):
        (pages / path.name).write_text(
            f"---\norphan: true\n---\n\n{path.read_text(encoding='utf-8')}", encoding="utf-8"
        )


def mark_notebooks(app: Any, env: Any) -> None:
    """Name notebooks as such in the sidebar and in links."""
    from docutils import nodes

    for page, title in env.titles.items():
        if page.startswith("notebooks/") and not title.astext().startswith("Notebook: "):
            title.insert(0, nodes.Text("Notebook: "))
            next(env.tocs[page].findall(nodes.reference)).insert(0, nodes.Text("Notebook: "))  # the sidebar's


def setup(app: Any) -> dict[str, Any]:
    """Write the pages before Sphinx looks for sources."""
    app.connect("env-updated", mark_notebooks)
    root = Path(app.srcdir)
    write_pages(root.parent / "notebooks", root / "notebooks")
    copy_results(root.parent / "benchmarks" / "results", root / "results")
    return {"parallel_read_safe": True}
