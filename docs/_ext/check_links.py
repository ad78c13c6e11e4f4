"""Check a built site: every link and picture leads to a page and place of the site, nothing is fetched from elsewhere.

python docs/_ext/check_links.py docs/_build/html
"""

from __future__ import annotations

import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Links, anchors and loaded files of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what a tag refers to."""
        values = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := values.get(name))}
        if tag == "a" and (target := values.get("href")):
            self.links.append(target)
        if tag in ("img", "script", "source") and (target := values.get("src")):
            self.loaded.append(target)
        if tag == "link" and values.get("rel") in ("stylesheet", "preload", "icon") and (target := values.get("href")):
            self.loaded.append(target)


@cache
def read(path: Path) -> Page:
    """A parsed page."""
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def has_anchor(file: Path, fragment: str) -> bool:
    """Whether a page has a place of that name."""
    return bool({fragment, unquote(fragment)} & read(file).anchors)


def check(root: Path) -> tuple[list[str], int]:
    """What is wrong, and how many links and files were looked at."""
    wrong: list[str] = []
    looked_at = 0
    for path in sorted(root.rglob("*.html")):
        if {"_modules", "_static"} & set(path.relative_to(root).parts) or path.name in ("genindex.html", "search.html"):
            continue
        page, place = read(path), path.relative_to(root)
        for target in [*page.links, *page.loaded]:
            parts = urlsplit(target)
            looked_at += 1
            if parts.scheme in ("http", "https", "mailto", "data") or parts.netloc:
                if target in page.loaded and parts.scheme != "data":
                    wrong.append(f"{place}: loads {target}, which is not part of the site")
                continue
            file = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            file = file / "index.html" if file.is_dir() else file
            if not file.is_file():
                wrong.append(f"{place}: {target} leads to no file")
            elif parts.fragment and file.suffix == ".html" and not has_anchor(file, parts.fragment):
                wrong.append(f"{place}: {target} leads to no place of that page")
    return wrong, looked_at


def main() -> int:
    """Print what is wrong; 1 if anything is."""
    wrong, looked_at = check(Path(sys.argv[1]).resolve())
    print("\n".join([*wrong, f"{looked_at} links and files looked at, {len(wrong)} wrong"]))
    return 1 if wrong or not looked_at else 0


if __name__ == "__main__":
    sys.exit(main())
