"""Words and objects as users see them: nearest valid names, lists that stay short, tables in notebooks."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def shorten(values: Iterable[object], limit: int = 8) -> str:
    """Join values for a message; of more than `limit` only the first are named.

    Examples
    --------
    >>> shorten(["A", "B", "C"], limit=2)
    'A, B and 1 more'
    """
    names = list(map(_cut, map(str, values)))
    if len(names) <= limit:
        return ", ".join(names)
    return f"{', '.join(names[:limit])} and {len(names) - limit} more"


def in_a_line(*parts: tuple[str, Sequence[object]], limit: int = 80) -> str:
    """Texts, each with names behind it, as many of each as fit into a line; parts without names are omitted.

    Examples
    --------
    >>> in_a_line(("seen: ", ["KLF1", "AHR", "GATA1"]), ("new: ", ["CEBPA"]), ("odd: ", []), limit=33)
    'seen: KLF1 and 2 more; new: CEBPA'
    """
    for n_names in range(max(len(names) for _, names in parts), 0, -1):
        line = "; ".join(f"{text}{shorten(names, n_names)}" for text, names in parts if names)
        if len(line) <= limit:
            break
    return line


def _cut(name: str) -> str:
    """The beginning of a very long name, and its length."""
    return name if len(name) <= 300 else f"{name[:60]}... ({len(name)} characters)"


def brief(value: object) -> str:
    """A user's value for a message: one short line, of tables and arrays the type and shape alone.

    Examples
    --------
    >>> brief("KLF1"), brief([1, 2])
    ("'KLF1'", '[1, 2]')
    """
    shape = getattr(value, "shape", ())
    if isinstance(shape, tuple) and shape:
        return f"an array of the type {type(value).__name__}, {shape}"
    return _cut(" ".join(repr(value).split()))


def check_unique(names: Iterable[str], what: str) -> None:
    """Raise ValueError that lists the names that occur more than once; `what` says whose names they are."""
    listed = list(names)
    if len(set(listed)) < len(listed):
        twice = [name for name, n in Counter(listed).items() if n > 1]
        msg = f"{what} must be unique; found more than once: {shorten(sorted(twice))}"
        raise ValueError(msg)


def nearest(name: str, valid: Sequence[str], n: int = 3, *, least: float = 0.6) -> list[str]:
    """Up to `n` valid names that look most like `name`, case ignored, with a similarity (0 to 1) of at least `least`.

    Examples
    --------
    >>> nearest("klf1", ["AHR", "KLF1", "KLF2"])[0]
    'KLF1'
    """
    by_lower: dict[str, str] = {}
    for value in valid:
        by_lower.setdefault(value.lower(), value)
    return [by_lower[match] for match in difflib.get_close_matches(name.lower(), list(by_lower), n, least)]


def suggestion(name: str, valid: Iterable[object], what: str) -> str:
    """A remedy for a name that is not among the valid ones: the nearest of them or, where none is near, a list.

    Examples
    --------
    >>> suggestion("bach", ["batch", "donor"], "columns"), suggestion("line", ["batch", "donor"], "columns")
    ("did you mean 'batch'?", 'columns: batch, donor')
    """
    names = [str(value) for value in valid]
    near = nearest(name, names, 1)
    return f"did you mean {near[0]!r}?" if near else f"{what}: {shorten(names) or 'none'}"


def unknown_name(kind: str, name: str, valid: Sequence[str]) -> str:
    """Message for a name that is not among the valid ones, with near matches or the whole list."""
    matches = nearest(str(name), valid)
    hint = f"; did you mean {' or '.join(map(repr, matches))}?" if matches else ""
    return f"unknown {kind} {name!r}{hint} (valid: {shorten(valid, 20)})"


def count(n: int, one: str, many: str | None = None) -> str:
    """A number with its noun in the right form.

    Examples
    --------
    >>> count(1, "cell"), count(2, "cell"), count(0, "entry", "entries")
    ('1 cell', '2 cells', '0 entries')
    """
    return f"{n} {agreeing(n, one, many or one + 's')}"


def agreeing(n: int, one: str, many: str) -> str:
    """The word that agrees with a number: `one` for 1, else `many`."""
    return one if n == 1 else many


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
