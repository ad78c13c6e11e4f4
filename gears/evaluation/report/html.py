"""Pieces of an HTML page. Every string that comes from data is escaped here and nowhere else."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import pandas as pd

from gears.evaluation.report.assets import SCRIPT, STYLE


def page(title: str, body: Sequence[str]) -> str:
    """A whole page; it refers to nothing outside itself."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
    )
    return head + "\n".join(body) + f"\n</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"


def heading(text: str, *, level: int = 2, anchor: str = "") -> str:
    """A heading."""
    mark = f' id="{escape(anchor)}"' if anchor else ""
    return f"<h{level}{mark}>{escape(text)}</h{level}>"


def paragraph(text: str, *, kind: str = "") -> str:
    """A paragraph; `kind` is a class of the style sheet."""
    mark = f' class="{escape(kind)}"' if kind else ""
    return f"<p{mark}>{escape(text)}</p>"


def table(
    rows: pd.DataFrame,
    caption: str,
    *,
    notes: Mapping[tuple[int, str], str] | None = None,
    emphasised: Mapping[int, str] | None = None,
    heads: Mapping[str, str] | None = None,
) -> str:
    """A sortable table that can be copied as tab-separated text with all digits.

    Parameters
    ----------
    rows
        What is shown: numbers with four digits, their full value in
        ``data-value``; NaN as "undefined".
    caption
        Said above it.
    notes
        Small text after the value in (row, column), such as an interval.
    emphasised
        Class of the style sheet by row.
    heads
        Small text under a column's name.
    """
    notes, emphasised, heads = notes or {}, emphasised or {}, heads or {}
    lines = [
        '<div class="block">',
        f'<div class="bar"><span class="caption">{escape(caption)}</span>'
        '<button type="button" class="copy">Copy table</button></div>',
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table><thead><tr>',
    ]
    for column in rows.columns:
        under = f"<small>{escape(heads[column])}</small>" if column in heads else ""
        kind = ' class="number"' if pd.api.types.is_numeric_dtype(rows[column]) else ""
        lines.append(
            f'<th scope="col" aria-sort="none"{kind}><button type="button" class="sort">{escape(str(column))}'
            f"</button>{under}</th>"
        )
    lines.append("</tr></thead><tbody>")
    for number, values in enumerate(rows.itertuples(index=False, name=None)):
        mark = f' class="{escape(emphasised[number])}"' if number in emphasised else ""
        cells = [
            _cell(value, notes.get((number, column), ""), first=place == 0)
            for place, (column, value) in enumerate(zip(rows.columns, values, strict=True))
        ]
        lines.append(f"<tr{mark}>{''.join(cells)}</tr>")
    return "\n".join([*lines, "</tbody></table></div></div>"])


def folded(title: str, content: str) -> str:
    """Content that is shown on a click; `content` is HTML of this module."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def picture(image: bytes, text: str, *, kind: str = "png") -> str:
    """An image inside the page, with its description."""
    media = {"png": "image/png", "svg": "image/svg+xml"}[kind]
    data = base64.b64encode(image).decode()
    return (
        f'<figure><div class="picture" tabindex="0" role="group" aria-label="Figure">'
        f'<img alt="{escape(text)}" src="data:{media};base64,{data}"></div>'
        f"<figcaption>{escape(text)}</figcaption></figure>"
    )


def definitions(entries: Mapping[str, str]) -> str:
    """A list of terms and what they mean."""
    items = [f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in entries.items()]
    return f"<dl>{''.join(items)}</dl>"


def number(value: float) -> str:
    """A number as it is shown: four significant digits, "undefined" for NaN."""
    if math.isnan(value):
        return "undefined"
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e5:
        return f"{value:.4g}"
    return f"{value:.2e}"


def _cell(value: Any, note: str, *, first: bool) -> str:
    small = f" <small>{escape(note)}</small>" if note else ""
    if first and isinstance(value, str):
        return f'<th scope="row">{escape(value)}{small}</th>'
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"<td>{escape(str(value))}{small}</td>"
    full = "" if isinstance(value, float) and math.isnan(value) else repr(value)
    shown = str(value) if isinstance(value, int) else number(value)
    return f'<td class="number" data-value="{escape(full)}">{escape(shown)}{small}</td>'
