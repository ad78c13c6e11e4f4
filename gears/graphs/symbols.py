"""Symbols that a user may have meant by a name that is none."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gears.core.messages import nearest
from gears.graphs.annotation import GeneAnnotation

_MEMBER = re.compile(r"(?P<family>.*?[A-Za-z]-?)(?:\d+\w*|(?<=-)\w+)")
_TYPING_ERROR = 0.8
"""Similarity (difflib) from which a symbol counts as a mistyped one: one other letter of five."""


def near_symbols(name: str, symbols: Sequence[str], n: int = 3) -> list[str]:
    """Up to `n` of the symbols that may be meant by a name that is none of them.

    The same symbol in other letters or with other signs, or its other names (of human genes). Where there are none,
    the symbol with letters in another order, then members of the same family or, without a family, symbols with a
    typing error.

    Examples
    --------
    >>> near_symbols("klf-1", ["AHR", "KLF1", "KLF2"])
    ['KLF1']
    >>> near_symbols("OCT4", ["OCA2", "POU5F1"])
    ['POU5F1']
    >>> near_symbols("FGF2", ["FGF22", "FGR", "FGF7", "F2"])
    ['FGF22', 'FGF7']
    >>> near_symbols("CEPBA", ["CENPA", "CEBPA"])[0], near_symbols("QQQ", ["QARS1"])
    ('CEBPA', [])
    """
    spelled = _plain(name)
    same = [symbol for symbol in symbols if _plain(symbol) == spelled]
    other_names = set(_other_names(name))
    same += [symbol for symbol in symbols if symbol in other_names and symbol not in same]
    if same:
        return same[:n]
    letters, family = sorted(spelled), _family(name)
    swapped = [symbol for symbol in symbols if sorted(_plain(symbol)) == letters]
    relatives = [symbol for symbol in symbols if family and _family(symbol) == family]
    like = nearest(name, relatives, n, least=0.0) or nearest(name, symbols, n, least=_TYPING_ERROR)
    return list(dict.fromkeys([*swapped, *like]))[:n]


def _plain(name: str) -> str:
    return re.sub(r"[\s_.-]", "", name).lower()


def _family(symbol: str) -> str | None:
    """What the symbols of a family begin with ("KLF" of KLF1, "HLA-" of HLA-A), in capitals; None without a number."""
    match = _MEMBER.fullmatch(symbol)
    return None if match is None else match["family"].upper()


def _other_names(name: str) -> list[str]:
    """The symbol that a name is an alias of, and the symbol's aliases."""
    annotation = GeneAnnotation.human()
    symbol = annotation.resolve(name) or annotation.resolve(name.upper())
    if symbol is None:
        return []
    return [symbol, *(alias for alias, gene in annotation.aliases.items() if gene == symbol)]
