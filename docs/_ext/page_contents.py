"""Contents at the top of a page with several sections, for narrow windows; names in tables break after "_" or "."."""

from __future__ import annotations

import re
from typing import Any

AT_LEAST = 4
"""Links that a page has before it gets contents: its title and three sections."""


def with_contents(body: str, toc: str) -> str:
    """Put the links of a page behind its first paragraph, folded; unchanged where there are few."""
    head, end, rest = body.partition("</p>\n")
    if toc.count("<a ") < AT_LEAST or not rest:
        return body
    return f'{head}{end}<details class="page-contents"><summary>On this page</summary>{toc}</details>\n{rest}'


def with_breaks(body: str) -> str:
    """Let the code in cells of tables break after a sign, not within a word."""

    def broken(cell: re.Match[str]) -> str:
        return re.sub(
            r'(?<=<span class="pre">)[^<]+', lambda code: re.sub(r"([_.=(/])(?=\w)", r"\1<wbr>", code[0]), cell[0]
        )

    return re.sub(r"<t[dh]\b.*?</t[dh]>", broken, body, flags=re.DOTALL)


def setup(app: Any) -> dict[str, Any]:
    """Add the contents when a page is written."""

    def add(app: Any, pagename: str, template: str, context: dict[str, Any], doctree: Any) -> None:
        if doctree is not None and pagename != app.config.root_doc:
            context["body"] = with_breaks(with_contents(context["body"], context.get("toc", "")))

    app.connect("html-page-context", add)
    return {"parallel_read_safe": True}
