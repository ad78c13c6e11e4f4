"""Names of genes: repeated, changed by a program or keyboard, or not shared by labels and measured genes."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import pandas as pd

from gears.conditions import CONTROL_LABEL, SEPARATOR
from gears.core._findings import Finding, check
from gears.core._messages import agreeing, count, shorten

KnownGene = Callable[[str], object]
"""Symbol of a gene that the annotation knows (or True), None (or False) for any other name."""

_ENSEMBL = re.compile(r"ENS[A-Z]*G\d{6,}(\.\d+)?")
_GENOME = re.compile(r"(GRC[hm]\d+|hg\d\d|mm\d\d?|human|mouse)_+", re.IGNORECASE)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DATE = re.compile(
    rf"(?P<day>\d{{1,2}})[-/ ](?P<month>{'|'.join(_MONTHS)})|(?P<month2>{'|'.join(_MONTHS)})-(?P<day2>\d{{1,2}})"
    r"|\d{4}-(?P<number>\d\d)-(?P<day3>\d\d)(?: 00:00:00)?",
    re.IGNORECASE,
)
_OF_MONTH = {"Mar": "MARCHF", "Sep": "SEPTIN", "Dec": "DELEC"}
_LOOK_ALIKE = str.maketrans(
    "\u0410\u0412\u0415\u0405\u0406\u0408\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0425\u0423"
    "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7"
    "\u0430\u0435\u043e\u0440\u0441\u0445\u0443\u2010\u2011\u2012\u2013\u2014\u2212",
    "ABESIJKMHOPCTXYABEZHIKMNOPTYXaeopcxy------",
)
"""Cyrillic and Greek letters and dashes that look like ASCII ones."""


def gene_findings(names: pd.Series, index: pd.Index, *, unique_genes: bool) -> list[Finding]:
    """Missing, repeated or unusable gene names."""
    missing = list(index[names.isna()])
    what = f"the gene name is missing for {count(len(missing), 'gene')}"
    findings = check("missing-gene-name", missing, what, "fill or drop them")
    texts = names.dropna().astype(str)
    repeated = [name for name, n in Counter(texts).items() if n > 1]
    occur = count(len(repeated), "gene name occurs", "gene names occur")
    remedy, severity = "pass unique_genes=True to add the gene ids to them, or keep one column each", "error"
    if unique_genes:
        remedy, severity = "the gene ids are added to them", "warning"
    what = f"{occur} more than once ({shorten(repeated)})"
    findings += check("repeated-gene-name", repeated, what, remedy, severity)
    joined = [name for name in texts if SEPARATOR in name]
    what = f"gene names with {SEPARATOR!r} ({shorten(joined)}) look like pairs of genes"
    findings += check("separator-in-gene-name", joined, what, "rename them")
    again = list(index[index.duplicated()])
    what = f"the index of adata.var has {count(len(again), 'repeated entry', 'repeated entries')}"
    return findings + check("repeated-gene-id", again, what, "call adata.var_names_make_unique() on a copy")


def tokens_of(labels: Iterable[str]) -> list[str]:
    """Perturbed genes of labels in the published form, sorted."""
    tokens = {token.strip() for label in labels for token in label.split(SEPARATOR)}
    return sorted(tokens - {CONTROL_LABEL, ""})


def as_date(name: str) -> str | None:
    """The gene that a spreadsheet made this date of ("" where it is not known), None for a name that is no date."""
    match = _DATE.fullmatch(name)
    if match is None:
        return None
    number = match["number"]
    month = _MONTHS[(int(number) - 1) % 12] if number else (match["month"] or match["month2"]).capitalize()
    day = int(match["day"] or match["day2"] or match["day3"])
    return f"{_OF_MONTH[month]}{day}" if month in _OF_MONTH else ""


def in_ascii(name: str) -> str:
    """A name with the letters that its own look like, without signs that are not seen."""
    seen = "".join(sign for sign in name if unicodedata.category(sign) != "Cf")
    return unicodedata.normalize("NFKC", seen).translate(_LOOK_ALIKE)


def date_findings(names: Sequence[str], what: str, severity: str) -> list[Finding]:
    """Names that a spreadsheet made dates of; `what` they are, such as "gene name"."""
    dates = {name: gene for name in names if (gene := as_date(name)) is not None}
    shown = shorten(f"{name} ({gene})" if gene else name for name, gene in dates.items())
    text = f"{count(len(dates), what)} became dates in a spreadsheet: {shown}"
    return check("dates", dates, text, "write the symbols again", severity)


def look_alike_findings(names: Sequence[str], known: Callable[[str], bool], what: str, severity: str) -> list[Finding]:
    """Names with letters that look like those of a known gene; `what` they are, such as "gene name"."""
    strange = {own: name for own in names if not own.isascii() and not known(own) and known(name := in_ascii(own))}
    shown = []
    for own, name in strange.items():
        signs = ", ".join(f"U+{ord(sign):04X} ({unicodedata.name(sign, '?')})" for sign in own if ord(sign) > 127)
        shown.append(f"{own!r} has {signs}, {name} is meant")
    text = f"{count(len(strange), what)} with letters that look like other ones: {shorten(shown)}"
    remedy = "write them with plain letters: they would be other genes"
    return check("look-alike-letters", strange, text, remedy, severity)


def other_case_findings(tokens: Sequence[str], measured: Sequence[str], known: Callable[[str], bool]) -> list[Finding]:
    """Perturbed genes that are not known, but are measured in other letters ("klf1" beside "KLF1")."""
    by_lower = {name.lower(): name for name in measured}
    names = set(measured)
    other = {
        token: by_lower[token.lower()]
        for token in tokens
        if token not in names and token.lower() in by_lower and not known(token)
    }
    shown = shorten(f"{token} ({name})" for token, name in other.items())
    what = f"{count(len(other), 'perturbed gene')} not measured as spelled, but in other letters: {shown}"
    remedy = "they are taken for other genes: spell labels and gene names alike"
    return check("other-letters", other, what, remedy, "warning")


def unmeasured_findings(tokens: Sequence[str], measured: Sequence[str], var: pd.DataFrame) -> list[Finding]:
    """Perturbed genes of which none is measured, or which another column of var names better."""
    names, n = set(measured), len(tokens)
    n_measured = len(names.intersection(tokens))
    columns = {
        "index": pd.Series(var.index, dtype=object),
        **{str(name): var[name] for name in var if not pd.api.types.is_numeric_dtype(var[name])},
    }
    named = Counter({key: len(set(values.astype(str)).intersection(tokens)) for key, values in columns.items()})
    best, n_best = named.most_common(1)[0]
    if n == 0 or (n_measured and n_best <= 2 * n_measured):
        return []
    remedy, difference = f"pass gene_key={best!r}, which has {n_best} of them", _kind(tokens, measured)
    if not n_best:
        remedy = difference[1]
    share = f"{n_measured} of {count(n, 'perturbed gene')} ({n_measured / n:.0%})"
    what = f"{share} {agreeing(n, 'is', 'are')} measured: gene names are such as {shorten(measured, 2)}, "
    what += f"labels such as {shorten(tokens, 2)}{difference[0]}"
    return check("not-measured", tokens, what, remedy, "warning", n=n - n_measured)


def _kind(tokens: Sequence[str], measured: Sequence[str]) -> tuple[str, str]:
    """How the names differ from labels, and what to do."""
    perturbed = set(tokens)
    prefixed = [name for name in measured if _GENOME.match(name)]
    if prefixed:
        prefix = _GENOME.match(prefixed[0])[0]  # type: ignore[index]
        what = f" ({len(prefixed) / len(measured):.0%} of the gene names begin with a genome, {prefix!r})"
        return what, "remove the genome from the gene names, and the genes of another species"
    ids = [[name for name in names if _ENSEMBL.fullmatch(name)] for names in (measured, tokens)]
    if ids[0] and ids[1]:
        return (" (Ensembl identifiers of other versions)", "remove the versions (.5) from labels and gene names")
    for ensembl, names, which in zip(ids, (measured, tokens), ("gene names", "labels"), strict=True):
        if ensembl:
            what = f" ({len(ensembl) / len(names):.0%} of the {which} are Ensembl identifiers)"
            other = "labels" if which == "gene names" else "gene names"
            return what, f"name {which} as {other} are: put the symbols in a column of var and pass gene_key="
    if perturbed & {name.upper() for name in measured} or perturbed & {name.capitalize() for name in measured}:
        return " (another species?)", "bring labels and gene names to one species and one spelling"
    remedy = "if they are measured under other names, pass the column of var with these names as gene_key="
    return "", remedy


def other_names(tokens: Sequence[str], measured: Sequence[str], symbol_of: KnownGene) -> dict[str, str]:
    """Perturbed genes that the screen also has under another name, and that name: the measured one, else the symbol.

    A gene that is measured keeps its name.
    """
    names = set(measured)
    of_symbol: dict[str, list[str]] = {}
    for token in tokens:
        if isinstance(symbol := symbol_of(token), str):
            of_symbol.setdefault(symbol, []).append(token)
    strange = {symbol for symbol, owners in of_symbol.items() if set(owners) - names}
    if not strange:
        return {}
    here = _names_of(strange, measured, symbol_of)
    renamed = {}
    for symbol in sorted(strange):
        owners, alike = of_symbol[symbol], here.get(symbol, [])
        if len(alike) > 1 or not (alike or len(owners) > 1):
            continue
        name = alike[0] if alike else symbol if symbol in owners else owners[0]
        renamed.update({token: name for token in owners if token != name and token not in names})
    return renamed


def model_names(
    requested: Iterable[str], screen: Collection[str], nodes: Collection[str], symbol_of: KnownGene
) -> dict[str, str]:
    """Requested genes that a model has under another name, and that name: the screen's, else the graph's.

    A gene that is measured or perturbed in the `screen` and one of the `nodes` is not renamed. ValueError where a gene
    means two of these.
    """
    symbols = {
        gene: symbol
        for gene in requested
        if not (gene in screen and gene in nodes) and isinstance(symbol := symbol_of(gene), str)
    }
    if not symbols:
        return {}
    here, renamed = _names_of(set(symbols.values()), nodes, symbol_of), {}
    for gene, symbol in symbols.items():
        all_names = here.get(symbol, [])
        names = [name for name in all_names if name in screen] or all_names
        if gene in names:
            continue
        if len(names) > 1:
            msg = (
                f"{gene!r} is another name of {' and of '.join(names)}, {len(names)} genes of this model; "
                "give the one that is meant"
            )
            raise ValueError(msg)
        if names:
            renamed[gene] = names[0]
    return renamed


def _names_of(symbols: set[str], names: Iterable[str], symbol_of: KnownGene) -> dict[str, list[str]]:
    """Those of the (distinct) names that mean each symbol."""
    by_symbol: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        symbol = name if name in symbols else symbol_of(name)
        if isinstance(symbol, str) and symbol in symbols:
            by_symbol.setdefault(symbol, []).append(name)
    return by_symbol


def one_spelling(
    screens: Mapping[str, tuple[Sequence[str], Sequence[str]]], symbol_of: KnownGene | None
) -> dict[str, dict[str, str]]:
    """Measured genes of each screen, given with their ids, that another screen names otherwise, and their common name.

    Ensembl identifiers lose their version, and take the name that a screen gives to that id; aliases take the symbol.
    Where a screen measures two names of a gene, all keep theirs.
    """
    name_of_id = {
        _plain_id(gene_id): name
        for names, ids in screens.values()
        for name, gene_id in zip(names, ids, strict=True)
        if _ENSEMBL.fullmatch(gene_id) and not _ENSEMBL.fullmatch(name)
    }
    meant: dict[str, dict[str, list[str]]] = {}
    for screen, (names, _) in screens.items():
        for name in names:
            plain = name_of_id.get(_plain_id(name), _plain_id(name))
            symbol = None if symbol_of is None else symbol_of(plain)
            by_screen = meant.setdefault(symbol if isinstance(symbol, str) else plain, {})
            by_screen.setdefault(screen, []).append(name)
    renamed: dict[str, dict[str, str]] = {screen: {} for screen in screens}
    for common, by_screen in meant.items():
        if all(len(names) == 1 for names in by_screen.values()) and len({names[0] for names in by_screen.values()}) > 1:
            for screen, (name,) in by_screen.items():
                renamed[screen] |= {name: common} if name != common else {}
    return renamed


def _plain_id(name: str) -> str:
    """An Ensembl identifier without its version; any other name unchanged."""
    return name.partition(".")[0] if _ENSEMBL.fullmatch(name) else name


def with_names(label: str, renamed: Mapping[str, str]) -> str:
    """A label in the published form with other names of its genes ("KMT2A+ctrl" for "MLL+ctrl")."""
    return SEPARATOR.join(renamed.get(token.strip(), token) for token in label.split(SEPARATOR))


def other_name_findings(renamed: dict[str, str]) -> list[Finding]:
    """Names that were replaced by another one of the same gene."""
    shown = shorten(f"{old} is {new}" for old, new in renamed.items())
    what = f"{count(len(renamed), 'perturbed gene')} under another name of a gene that this screen has: {shown}"
    return check("other-name", renamed, what, "read as that gene", "warning")
