"""The documentation: links lead somewhere, code is code, names exist, and the gallery's pictures can be drawn."""

import ast
import importlib
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *ROOT.glob("*.md"), *(ROOT / "benchmarks" / "results").glob("*.md")])
# pages that the site makes out of files kept elsewhere
MADE = {DOCS / "notebooks": (ROOT / "notebooks", ".ipynb"), DOCS / "results": (ROOT / "benchmarks" / "results", None)}
# the start page, and pages that are kept elsewhere
WITHOUT_QUESTION = {"index"}
FENCE = re.compile(r"^```.*?^```", flags=re.DOTALL | re.MULTILINE)
PYTHON = re.compile(r"^```(?:python|\{setup\}|\{drawn\})[^\n]*\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def extension(name: str) -> ModuleType:
    """A Sphinx extension of the site, which needs no Sphinx to be used here."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "_ext" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub and the site make them."""
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", text_of(page)), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.strip().lower()).replace(" ", "-") for head in heads}


def kept_at(target: Path) -> Path:
    """The file in the repository behind a page of the site."""
    if target.parent in MADE:
        folder, suffix = MADE[target.parent]
        return folder / (target.stem + suffix if suffix else target.name)
    return target


def test_the_citation_names_this_version() -> None:
    import gears

    assert f"version: {gears.__version__}\n" in text_of(ROOT / "CITATION.cff")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_and_python_is_python_with_names_that_exist(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", text_of(page)))
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:|mailto:", link):
            continue
        name, _, anchor = link.partition("#")
        target = kept_at((page.parent / name).resolve()) if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert wrong == []
    for code in PYTHON.findall(text_of(page)):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "gears":
                module = importlib.import_module(str(node.module))
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
    if page.parent == DOCS and page.stem not in WITHOUT_QUESTION:
        title, blank, first = text_of(page).splitlines()[:3]
        assert (title[:2], blank, first[-1]) == ("# ", "", "?"), "a page begins with the question that it answers"


def test_every_page_is_in_a_table_of_contents() -> None:
    trees = [
        tree for page in DOCS.glob("*.md") for tree in re.findall(r"```\{toctree\}.*?```", text_of(page), re.DOTALL)
    ]
    entries = {line.strip() for tree in trees for line in tree.splitlines()}
    assert {page.stem for page in DOCS.glob("*.md")} - entries == {"index"}
    notebooks = {f"notebooks/{path.stem}" for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert notebooks - entries == set()


def test_functions_that_pages_refer_to_and_plots_are_in_the_reference_and_plots_in_the_gallery() -> None:
    import gears.plotting as plots

    reference, gallery = "".join(map(text_of, DOCS.glob("api*.md"))), text_of(DOCS / "gallery.md")
    named = {name for page in DOCS.glob("*.md") for name in re.findall(r"\{py:func\}`(gears[\w.]+)`", text_of(page))}
    assert named
    for name in named:
        module, _, function = name.rpartition(".")
        assert hasattr(importlib.import_module(module), function)
        assert function in reference
    assert [name for name in plots.__all__ if name not in reference and name != "image_bytes"] == []
    drawn = set(plots.__all__) - {"image_bytes", "new_axes", "prediction_figure", "spread_p_values"}
    assert [name for name in sorted(drawn) if name not in gallery] == []


@pytest.mark.slow
def test_the_gallery_can_be_drawn(tmp_path: Path) -> None:
    """With one epoch a training."""
    text = text_of(DOCS / "gallery.md")
    (tmp_path / "gallery.md").write_text(re.sub(r"\bepochs=\d", "epochs=1", text), encoding="utf-8")
    figures = extension("drawn").run_page(tmp_path / "gallery.md")
    assert len(figures) == text.count("```{drawn}")
    assert all(ax.has_data() for figure in figures for ax in figure.axes if ax.get_label() != "<colorbar>")


@pytest.mark.long
@pytest.mark.parametrize(("script", "pictures"), [("picture", ("accuracy.png",)), ("kernels", ("kernels.png",))])
def test_the_pictures_of_the_pages_can_be_drawn(script: str, pictures: tuple[str, ...], tmp_path: Path) -> None:
    import runpy

    runpy.run_path(str(DOCS / f"{script}.py"))["main"](tmp_path)
    for name in pictures:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_a_notebook_becomes_a_page_with_its_outputs(tmp_path: Path) -> None:
    import json

    cells = [
        {"cell_type": "markdown", "source": ["# Title"]},
        {
            "cell_type": "code",
            "source": ["x"],
            "outputs": [
                {"output_type": "stream", "text": ["printed\n"]},
                {"output_type": "execute_result", "data": {"text/html": ["<p><table><tr></tr></table>"]}},
                {"output_type": "display_data", "data": {"image/png": "aGk="}},
            ],
        },
    ]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.ipynb").write_text(json.dumps({"cells": cells}))
    (page,) = extension("site_pages").write_pages(tmp_path / "in", tmp_path / "out")
    text = page.read_text()
    assert "```{code-block} text\n:class: output\n\nprinted\n```" in text
    assert '<div class="output"><table><tr></tr></table></div>' in text
    assert (tmp_path / "out" / "one-1-2.png").read_bytes() == b"hi"


def test_a_page_of_several_sections_has_contents_and_wrong_links_of_a_site_are_found(tmp_path: Path) -> None:
    contents = extension("page_contents").with_contents
    body, toc = "<h1>Title</h1>\n<p>Question?</p>\n<p>Answer.</p>\n", '<ul><a href="#a">A</a></ul>'
    assert contents(body, toc * 3) == body
    page = contents(body, toc * 4)
    assert page.index("Question?") < page.index(toc * 4) < page.index("Answer.")
    check = extension("check_links").check
    (tmp_path / "a.html").write_text('<a href="b.html#there"></a><a id="here" href="#here"></a>')
    (tmp_path / "b.html").write_text('<p id="there"></p><img src="a.html">')
    assert check(tmp_path) == ([], 3)
    (tmp_path / "c.html").write_text('<a href="b.html#gone"></a><a href="d.html"></a><script src="https://x.y/z.js">')
    wrong, looked_at = check(tmp_path)
    assert looked_at == 6
    assert [text.split(": ")[1].split()[0] for text in wrong] == ["b.html#gone", "d.html", "loads"]
