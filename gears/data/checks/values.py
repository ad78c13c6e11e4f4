"""What a screen must be, checked before any work: every problem is found, with its number and remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import sparse

from gears.conditions import CONTROL_LABEL, SEPARATOR
from gears.core.findings import Finding
from gears.core.messages import count, shorten
from gears.data.checks.labels import LabelTable
from gears.files.mapped import pieces

FEW_CONTROLS = 10
"""Control cells below which the noise of their mean is reported."""
SAME_GENES = 20
"""Expressed genes from which two cells do not agree in all values by chance."""


def size_findings(n_cells: int, n_genes: int) -> list[Finding]:
    """No cells or no genes at all."""
    sizes, remedy = {"cells": n_cells, "genes": n_genes}, "check how the file was written or filtered"
    return [Finding(f"no-{what}", f"there are no {what}", remedy) for what, n in sizes.items() if n == 0]


def gene_findings(names: pd.Series, index: pd.Index, *, unique_genes: bool) -> list[Finding]:
    """Missing, repeated or unusable gene names."""
    findings = []
    if names.isna().any():
        n = int(names.isna().sum())
        what = f"the gene name is missing for {count(n, 'gene')}"
        first = str(index[names.isna()][0])
        findings.append(Finding("missing-gene-name", what, "fill or drop them", n, first))
    texts = names.dropna().astype(str)
    repeated = [name for name, n in Counter(texts).items() if n > 1]
    if repeated:
        occur = "occur" if len(repeated) > 1 else "occurs"
        what = f"{count(len(repeated), 'gene name')} {occur} more than once ({shorten(repeated)})"
        remedy = "pass unique_genes=True to add the gene ids to them, or keep one column each"
        severity = "warning" if unique_genes else "error"
        remedy = "the gene ids are added to them" if unique_genes else remedy
        findings.append(Finding("repeated-gene-name", what, remedy, len(repeated), repeated[0], severity))
    joined = [name for name in texts if SEPARATOR in name]
    if joined:
        what = f"gene names with {SEPARATOR!r} ({shorten(joined)}) look like pairs of genes"
        findings.append(Finding("separator-in-gene-name", what, "rename them", len(joined), joined[0]))
    if not index.is_unique:
        n = int(index.duplicated().sum())
        what = f"the index of adata.var has {count(n, 'repeated entry', 'repeated entries')}"
        remedy = "call adata.var_names_make_unique() on a copy"
        findings.append(Finding("repeated-gene-id", what, remedy, n, str(index[index.duplicated()][0])))
    return findings


def cell_type_findings(cell_types: pd.Series, pool: bool) -> list[Finding]:
    """Missing cell types; several of them unless they are to be pooled."""
    findings = []
    if cell_types.isna().any():
        n = int(cell_types.isna().sum())
        what = f"obs[{cell_types.name!r}] is missing for {count(n, 'cell')}"
        first = str(cell_types.index[cell_types.isna()][0])
        findings.append(Finding("missing-cell-type", what, "fill or drop them", n, first))
    found = sorted({str(value) for value in cell_types.dropna()})
    if len(found) > 1 and not pool:
        what = f"{len(found)} cell types ({shorten(found)}): a model describes one"
        remedy = (
            "pass context_key='cell_type' to learn each condition in each type, batch_key='cell_type' to "
            "compare with controls of the same type, or pool_cell_types=True to treat all cells as one type"
        )
        findings.append(Finding("several-cell-types", what, remedy, len(found), found[1]))
    return findings


def value_findings(matrix: sparse.csr_matrix, *, layer: str | None, layers: Sequence[str]) -> list[Finding]:
    """Values that are not finite, or nothing but zeros."""
    values = matrix.data
    place = f"layers[{layer!r}]" if layer else "X"
    bad = sum(int(np.count_nonzero(~np.isfinite(piece))) for piece in pieces(values))
    if bad:
        what = f"{place} holds {bad} NaN or infinite {'values' if bad > 1 else 'value'}"
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
    if not small:
        return []
    what = f"{len(small)} conditions have fewer than {needed} cells in a context: {shorten(small, 20)}"
    remedy = "leave these cells out, or pass skip_calc_de=True (no differential expression)"
    return [Finding("small-in-context", what, remedy, len(small), small[0])]


def small_condition_findings(table: LabelTable, needed: int, *, with_de: bool) -> list[Finding]:
    """A control of few cells, and conditions with too few cells for a variance: an error where DE needs it."""
    counts = table.counts()
    severity = "error" if with_de else "warning"
    findings = []
    for n in [int(n) for n, one in zip(counts, table.conditions, strict=True) if one.is_control]:
        what = f"the control has {count(n, 'cell')}"
        if n < needed and with_de:
            remedy = f"differential expression needs {needed} (skip_calc_de=True leaves it out)"
            findings.append(Finding("small-control", what, remedy, n, CONTROL_LABEL))
        elif n < FEW_CONTROLS:
            remedy = "every change is a difference from their mean: give more, or name other controls in ctrl_label="
            findings.append(Finding("small-control", what, remedy, n, CONTROL_LABEL, "warning"))
    too_few = np.flatnonzero(counts < needed)
    small = [f"{table.conditions[i]} ({counts[i]})" for i in too_few if not table.conditions[i].is_control]
    if small:
        has = "condition has" if len(small) == 1 else "conditions have"
        named = shorten(small, 20)
        what = f"{len(small)} {has} fewer than {needed} cells, too few for differential expression: {named}"
        remedy = f"pass min_cells={needed} (or more) to drop {'it' if len(small) == 1 else 'them'}"
        findings.append(Finding("small-condition", what, remedy, len(small), small[0], severity))
    return findings


def repeated_cell_findings(matrix: sparse.csr_matrix, names: pd.Index) -> list[Finding]:
    """Names of cells that occur twice, and cells with the same values in many genes."""
    findings = []
    again = names.duplicated()
    if again.any():
        n, first = int(again.sum()), str(names[again][0])
        what = f"{count(n, 'cell')} with the name of another cell ({shorten(names[again].unique(), 3)})"
        remedy = "drop them if they are the same cells, or call adata.obs_names_make_unique() on a copy"
        findings.append(Finding("repeated-cell-name", what, remedy, n, first, "warning"))
    weights_G = np.random.default_rng(0).uniform(1, 2, matrix.shape[1])
    sums_N = matrix @ weights_G
    rows = np.flatnonzero(np.diff(matrix.indptr) >= SAME_GENES)
    same = rows[pd.Series(sums_N[rows]).duplicated().to_numpy()]
    if len(same):
        what = (
            f"{count(len(same), 'cell')} with exactly the values of another cell ({shorten(names[same], 3)})"
        )
        remedy = "drop them if they are there twice: they count twice"
        findings.append(Finding("repeated-cell", what, remedy, len(same), str(names[same[0]]), "warning"))
    return findings
