"""Sphinx settings; `make docs` builds with warnings as errors and without network."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

from gears.core._installation import __version__

project = "gears"
author = "the gears developers"
copyright = "2026, the gears developers"
release = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "drawn",
    "page_contents",
    "site_pages",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]

toc_object_entries_show_parents = "hide"
html_theme = "sphinx_book_theme"
html_title = f"gears {__version__}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
copybutton_exclude = ".linenos, .gp, .go"
html_show_sourcelink = False
html_theme_options = {
    "use_download_button": False,
    "use_fullscreen_button": False,
    "show_toc_level": 1,
    "show_navbar_depth": 1,
    "navbar_persistent": [],
    "navigation_with_keys": False,
    "pygments_light_style": "tango",
    "pygments_dark_style": "monokai",
}

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
autodoc_typehints = "description"
autodoc_member_order = "bysource"
napoleon_google_docstring = False

# Classes of results, which users read but do not construct: the reference shows what they hold, not their arguments.
RESULTS = {
    "gears.data.CellBatch", "gears.evaluation.Truth", "gears.jobs.EnsemblePredictions", "gears.prediction.Predictions",
}  # fmt: skip


def setup(app: object) -> None:
    """Show classes of results without the signature of their constructor."""

    def shorten(app: object, what: str, name: str, *_: object) -> tuple[str, None] | None:
        return ("", None) if what == "class" and name in RESULTS else None

    app.connect("autodoc-process-signature", shorten)  # type: ignore[attr-defined]
