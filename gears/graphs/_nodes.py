"""Genes of the perturbation graph, and lists of genes from files."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gears.conditions import CONTROL_LABEL, Condition, split_label
from gears.core._messages import count, in_a_line, shorten
from gears.data.screen._contexts import ModelContexts
from gears.data.screen._prepared import PreparedScreen
from gears.files._paths import existing_file
from gears.files._untrusted import load_npy, load_plain
from gears.files.formats import read_json
from gears.graphs._annotation import GeneAnnotation, near_symbols

logger = logging.getLogger(__name__)

_HEADERS = ("gene", "genes", "gene_name", "gene_symbol", "symbol")


def read_gene_set(path: str | Path) -> list[str]:
    """Genes of a file: text (one a line), CSV or TSV (first column, or the one named gene, gene_name or symbol), JSON
    (list, or dict with genes as keys), a pickle of a plain list, set, dict or array, or ``.npy``; by its content.
    """
    path = existing_file(path, "gene set file")
    raw = path.read_bytes()
    if raw[:1] == b"\x80":
        content: Any = load_plain(path)
    elif raw[:6] == b"\x93NUMPY":
        content = load_npy(path)
    else:
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            msg = f"{path} is neither text, CSV, JSON nor a pickle of plain values; write one gene a line"
            raise ValueError(msg) from error
        content = read_json(path) if text.lstrip("\ufeff \t\r\n")[:1] in ("[", "{") else _from_text(text)
    if isinstance(content, np.ndarray):
        content = content.ravel().tolist()
    genes = list(content) if isinstance(content, Iterable) and not isinstance(content, str) else []
    wrong = [gene for gene in genes if not isinstance(gene, str) or not gene.strip()]
    if not genes or wrong:
        what = f"entries that are no gene names ({shorten(map(repr, wrong))})" if wrong else "no genes"
        msg = f"{path} holds {what}; expected gene names, one a line"
        raise ValueError(msg)
    return sorted({gene.strip() for gene in genes})


def _from_text(text: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not lines:
        return []
    separator = next((sign for sign in ("\t", ",", ";") if sign in lines[0]), None)
    rows = [[cell.strip().strip('"') for cell in line.split(separator)] if separator else [line] for line in lines]
    column = next((i for i, cell in enumerate(rows[0]) if cell.lower() in _HEADERS), None)
    body = rows if column is None else rows[1:]
    at = column or 0
    return [row[at] for row in body if len(row) > at and row[at]]


def graph_genes(
    annotation: GeneAnnotation,
    measured: Sequence[str],
    perturbed: Sequence[str],
    *,
    gene_set: Sequence[str] | None,
    default_pert_graph: bool,
) -> np.ndarray:
    """Nodes of the perturbation graph, (P,) sorted: annotated or measured genes, or a list, and perturbed ones."""
    added = [] if gene_set is None else sorted(set(perturbed) - set(gene_set))
    if added:
        logger.warning("added to the gene set: %s (%s)", count(len(added), "perturbed gene"), shorten(added, 50))
    base = gene_set if gene_set is not None else annotation.genes if default_pert_graph else measured
    return np.unique(np.asarray([*base, *perturbed], dtype=str))


def with_annotated_genes(screen: PreparedScreen, annotation: GeneAnnotation, *, drop: bool = False) -> PreparedScreen:
    """The screen; perturbed genes that the annotation lacks are reported, or with `drop` their conditions excluded."""
    missing = sorted(gene for gene in set(screen.perturbed_genes) if annotation.resolve(gene) is None)
    if not missing:
        return screen
    if not drop:
        logger.warning("%s", in_a_line(("not in the annotation: isolated nodes (or drop_unmapped=True): ", missing)))
        return screen
    dropped = [condition for condition in screen.conditions if not set(missing).isdisjoint(condition.genes)]
    n_cells = int(sum(screen.statistics.n[screen.id_of(condition)] for condition in dropped))
    numbers = (count(len(dropped), "condition"), count(n_cells, "cell"), count(len(missing), "gene"))
    logger.warning("dropped %s (%s) with %s that the annotation lacks: %s", *numbers, shorten(missing, 50))
    return screen.without(dropped)


class PerturbationNodes:
    """Nodes of the perturbation graph by number, and those that a condition perturbs, with its setting."""

    def __init__(self, names: np.ndarray, screen: PreparedScreen) -> None:
        self.number = {gene: i for i, gene in enumerate(names.tolist())}
        # the numbers of contexts are needed alone, and no means
        self._contexts = ModelContexts(screen.contexts, screen.kinds, np.empty((0, 0)))

    def of_condition(self, condition: Condition) -> Sequence[int]:
        """Nodes that a condition perturbs, empty for the control; KeyError with near names for a gene that is none."""
        for gene in condition.genes:
            if gene not in self.number:
                near = near_symbols(gene, list(self.number))
                hint = f"; did you mean {' or '.join(near)}?" if near else ""
                msg = f"gene {gene!r} is not in the perturbation graph{hint}"
                raise KeyError(msg)
        return self._in_setting(condition, [self.number[gene] for gene in condition.genes])

    def of_label(self, label: str, condition: Condition) -> Sequence[int]:
        """Nodes of the genes of a label (of a condition) in its own order, [-1] for a control."""
        genes = split_label(label.removesuffix(condition.suffix) if condition.suffix else label)
        nodes = [self.number[gene] for gene in genes if gene != CONTROL_LABEL]
        return self._in_setting(condition, list(dict.fromkeys(nodes)) or [-1])

    def _in_setting(self, condition: Condition, nodes: list[int]) -> Sequence[int]:
        """Nodes with the numbers of the condition's context and perturbation type, where there are any."""
        return nodes if self._contexts.is_plain else self._contexts.node_sets([condition], [nodes])[0]
