"""Sphinx settings; `make docs` builds with warnings as errors and without network."""

from gears._install import __version__

project = "gears"
copyright = "2026, the gears developers"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = f"gears {__version__}"
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
autodoc_typehints = "description"
napoleon_google_docstring = False
