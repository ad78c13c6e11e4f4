"""What a screen must be, checked before any work: all problems are reported together."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import sparse

from gears.conditions import CONTROL_LABEL, SEPARATOR, Condition, split_label
from gears.data.labels import LabelTable
from gears.data.reading import is_integer
from gears.messages import nearest, shorten

if TYPE_CHECKING:
    from anndata import AnnData

logger = logging.getLogger(__name__)

CONTROL_SPELLINGS = (
    "ctrl",
    "control",
    "controls",
    "non-targeting",
    "non_targeting",
    "nontargeting",
    "unperturbed",
    "nt",
    "ntc",
    "neg",
    "negctrl",
    "neg_ctrl",
    "negative_control",
    "safe-targeting",
    "scramble",
    "scrambled",
    "mock",
)
LOG_MAXIMUM = 25.0
"""log1p of any sensible normalised count lies far below this."""


def refuse(problems: list[str]) -> None:
    """Raise one error that lists all problems, if there are any."""
    if not problems:
        return
    lines = "\n".join(f"  - {problem}" for problem in problems)
    msg = f"this screen cannot be prepared ({len(problems)} problem{'s' * (len(problems) > 1)}):\n{lines}"
    raise ValueError(msg)


def column_problems(adata: AnnData) -> list[str]:
    """Missing columns, each with the columns whose names look like it."""
    wanted = (
        ("obs", "condition", adata.obs, "the label of each cell, such as 'A+B', 'A+ctrl' or 'ctrl'"),
        ("obs", "cell_type", adata.obs, "one cell type per cell"),
        ("var", "gene_name", adata.var, "the symbol of each gene"),
    )
    problems = []
    for axis, name, frame, meaning in wanted:
        if name not in frame.columns:
            near = nearest(name, [str(column) for column in frame.columns])
            hint = (
                f"; rename {axis}[{near[0]!r}]" if near else f"; columns: {shorten(frame.columns) or 'none'}"
            )
            problems.append(f"adata.{axis} has no column {name!r} ({meaning}){hint}")
    return problems


def gene_problems(adata: AnnData) -> list[str]:
    """Missing, repeated or unusable gene names."""
    problems = []
    names = adata.var["gene_name"]
    if names.isna().any():
        problems.append(f"var['gene_name'] is missing for {int(names.isna().sum())} genes; fill or drop them")
    texts = names.dropna().astype(str)
    repeated = [name for name, count in Counter(texts).items() if count > 1]
    if repeated:
        problems.append(
            f"{len(repeated)} gene names occur more than once ({shorten(repeated)}); keep one column each, "
            "or make them unique: adata.var['gene_name'] = anndata.utils.make_index_unique(pd.Index(...))"
        )
    joined = [name for name in texts if SEPARATOR in name]
    if joined:
        problems.append(
            f"gene names with {SEPARATOR!r} ({shorten(joined)}) cannot be told from pairs of genes; rename them"
        )
    if not adata.var_names.is_unique:
        problems.append(
            "the index of adata.var has repeated entries; call adata.var_names_make_unique() on a copy"
        )
    if adata.n_vars == 0:
        problems.append("there are no genes")
    return problems


def label_problems(labels: pd.Series, ctrl_label: str) -> list[str]:
    """Missing or unreadable labels, no control, a control spelled otherwise."""
    missing = labels.isna()
    if missing.any():
        return [
            f"obs['condition'] is missing for {int(missing.sum())} cells; "
            f"drop them, or label them {ctrl_label!r} if they are known to be controls"
        ]
    counts = Counter(labels)
    problems, readable = [], []
    for label in counts:
        try:
            readable.append((label, Condition.parse(label, ctrl_label=ctrl_label)))
        except ValueError as error:
            problems.append(str(error))
    if not any(condition.is_control for _, condition in readable):
        problems.append(_no_control(counts, ctrl_label))
    else:
        problems.extend(_mixed_control(counts, ctrl_label))
    if all(condition.is_control for _, condition in readable):
        problems.append(
            f"no perturbed condition among {len(labels)} cells; at least one label such as "
            f"'A{SEPARATOR}{ctrl_label}' is needed"
        )
    return problems


def _no_control(counts: Counter[str], ctrl_label: str) -> str:
    names = [label for label in counts if isinstance(label, str)]
    known = [label for label in names if label.strip().lower() in CONTROL_SPELLINGS]
    like = known or nearest(ctrl_label, names) or nearest("control", names)
    msg = f"no control cells: no label in obs['condition'] is {ctrl_label!r}"
    if not like:
        return f"{msg}; labels found: {shorten(names)}"
    best = like[0]
    return (
        f"{msg}; the label most like it is {best!r} ({counts[best]} cells): rename it to {ctrl_label!r}, "
        f"or pass ctrl_label={best.strip()!r}"
    )


def _mixed_control(counts: Counter[str], ctrl_label: str) -> list[str]:
    """Tokens that mean control in other screens and would be taken for genes here."""
    strange = {
        token: label
        for label in counts
        for token in split_label(label)
        if token != ctrl_label and token.lower() in CONTROL_SPELLINGS
    }
    return [
        f"label {label!r} has {token!r}, which would be taken for a gene; write {ctrl_label!r} for the control"
        for token, label in strange.items()
    ]


def cell_type_problems(cell_types: pd.Series, pool: bool) -> list[str]:
    """Missing cell types; several of them unless they are to be pooled."""
    problems = []
    if cell_types.isna().any():
        problems.append(
            f"obs['cell_type'] is missing for {int(cell_types.isna().sum())} cells; fill or drop them"
        )
    found = sorted({str(value) for value in cell_types.dropna()})
    if len(found) > 1 and not pool:
        problems.append(
            f"{len(found)} cell types ({shorten(found)}): a model describes one; prepare one screen per cell type, "
            "or pass pool_cell_types=True to treat all cells as one type"
        )
    return problems


def value_problems(
    matrix: sparse.csr_matrix, *, normalize: bool, layer: str | None, layers: list[str]
) -> list[str]:
    """Values that are not finite, and counts where log-normalised values belong (or the reverse)."""
    values = matrix.data
    place = f"layers[{layer!r}]" if layer else "X"
    if not np.isfinite(values).all():
        bad = int((~np.isfinite(values)).sum())
        return [f"{place} holds {bad} NaN or infinite values; replace them, or drop those cells or genes"]
    if not len(values):
        return [f"{place} holds nothing but zeros"]
    low, high = float(values.min()), float(values.max())
    integer = is_integer(values)
    if normalize:
        if integer and low >= 0:
            return []
        counts = next((name for name in layers if "count" in name.lower() and name != layer), None)
        hint = (
            f"pass layer={counts!r}" if counts else "pass the layer that holds counts, or leave normalize out"
        )
        return [f"normalize=True needs counts, but {place} does not hold whole non-negative numbers; {hint}"]
    if integer and low >= 0:
        return [
            f"{place} holds whole numbers only (up to {high:g}): these look like raw counts, and log-normalised "
            "values are needed; pass normalize=True (1e4 counts per cell, then log1p, on a copy)"
        ]
    if high > LOG_MAXIMUM:
        return [
            f"{place} has values up to {high:g}: normalised, it seems, but without logarithm; "
            "apply scanpy.pp.log1p on a copy first, or pass counts with normalize=True"
        ]
    if low < 0:
        logger.warning(
            "%s has negative values (down to %g): taken as they are; predictions should not be clipped at 0",
            place,
            low,
        )
    return []


def small_condition_problems(table: LabelTable, needed: int) -> list[str]:
    """Conditions with too few cells for a variance."""
    counts = table.counts()
    too_few = np.flatnonzero(counts < needed)
    problems = [
        f"the control has {counts[i]} cell; differential expression needs {needed} (skip_calc_de=True leaves it out)"
        for i in too_few
        if table.conditions[i].is_control
    ]
    small = [f"{table.conditions[i]} ({counts[i]})" for i in too_few if not table.conditions[i].is_control]
    if not small:
        return problems
    return [
        *problems,
        f"{len(small)} conditions have fewer than {needed} cells, too few for differential expression: "
        f"{shorten(small, 20)}; pass min_cells={needed} (or more) to drop them",
    ]


def with_plain_control(labels: pd.Series, ctrl_label: str) -> pd.Series:
    """Labels with the screen's own control token written as the package writes it."""
    if ctrl_label == CONTROL_LABEL:
        return labels
    own = {
        label: SEPARATOR.join(CONTROL_LABEL if token == ctrl_label else token for token in split_label(label))
        for label in pd.unique(labels.astype(object))
    }
    return labels.astype(object).map(own)
