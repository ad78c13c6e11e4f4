"""What a screen must be, checked before any work: every problem is found, with its number and remedy."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
from scipy import sparse

from gears.conditions import CONTROL_LABEL, SEPARATOR
from gears.core.findings import Finding
from gears.core.messages import count, shorten
from gears.data.checks.labels import LabelTable
from gears.data.reading.matrix import share_of_integers
from gears.files.mapped import pieces

LOG_MAXIMUM = 25.0
"""log1p of any sensible normalised count lies far below this."""
MOSTLY_COUNTS = 0.5
"""Share of whole numbers among the values above which they are counts: a logarithm is hardly ever whole."""


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


def value_findings(
    matrix: sparse.csr_matrix, *, normalize: bool, layer: str | None, layers: list[str]
) -> list[Finding]:
    """Values that are not finite, and counts where log-normalised values belong (or the reverse)."""
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
    ends = np.array([(piece.min(), piece.max()) for piece in pieces(values)])
    low, high = float(ends[:, 0].min()), float(ends[:, 1].max())
    whole = share_of_integers(values)
    if normalize:
        if low >= 0 and (whole > MOSTLY_COUNTS or high > LOG_MAXIMUM):
            return []
        counts = next((name for name in layers if "count" in name.lower() and name != layer), None)
        layer_of = f"layer={counts!r}" if counts else "the layer that holds counts, or leave normalize out"
        remedy = f"pass {layer_of}"
        what = f"normalize=True needs counts, but {place} does not hold whole non-negative numbers"
        return [Finding("no-counts", what, remedy)]
    if low >= 0 and whole > MOSTLY_COUNTS:
        share = "whole numbers only" if whole == 1 else f"mostly whole numbers ({whole:.0%})"
        what = f"{place} holds {share} (up to {high:g}): these look like raw counts, log-normalised values are needed"
        remedy = "pass normalize=True (1e4 counts per cell, then log1p, on a copy)"
        return [Finding("counts", what, remedy, int(whole * len(values)), f"{high:g}")]
    if high > LOG_MAXIMUM:
        what = f"{place} has values up to {high:g}: normalised, it seems, but without logarithm"
        remedy = "apply scanpy.pp.log1p on a copy first, or pass counts with normalize=True"
        return [Finding("not-logged", what, remedy, int((values > LOG_MAXIMUM).sum()), f"{high:g}")]
    if low < 0:
        what = f"{place} has negative values (down to {low:g}), such as z-scores or residuals; they are used unchanged"
        remedy = "give log-normalised values if there are any; negative predictions are not set to 0 (clip=True does)"
        return [Finding("negative-values", what, remedy, int((values < 0).sum()), f"{low:g}", "warning")]
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


def small_condition_findings(table: LabelTable, needed: int) -> list[Finding]:
    """Conditions with too few cells for a variance."""
    counts = table.counts()
    too_few = np.flatnonzero(counts < needed)
    findings = []
    for i in too_few:
        if table.conditions[i].is_control:
            what = f"the control has {count(int(counts[i]), 'cell')}"
            remedy = f"differential expression needs {needed} (skip_calc_de=True leaves it out)"
            findings.append(Finding("small-control", what, remedy, int(counts[i]), CONTROL_LABEL))
    small = [f"{table.conditions[i]} ({counts[i]})" for i in too_few if not table.conditions[i].is_control]
    if small:
        has = "condition has" if len(small) == 1 else "conditions have"
        named = shorten(small, 20)
        what = f"{len(small)} {has} fewer than {needed} cells, too few for differential expression: {named}"
        remedy = f"pass min_cells={needed} (or more) to drop {'it' if len(small) == 1 else 'them'}"
        findings.append(Finding("small-condition", what, remedy, len(small), small[0]))
    return findings
