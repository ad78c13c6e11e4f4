"""Cells and conditions that are excluded on request, and the report of what went and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import sparse

from gears.core._findings import Finding, check
from gears.core._messages import count, shorten, suggestion
from gears.data.checks._labels import LabelTable
from gears.data.checks._options import ProcessingOptions

NOT_MISSING = ("nan", "none", "<na>", "")


@dataclass(frozen=True)
class Dropped:
    """What one filter excluded."""

    filter: str  # the option that requests it
    # n_cells, n_conditions: cells that went, and conditions that went with all of their cells
    n_cells: int
    n_conditions: int
    why: str
    # conditions, unchecked: conditions that went, with the number that decided; what the filter could not judge, and
    # kept
    conditions: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    def __str__(self) -> str:
        went = f"dropped {count(self.n_conditions, 'condition')}, " if self.n_conditions else "dropped "
        text = f"{went}{count(self.n_cells, 'cell')}: {self.why}"
        if self.conditions:
            text += f": {shorten(self.conditions)}"
        if self.unchecked:
            text += f" (not judged, kept: {shorten(self.unchecked)})"
        return text


def labels_to_drop(labels: pd.Series, dropped: Sequence[str] | None) -> tuple[np.ndarray, list[Finding]]:
    """Cells whose label was named in ``drop_labels``; a name that no cell has is a finding."""
    gone = np.zeros(len(labels), dtype=bool)
    findings: list[Finding] = []
    if not dropped:
        return gone, findings
    texts = labels.astype(object).map(lambda label: label.strip() if isinstance(label, str) else label)
    for name in dropped:
        hit = (texts == name.strip()).to_numpy(dtype=bool)
        if name.strip().lower() in NOT_MISSING:
            hit |= labels.isna().to_numpy()
        if not hit.any():
            what = f"drop_labels names {name!r}, which no cell has"
            hint = suggestion(name, pd.unique(texts.dropna()), "labels")
            findings += check("unknown-drop-label", [name], what, hint)
        gone |= hit
    return gone, findings


def doublets(obs: pd.DataFrame, key: str) -> tuple[np.ndarray, list[Finding]]:
    """Cells that a column of obs calls doublets."""
    nobody = np.zeros(len(obs), dtype=bool)
    if key not in obs:
        return nobody, _missing_column("doublet_key", key, obs)
    values = obs[key]
    flags = dict.fromkeys(("true", "1", "yes", "doublet"), True)
    flags |= dict.fromkeys(("false", "0", "no", "singlet"), False)
    texts = values.astype(object).map(lambda value: flags.get(str(value).strip().lower().removesuffix(".0")))
    if odd := [str(value) for value in values[texts.isna()]]:
        what = f"obs[{key!r}] (doublet_key) has {len(odd)} values that are neither true nor false, such as {odd[0]!r}"
        return nobody, check("no-flags", odd, what, "make it a column of True and False")
    return texts.to_numpy(dtype=bool), []


def wrong_guide_counts(obs: pd.DataFrame, key: str, n_genes_N: np.ndarray) -> tuple[np.ndarray, list[Finding]]:
    """Cells with another number of perturbations than their label has genes (controls may have one guide)."""
    nobody = np.zeros(len(obs), dtype=bool)
    if key not in obs:
        return nobody, _missing_column("guide_count_key", key, obs)
    numbers_N = pd.to_numeric(obs[key].astype(object), errors="coerce").to_numpy(dtype=np.float64)
    if missing := list(obs.index[np.isnan(numbers_N)]):
        what = f"obs[{key!r}] (guide_count_key) is no number for {count(len(missing), 'cell')}"
        return nobody, check("no-counts-of-guides", missing, what, "fill or drop them")
    return np.where(n_genes_N == 0, numbers_N > 1, numbers_N != n_genes_N), []


def small_conditions(table: LabelTable, min_cells: int | None) -> tuple[np.ndarray, list[Dropped], list[Finding]]:
    """Cells of perturbed conditions with fewer than `min_cells` cells."""
    counts = table.counts()
    perturbed = ~table.is_control
    small = (counts < (min_cells or 0)) & perturbed
    if not small.any():
        return np.zeros(len(table.cell_label), dtype=bool), [], []
    findings = []
    if not (perturbed & ~small).any():
        largest = counts[small].max()
        what = f"no perturbed condition has min_cells={min_cells} cells; the largest has {largest}"
        findings.append(Finding("all-too-small", what, "lower min_cells", int(small.sum())))
    named = tuple(f"{table.conditions[i]} ({counts[i]})" for i in np.flatnonzero(small))
    lost = small[table.cell_condition]
    why = f"fewer than min_cells={min_cells} cells"
    return lost, [Dropped("min_cells", int(lost.sum()), len(named), why, named)], findings


def not_knocked_down(
    matrix: sparse.csr_matrix,
    cells: np.ndarray,
    table: LabelTable,
    gene_names: Sequence[str],
    options: ProcessingOptions,
) -> tuple[np.ndarray, list[Dropped], list[Finding]]:
    """Conditions, then single cells, in which a perturbed gene is still expressed.

    `table` holds the labels of some `cells` of the `matrix`. Expression is compared on the
    scale of normalised counts (expm1 of X), as a share of the control cells' mean. Genes that
    are not measured, or that control cells do not express, cannot be judged: their conditions stay.
    """
    gone = np.zeros(len(table.cell_label), dtype=bool)
    if options.max_residual is None and options.max_cell_residual is None:
        return gone, [], []
    targets = matrix[cells]
    if len(targets.data) and targets.data.min() < 0:
        what = "max_residual and max_cell_residual compare expression, and X has negative values"
        remedy = "give log-normalised values or counts (layer=), or omit both options"
        return gone, [], [Finding("residual-of-negative", what, remedy)]
    at = {name: i for i, name in enumerate(gene_names)}
    cell_condition = table.cell_condition
    control = next(i for i, condition in enumerate(table.conditions) if condition.is_control)
    measured = sorted({gene for condition in table.conditions for gene in condition.genes if gene in at})
    targets = targets[:, [at[gene] for gene in measured]]
    levels = np.expm1(targets.toarray().astype(np.float64))
    base = levels[cell_condition == control].mean(axis=0)
    column = {gene: i for i, gene in enumerate(measured) if base[i] > 0}
    whole, single, unchecked = [], np.zeros(len(gone), dtype=bool), []
    for i, condition in enumerate(table.conditions):
        known = [column[gene] for gene in condition.genes if gene in column]
        if len(known) < len(condition):
            unchecked.append(condition.name)
        if not known:
            continue
        rows = np.flatnonzero(cell_condition == i)
        share = levels[rows][:, known] / base[known]
        worst = float(share.mean(axis=0).max())
        if options.max_residual is not None and worst > options.max_residual:
            whole.append(f"{condition.name} ({worst:.2f})")
            gone[rows] = True
        elif options.max_cell_residual is not None:
            single[rows[(share > options.max_cell_residual).any(axis=1)]] = True
    dropped = []
    kept = tuple(unchecked)
    if options.max_residual is not None:
        why = f"more than max_residual={options.max_residual} of the control's expression of it is left"
        dropped.append(Dropped("max_residual", int(gone.sum()), len(whole), why, tuple(whole), kept))
    if options.max_cell_residual is not None:
        why = f"more than max_cell_residual={options.max_cell_residual} of the control's mean is left in the cell"
        had, has = (set(cell_condition[~lost].tolist()) for lost in (gone, gone | single))
        lost = [table.conditions[i].name for i in sorted(had - has)]
        dropped.append(Dropped("max_cell_residual", int(single.sum()), len(lost), why, tuple(lost), kept))
    gone |= single
    findings = []
    if set(cell_condition[~gone].tolist()) <= {control}:
        what = "no condition passes the knock-down filter"
        remedy = "raise max_residual; leave it out for activation (CRISPRa) or where targets are not measured"
        findings.append(Finding("all-residual", what, remedy, len(whole)))
    return gone, dropped, findings


def _missing_column(option: str, key: str, obs: pd.DataFrame) -> list[Finding]:
    hint = suggestion(key, obs.columns, "columns")
    return check("missing-column", [key], f"{option} names {key!r}, which obs lacks", hint)
