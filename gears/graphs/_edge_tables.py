"""Edge tables as databases give them: columns found by name, scores brought to 0..1, signs read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from gears.core._messages import check_unique, shorten, unknown_name
from gears.files._paths import existing_file, reading
from gears.files.formats import read_delimited, read_npz
from gears.graphs._annotation import pack, unpack
from gears.graphs._graph import Graph, name_order, strongest

logger = logging.getLogger(__name__)

SIGNS = ("ignore", "positive", "negative")
# Pairs of columns that name an edge, in the order in which they are looked for (lower case).
ENDS = (
    ("source_genesymbol", "target_genesymbol"),  # OmniPath: source and target hold accession numbers
    ("source", "target"), ("tf", "target"), ("node1", "node2"), ("preferredname_a", "preferredname_b"),
    ("protein1", "protein2"), ("gene1", "gene2"), ("gene_1", "gene_2"), ("gene_a", "gene_b"), ("from", "to"),
    ("regulatorygene", "targetgene"),
)  # fmt: skip
SCORES = ("weight", "importance", "combined_score", "score", "mor", "likelihood", "similarity")
CONFIDENCE = {"A": 1.0, "B": 0.8, "C": 0.6, "D": 0.4, "E": 0.2}
"""Weight of DoRothEA's letters (a choice of this package: equal steps)."""

DECIMAL_COMMA = r"[-+]?(?:\d{0,4}|\d{1,3}(?:\.\d{3})+)(?:,\d+)?(?:[eE][-+]?\d+)?"
"""A number as spreadsheets write it in many countries; longer ones are lists of identifiers."""


@dataclass(frozen=True)
class EdgeFile:
    """A file of edges, and how it is read.

    Parameters
    ----------
    path
        CSV, TSV or text with a header, ``.gz`` or not. Without `source`, `target` and `score`
        the columns of STRING, OmniPath, DoRothEA and plain tables are found by their names.
    source, target, score
        Columns, by name. Without a column of numbers every edge weighs 1; where none of several has a known name,
        `score` must say which is one. Scores above 1 are divided by the largest
        (by 1000 for STRING's ``combined_score``).
    least
        Edges with a lower score, as the file gives it, are excluded (700 for STRING's "high confidence").
    signs
        ``"ignore"``: the size of a negative score counts; ``"positive"`` or ``"negative"``: edges of
        that sign only (by the score, or by OmniPath's ``is_stimulation`` and ``is_inhibition``).
    directed
        Messages run from source to target only. By default both ways: a regulator without
        an edge to it would learn nothing from its targets.
    k
        Strongest sources kept per target; the network's setting by default, 0 for all.
    names
        Names in the file -> gene names: a dict, or a table whose first two columns hold them (STRING's
        ``protein.info``).

    Raises
    ------
    ValueError
        For an unknown value of `signs`.
    """

    path: str | Path
    source: str | None = None
    target: str | None = None
    score: str | None = None
    least: float | None = None
    signs: str = "ignore"
    directed: bool = False
    k: int | None = None
    names: Mapping[str, str] | str | Path | None = None

    def __post_init__(self) -> None:
        if self.signs not in SIGNS:
            raise ValueError(unknown_name("signs", str(self.signs), SIGNS))

    def graph(self, nodes: Sequence[str], *, k: int, resolve: Callable[[str], str | None]) -> Graph:
        """The file's edges between `nodes` (see :func:`edges_between`)."""
        table = read_edge_table(self.path)
        return edges_between(table, nodes, self, k=k, resolve=resolve)


def read_edge_table(path: str | Path) -> pd.DataFrame:
    """A table of edges from CSV, TSV, blank-separated text, or an npz file of :func:`pack_edges`."""
    path = existing_file(path, "edge file")
    if path.suffix == ".npz":
        arrays = read_npz(path)
        with reading(path, "edges of pack_edges"):
            ends = {name: unpack(arrays[name]) for name in ("source", "target")}
            return pd.DataFrame(ends | {"weight": arrays["weight"]})
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    with reading(path, "a table of edges", "expected CSV or TSV with a header"):
        table = read_delimited(path, sep=" " if suffix in (".txt", ".links") else None, low_memory=False)
    table.columns = [str(column).lstrip("#") for column in table.columns]
    if table.shape[1] < 2:
        msg = f"{path} has one column ({shorten(table.columns)}); expected source, target and a score, with a header"
        raise ValueError(msg)
    return table


def pack_edges(source: Sequence[str], target: Sequence[str], weight: np.ndarray) -> dict[str, np.ndarray]:
    """Edges as arrays for an npz file that :func:`read_edge_table` reads."""
    return {"source": pack(source), "target": pack(target), "weight": np.asarray(weight)}


def edges_between(
    table: pd.DataFrame,
    nodes: Sequence[str],
    options: EdgeFile,
    *,
    k: int,
    resolve: Callable[[str], str | None] = lambda name: None,
) -> Graph:
    """The edges of a table between `nodes`, each target's `k` strongest; of repeated ones the strongest counts.

    Edges with other genes are excluded, and their number is logged. `options` (their path is for messages only) go
    before `k`; `resolve` gives the symbol of a gene from another name of it.
    """
    check_unique(map(str, table.columns), f"columns of {options.path}")
    source, target = _ends(table, options)
    if options.score is None:
        need_known_score(table.drop(columns=[source, target]), str(options.path))
    size, sign = _scores(table, options)
    if options.signs != "ignore":
        has_sign = sign > 0 if options.signs == "positive" else sign < 0
        size = np.where(has_sign, size, 0.0)
    index, names = {str(node): number for number, node in enumerate(nodes)}, _names(options.names)

    def positions(column: pd.Series) -> np.ndarray:
        """Position of each name among the nodes; -1 where it is none of them under any name."""
        codes, distinct = pd.factorize(column.astype(str))
        known = [names.get(str(name), str(name)) for name in distinct]
        numbers = [index.get(name, index.get(resolve(name) or "", -1)) for name in known]
        return np.array(numbers, dtype=np.int64)[codes]

    source_E, target_E = positions(table[source]), positions(table[target])
    inside = (source_E >= 0) & (target_E >= 0) & (size > 0) & (source_E != target_E)
    if not inside.any():
        shown = shorten(table[source].astype(str).head(3))
        msg = (
            f"none of the {len(table)} edges of {options.path} joins two genes of the graph (edges: {shown} ...; "
            f"genes: {shorten(nodes, 3)}); expected the same kind of gene names in both (names= translates)"
        )
        raise ValueError(msg)
    logger.info("%s: %d of %d edges join two genes of the graph", options.path, int(inside.sum()), len(table))
    source_E, target_E, size = source_E[inside], target_E[inside], size[inside]
    if not options.directed:
        source_E, target_E = np.concatenate([source_E, target_E]), np.concatenate([target_E, source_E])
        size = np.concatenate([size, size])
    return strongest_graph(nodes, source_E, target_E, size, k if options.k is None else options.k)


def strongest_graph(nodes: Sequence[str], source: np.ndarray, target: np.ndarray, weight: np.ndarray, k: int) -> Graph:
    """Graph of each target's `k` strongest sources (0: all); of one pair's edges the strongest counts."""
    order = name_order(tuple(nodes))
    by_name = np.argsort(order)  # nodes by their place among sorted names: of equal edges the first name is kept
    source, target = by_name[source], by_name[target]
    best = np.lexsort((-weight, source, target))
    source, target, weight = source[best], target[best], weight[best]
    first = np.ones(len(source), dtype=bool)
    first[1:] = (np.diff(source) != 0) | (np.diff(target) != 0)
    target, source, weight = strongest(target[first], source[first], weight[first], 0.0, k or len(nodes))
    return Graph(tuple(nodes), np.stack([order[source], order[target]]), weight)


def _ends(table: pd.DataFrame, options: EdgeFile) -> tuple[str, str]:
    by_lower = {str(column).lower(): str(column) for column in table.columns}
    if options.source is not None or options.target is not None:
        asked = [str(options.source), str(options.target)]
        for name in asked:
            if name not in table.columns:
                raise ValueError(unknown_name("column", name, list(table.columns)))
        return asked[0], asked[1]
    for one, two in ENDS:
        if one in by_lower and two in by_lower:
            return by_lower[one], by_lower[two]
    msg = (
        f"{options.path} has no columns that are known to name an edge (columns: {shorten(table.columns)}); "
        "give source= and target="
    )
    raise ValueError(msg)


def _scores(table: pd.DataFrame, options: EdgeFile) -> tuple[np.ndarray, np.ndarray]:
    """Size (0 to 1; 0 where the edge is excluded) and sign of every edge."""
    by_lower = {str(column).lower(): str(column) for column in table.columns}
    name = options.score or next((by_lower[score] for score in SCORES if score in by_lower), None)
    value = np.ones(len(table)) if name is None else _numbers(table, name, options)
    kept = np.isfinite(value) & (True if options.least is None else np.abs(value) >= options.least)
    size = np.where(kept, np.abs(value), 0.0)
    largest = float(size.max(initial=0.0))
    if largest > 1:
        size = size / (1000.0 if str(name).lower() == "combined_score" and largest <= 1000 else largest)
    if "confidence" in by_lower and options.score is None:
        letters = table[by_lower["confidence"]].map(CONFIDENCE)
        size = size * letters.fillna(0.0).to_numpy(dtype=np.float64)
    sign = np.sign(value)
    if {"is_stimulation", "is_inhibition"} <= set(by_lower):
        up, down = (table[by_lower[key]].astype(float) for key in ("is_stimulation", "is_inhibition"))
        sign = (up - down).to_numpy()
    return size, sign


def need_known_score(columns: pd.DataFrame, where: str, known: Sequence[str] = (*SCORES, "confidence")) -> None:
    """Raise ValueError where the columns beside an edge's ends hold scores, but none has a known name.

    Numbers that are not whole are scores; whole ones (identifiers, counts of references) are reported and not used.
    """
    if any(str(column).lower() in known for column in columns):
        return
    for name in columns.select_dtypes(exclude="number"):
        _refuse_decimal_commas(columns[name], where)
    numbers = columns.select_dtypes("number")
    varied = [str(name) for name in numbers if numbers[name].nunique() > 1 and not numbers[name].isin((-1, 0, 1)).all()]
    scores = [name for name in varied if (numbers[name].dropna() % 1 != 0).any()]
    if scores:
        msg = (
            f"{where} has no score of a known name ({', '.join(known)}), but the numbers {shorten(scores)}; name the "
            f"one that is larger for stronger edges: {{'path': ..., 'score': {scores[0]!r}}} (EdgeFile), or call the "
            "column 'weight'; remove them where all edges weigh 1"
        )
        raise ValueError(msg)
    if varied:
        logger.warning("%s: every edge weighs 1; the numbers %s are not used (score= uses one)", where, shorten(varied))


def _refuse_decimal_commas(column: pd.Series, where: str) -> None:
    """Raise ValueError for a column of text that holds numbers with decimal commas ("0,634", "1.634,5")."""
    texts = column.dropna().astype(str).str.strip()
    with_comma = texts[texts.str.contains(",", regex=False)]
    if len(with_comma) and texts.str.fullmatch(DECIMAL_COMMA).all():
        msg = (
            f"the numbers of column {column.name!r} of {where} use decimal commas ({with_comma.iloc[0]!r}); write them "
            "with a point and no sign between thousands (0.634, 1634.5)"
        )
        raise ValueError(msg)


def _numbers(table: pd.DataFrame, name: str, options: EdgeFile) -> np.ndarray:
    if name not in table.columns:
        raise ValueError(unknown_name("column", name, list(table.columns)))
    try:
        return table[name].to_numpy(dtype=np.float64)
    except (ValueError, TypeError) as error:
        _refuse_decimal_commas(table[name], str(options.path))
        msg = f"column {name!r} of {options.path} holds values that are no numbers ({error}); give score="
        raise ValueError(msg) from error


def _names(names: Mapping[str, str] | str | Path | None) -> Mapping[str, str]:
    if names is None or isinstance(names, Mapping):
        return names or {}
    table = read_edge_table(names)
    return dict(zip(table.iloc[:, 0].astype(str), table.iloc[:, 1].astype(str), strict=True))
