"""HTML of objects, as notebooks show them at the end of a cell."""

from __future__ import annotations

from html import escape
from typing import Any


def html_of(thing: object, table: Any = None) -> str:
    """The text of an object, long lines wrapped; below it a table (a pandas DataFrame), which scrolls if it is wide."""
    text = f'<pre style="white-space: pre-wrap">{escape(repr(thing))}</pre>'
    if table is None:
        return text
    rows = table.to_html(index=False, border=0, float_format="{:.3g}".format)
    return f'{text}<div style="overflow-x: auto">{rows}</div>'


class Shown:
    """Objects that a notebook shows by the text of their repr, with its lines."""

    def _repr_html_(self) -> str:
        return html_of(self)
