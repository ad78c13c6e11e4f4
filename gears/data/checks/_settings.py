"""How the cells of a screen divide by context and perturbation type, which controls match them, and small groups."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gears.conditions import AT, CONTROL_LABEL, Condition
from gears.core._findings import Finding, check, errors
from gears.core._messages import agreeing, count, shorten, suggestion
from gears.data.checks._labels import FEW_CONTROLS, LabelTable, by_text
from gears.data.checks._names import in_ascii
from gears.data.checks._options import ProcessingOptions

JOINT = " | "
POOLED = "pooled"  # in names of conditions, the cell type of a screen of several
_SIGNS = r"(?<=[^\W\d_])[-_\s]+(?=[^\W_])|(?<=\d)[-_\s]+(?=[^\W\d_])"
"""Blanks and hyphens inside a name ("K-562", "24 h"), not between two digits ("1_11" is not "11_1")."""


@dataclass(frozen=True)
class SettingTable(LabelTable):
    """Labels and conditions with context and perturbation type, and the experimental batch of each cell."""

    batches: tuple[str, ...]
    """Combinations of values that controls are matched by; one, without a name, where they are not matched."""
    cell_batch: np.ndarray  # (N,): batch of each cell


def is_divided(options: ProcessingOptions) -> bool:
    """Whether the options divide the cells by context or type, or match their controls."""
    return options.batch_key is not None or options.perturbation_type_key is not None


def one_type_per_batch(obs: pd.DataFrame, options: ProcessingOptions) -> bool:
    """Whether controls are matched by columns that distinguish the cell types (or that are missing: reported later)."""
    columns = options.batch_key or []
    if not columns or any(name not in obs for name in columns):
        return bool(columns)
    batch_N, batches = _coded(obs, columns)
    pairs = pd.DataFrame({"batch": batch_N, "type": by_text(obs["cell_type"])})
    return len(pairs.drop_duplicates()) == len(batches)


def setting_table(obs: pd.DataFrame, table: LabelTable, options: ProcessingOptions) -> SettingTable:
    """Divide the cells; `obs` (with ``cell_type``) was checked by :func:`column_findings`."""
    cell_batch, batches = _coded(obs, options.batch_key or [])
    if not is_divided(options):
        return SettingTable(**vars(table), batches=batches, cell_batch=cell_batch)
    context_N, contexts = _coded(obs, [options.context_key] if options.context_key else [])
    is_control = table.is_control[table.cell_condition]
    kind_N, kinds = _kinds(obs, is_control, options.perturbation_type_key)
    key_N = (table.cell_label.astype(np.int64) * len(contexts) + context_N) * (len(kinds) + 1) + kind_N + 1
    codes, distinct = pd.factorize(key_N)
    ids: dict[Condition, int] = {}
    labels, label_condition = [], []
    for key in distinct.tolist():
        before, kind = divmod(key, len(kinds) + 1)
        label, context = divmod(before, len(contexts))
        plain = table.conditions[int(table.label_condition[label])]
        condition = plain.at(contexts[context], kinds[kind - 1] if kind else "")
        labels.append(table.labels[label] + condition.suffix)
        label_condition.append(ids.setdefault(condition, len(ids)))  # spellings of one condition share its number
    condition_L = np.array(label_condition, dtype=np.int64)
    return SettingTable(codes.astype(np.int32), labels, condition_L, tuple(ids), batches, cell_batch)


def column_findings(obs: pd.DataFrame, options: ProcessingOptions, is_control: np.ndarray) -> list[Finding]:
    """Columns that are missing or have gaps, names that labels cannot hold, batches with few or no control cells."""
    needed = dict.fromkeys(options.batch_key or [], np.ones(len(obs), dtype=bool))
    if options.perturbation_type_key:
        needed.setdefault(options.perturbation_type_key, ~is_control)
    findings = [finding for name, cells in needed.items() for finding in _one_column(obs, name, cells)]
    if errors(findings) or not options.batch_key:
        return findings
    batch_N, batches = _coded(obs, options.batch_key)
    n_control = np.bincount(batch_N[is_control], minlength=len(batches))
    alone = [f"{batches[i]} ({n} cells)" for i, n in enumerate(np.bincount(batch_N)) if n_control[i] < 1]
    by = ", ".join(options.batch_key)
    what = f"{count(len(alone), 'combination')} of {by} without a control cell: {shorten(alone)}"
    remedy = "leave these cells out, or divide by other or fewer columns (context_key=, batch_key=)"
    findings += check("no-matched-control", alone, what, remedy)
    n_perturbed = np.bincount(batch_N[~is_control], minlength=len(batches))
    few = np.flatnonzero((n_control > 0) & (n_control < FEW_CONTROLS) & (n_perturbed > 0))
    shown = [f"{batches[i]} ({count(int(n_control[i]), 'control cell')} for {n_perturbed[i]})" for i in few]
    what = f"{count(len(few), 'combination')} of {by} with fewer than {FEW_CONTROLS} control cells: {shorten(shown)}"
    remedy = "changes there are differences from the mean of these few: give more, or divide by fewer columns"
    return findings + check("few-matched-controls", [batches[i] for i in few], what, remedy, "warning")


def _one_column(obs: pd.DataFrame, name: str, needed: np.ndarray) -> list[Finding]:
    if name not in obs:
        what = f"adata.obs has no column {name!r} (to divide by)"
        return check("missing-column", [name], what, suggestion(name, obs.columns, "columns"))
    values = obs[name]
    gaps = (values.isna().to_numpy() & needed).sum()
    if gaps:
        what = f"obs[{name!r}] is missing for {count(int(gaps), 'cell')}"
        return check("missing-context", [name], what, "fill it, or drop these cells", n=int(gaps))
    odd = [text for text in map(str, pd.unique(values)) if AT in text or "[" in text or "]" in text]
    what = f"obs[{name!r}] has names with {AT!r} or brackets ({shorten(odd)}), which labels use"
    return check("context-name", odd, what, "rename them") or same_name_findings(name, values[needed])


def same_name_findings(column: str, values: pd.Series) -> list[Finding]:
    """A warning about values of a column that differ in case, blanks or hyphens only ("K562", "k562")."""
    spellings: dict[str, set[str]] = {}
    for text in sorted({text.strip() for text in by_text(values).categories}):
        plain = re.sub(_SIGNS, "", in_ascii(text).casefold())
        spellings.setdefault(re.sub(r"[-_\s]+", " ", plain), set()).add(text)
    alike = [sorted(texts) for texts in spellings.values() if len(texts) > 1]
    shown = shorten((" and ".join(map(repr, texts)) for texts in alike), 4)
    what = f"obs[{column!r}] has values that differ in case or signs only: {shown}"
    remedy = "they are read as different ones; write them alike if they mean the same"
    return check("values-alike", [texts[0] for texts in alike], what, remedy, "warning")


def _coded(obs: pd.DataFrame, columns: list[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Number of each cell's combination of values, and its name; combinations in sorted order."""
    if not columns:
        return np.zeros(len(obs), dtype=np.int8), ("",)
    parts = [by_text(obs[name]) for name in columns]
    key_N = np.zeros(len(obs), dtype=np.int64)
    for part in parts:
        key_N = key_N * len(part.categories) + part.codes
    codes, keys = pd.factorize(key_N)
    values = np.unravel_index(keys, [len(part.categories) for part in parts])
    texts = [[part.categories[i].strip() for i in own] for part, own in zip(parts, values, strict=True)]
    joined = np.array([JOINT.join(combination) for combination in zip(*texts, strict=True)], dtype=object)
    number, names = pd.factorize(joined, sort=True)
    return number.astype(np.int32)[codes], tuple(map(str, names))


def _kinds(obs: pd.DataFrame, is_control: np.ndarray, key: str | None) -> tuple[np.ndarray, tuple[str, ...]]:
    """Type of each perturbed cell, -1 for control cells."""
    if key is None:
        return np.full(len(obs), -1, dtype=np.int8), ()
    kinds = by_text(obs[key])
    texts = np.array([text.strip() for text in kinds.categories], dtype=object)
    names = sorted(set(texts[np.unique(kinds.codes[~is_control])]))
    codes = pd.Index(names).get_indexer(texts).astype(np.int32)
    return np.where(is_control, np.int32(-1), codes[kinds.codes]), tuple(names)


def cell_type_findings(cell_types: pd.Series, pool: bool) -> list[Finding]:
    """Missing cell types; several of them unless they are to be pooled."""
    missing = list(cell_types.index.take(np.flatnonzero(cell_types.isna())))
    what = f"obs[{cell_types.name!r}] is missing for {count(len(missing), 'cell')}"
    findings = check("missing-cell-type", missing, what, "fill or drop them")
    names = sorted({*map(str, pd.Series(cell_types.unique()).dropna())})
    what = f"{len(names)} cell types ({shorten(names)}): a model describes one"
    remedy = (
        "pass context_key='cell_type' to learn each condition in each type, batch_key='cell_type' to "
        "compare with controls of the same type, or pool_cell_types=True to treat all cells as one type"
    )
    others = [] if pool else names[1:]
    return findings + check("several-cell-types", others, what, remedy, n=len(names))


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


def small_in_context_findings(table: LabelTable, needed: int) -> list[Finding]:
    """Conditions with too few cells for a variance in their context."""
    pairs = zip(table.conditions, table.counts().tolist(), strict=True)
    small = [f"{condition} ({n})" for condition, n in pairs if n < needed]
    what = f"{len(small)} conditions have fewer than {needed} cells in a context: {shorten(small, 20)}"
    remedy = "leave these cells out, or pass skip_calc_de=True (no differential expression)"
    return check("small-in-context", small, what, remedy)
