"""What a screen must be, checked before any work: every problem is found, with its number and remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import sparse

from gears.conditions import CONTROL_LABEL, SEPARATOR
from gears.core._findings import Finding, check
from gears.core._messages import agreeing, count, shorten
from gears.data.checks._labels import FEW_CONTROLS, LabelTable
from gears.files._mapped import pieces

SAME_GENES = 20
"""Expressed genes from which two cells do not agree in all values by chance."""


def size_findings(n_cells: int, n_genes: int) -> list[Finding]:
    sizes, remedy = {"cells": n_cells, "genes": n_genes}, "check how the file was written or filtered"
    return [Finding(f"no-{what}", f"there are no {what}", remedy) for what, n in sizes.items() if n == 0]


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


def cell_type_findings(cell_types: pd.Series, pool: bool) -> list[Finding]:
    """Missing cell types; several of them unless they are to be pooled."""
    missing = list(cell_types.index[cell_types.isna()])
    what = f"obs[{cell_types.name!r}] is missing for {count(len(missing), 'cell')}"
    findings = check("missing-cell-type", missing, what, "fill or drop them")
    names = sorted({str(value) for value in cell_types.dropna()})
    what = f"{len(names)} cell types ({shorten(names)}): a model describes one"
    remedy = (
        "pass context_key='cell_type' to learn each condition in each type, batch_key='cell_type' to "
        "compare with controls of the same type, or pool_cell_types=True to treat all cells as one type"
    )
    others = [] if pool else names[1:]
    return findings + check("several-cell-types", others, what, remedy, n=len(names))


def value_findings(matrix: sparse.csr_matrix, *, layer: str | None, layers: Sequence[str]) -> list[Finding]:
    """Values that are not finite, or nothing but zeros."""
    values = matrix.data
    place = f"layers[{layer!r}]" if layer else "X"
    bad = sum(int(np.count_nonzero(~np.isfinite(piece))) for piece in pieces(values))
    if bad:
        what = f"{place} holds {count(bad, 'NaN or infinite value')}"
        return [Finding("not-finite", what, "replace them, or drop those cells or genes", bad)]
    if not len(values):
        remedy = "pass the layer that holds the values" if layers else "check how the file was written"
        remedy += f" (layers: {shorten(layers) or 'none'})"
        return [Finding("all-zero", f"{place} holds nothing but zeros", remedy)]
    return []


def small_in_context_findings(table: LabelTable, needed: int) -> list[Finding]:
    """Conditions with too few cells for a variance in their context."""
    pairs = zip(table.conditions, table.counts().tolist(), strict=True)
    small = [f"{condition} ({n})" for condition, n in pairs if n < needed]
    what = f"{len(small)} conditions have fewer than {needed} cells in a context: {shorten(small, 20)}"
    remedy = "leave these cells out, or pass skip_calc_de=True (no differential expression)"
    return check("small-in-context", small, what, remedy)


def small_condition_findings(table: LabelTable, needed: int, *, with_de: bool) -> list[Finding]:
    """A control of few cells, and conditions with too few cells for a variance: an error where DE needs it."""
    counts = table.counts()
    findings: list[Finding] = []
    for n in [int(n) for n, one in zip(counts, table.conditions, strict=True) if one.is_control]:
        what = f"the control has {count(n, 'cell')}"
        if n < needed and with_de:
            remedy = f"differential expression needs {needed} (skip_calc_de=True leaves it out)"
            findings += check("small-control", [CONTROL_LABEL], what, remedy, n=n)
        elif n < FEW_CONTROLS:
            remedy = "every change is a difference from their mean: give more, or name other controls in ctrl_label="
            findings += check("small-control", [CONTROL_LABEL], what, remedy, "warning", n=n)
    too_few = np.flatnonzero(counts < needed)
    small = [f"{table.conditions[i]} ({counts[i]})" for i in too_few if not table.conditions[i].is_control]
    have = f"{count(len(small), 'condition has', 'conditions have')} fewer than {needed} cells"
    what = f"{have}, too few for differential expression: {shorten(small, 20)}"
    remedy = f"pass min_cells={needed} (or more) to drop {agreeing(len(small), 'it', 'them')}"
    return findings + check("small-condition", small, what, remedy, "error" if with_de else "warning")


def repeated_cell_findings(matrix: sparse.csr_matrix, names: pd.Index) -> list[Finding]:
    """Names of cells that occur twice, and cells with the same values in many genes."""
    again = names[names.duplicated()]
    what = f"{count(len(again), 'cell')} with the name of another cell ({shorten(again.unique(), 3)})"
    remedy = "drop them if they are the same cells, or call adata.obs_names_make_unique() on a copy"
    findings = check("repeated-cell-name", list(again), what, remedy, "warning")
    weights_G = np.random.default_rng(0).uniform(1, 2, matrix.shape[1])
    sums_N = matrix @ weights_G
    rows = np.flatnonzero(np.diff(matrix.indptr) >= SAME_GENES)
    same = list(names[rows[pd.Series(sums_N[rows]).duplicated().to_numpy()]])
    what = f"{count(len(same), 'cell')} with exactly the values of another cell ({shorten(same, 3)})"
    remedy = "drop them if they are there twice: they count twice"
    return findings + check("repeated-cell", same, what, remedy, "warning")
