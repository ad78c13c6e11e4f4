"""Checks of what is to be drawn: what was found, what was expected, how to repair it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gears.conditions import Condition
from gears.messages import count, shorten


def per_gene(name: str, values: Any, n_genes: int | None = None) -> np.ndarray:
    """Values of the genes as float64, (G,).

    Raises
    ------
    ValueError
        If they are not one finite number per gene.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or (n_genes is not None and len(array) != n_genes):
        wanted = "one value per gene" + ("" if n_genes is None else f", ({n_genes},)")
        msg = f"{name} has shape {array.shape}; expected {wanted}: give one condition's row"
        raise ValueError(msg)
    return array


def per_condition(name: str, values: Any, n_conditions: int) -> np.ndarray:
    """A table of conditions x genes as float64, (U, G)."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or len(array) != n_conditions:
        msg = (
            f"{name} has shape {array.shape}; expected one row for each of {count(n_conditions, 'condition')} "
            "and one column per gene"
        )
        raise ValueError(msg)
    return array


def names_of(gene_names: Sequence[str], n_genes: int) -> list[str]:
    """Gene names, one for each gene."""
    if len(gene_names) != n_genes:
        msg = f"{count(len(gene_names), 'gene name')} for {count(n_genes, 'gene')}; give one name per gene"
        raise ValueError(msg)
    return [str(name) for name in gene_names]


def condition_names(conditions: Iterable[Condition | str]) -> list[str]:
    """Labels of conditions: genes, type and context; a gene alone without "+ctrl"."""
    parsed = [Condition.of(condition) for condition in conditions]
    return [("+".join(one.genes) or "ctrl") + one.suffix for one in parsed]


def positions(genes: Iterable[int | np.integer | str], gene_names: Sequence[str]) -> np.ndarray:
    """Positions of genes given by name or position, (K,) int64.

    Raises
    ------
    ValueError
        If a gene is unknown or a position out of range, or there is none.
    """
    index = {name: place for place, name in enumerate(gene_names)}
    chosen = [gene if isinstance(gene, str) else int(gene) for gene in genes]
    unknown = [g for g in chosen if (g not in index if isinstance(g, str) else not 0 <= g < len(gene_names))]
    if unknown:
        msg = (
            f"{count(len(unknown), 'gene')} not among the {len(gene_names)} that are predicted: "
            f"{shorten(unknown)}; give names out of gene_names, or positions from 0 to {len(gene_names) - 1}"
        )
        raise ValueError(msg)
    if not chosen:
        msg = "there is no gene to draw; give at least one"
        raise ValueError(msg)
    return np.array([index[gene] if isinstance(gene, str) else gene for gene in chosen], dtype=np.int64)


def columns_of(table: Any, wanted: Sequence[str], what: str) -> None:
    """Refuse a table that lacks columns."""
    missing = [name for name in wanted if name not in getattr(table, "columns", ())]
    if missing:
        found = shorten(getattr(table, "columns", ())) or "none"
        msg = f"the table lacks {shorten(missing)} (its columns: {found}); expected {what}"
        raise ValueError(msg)
