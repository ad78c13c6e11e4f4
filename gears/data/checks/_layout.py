"""Where a screen keeps its labels, cell types and gene names: by the options, or by a style."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from gears.conditions import CONTROL_LABEL, SEPARATOR
from gears.core._findings import Finding, check
from gears.core._messages import nearest, shorten
from gears.data.checks._options import ProcessingOptions
from gears.data.checks._styles import CELL_TYPE_KEYS, GENE_KEYS, STYLES, Style, is_control_like, stem_of
from gears.data.reading._guides import GUIDE_KEYS

INDEX = "index"
CONDITION = "condition"
GUIDES = "guides"
ONE_TYPE = "cells"


@dataclass(frozen=True)
class Layout:
    """Where things are, and how labels are written."""

    style: str
    # condition_key, cell_type_key: columns of obs. None: there is no such column; the screen does not say, and all
    # cells are of one type.
    condition_key: str | None
    cell_type_key: str | None
    gene_key: str | None  # a column of var, or "index"
    controls: tuple[str, ...]
    sep: str | None
    count_key: str | None = None  # column with the number of perturbations per cell
    as_genes: tuple[str, ...] = ()  # tokens that are genes although they look like a control

    @property
    def is_published(self) -> bool:
        """Whether labels are in the published spelling already."""
        return self.style == "gears" and self.sep == SEPARATOR and self.controls == (CONTROL_LABEL,)

    def tokens(self, label: str) -> list[str]:
        parts = [label] if self.sep is None or label.strip() in self.controls else label.split(self.sep)
        return [part.strip() for part in parts]

    def standard(self, label: str, is_gene: Callable[[str], bool] | None = None) -> str:
        """A label in the published spelling; one that is itself a gene is not split."""
        if self.is_published:
            return label
        if label.strip() in self.controls:
            return CONTROL_LABEL
        if is_gene is not None and self.sep not in (None, SEPARATOR) and is_gene(label.strip()):
            return f"{label.strip()}{SEPARATOR}{CONTROL_LABEL}"
        tokens = [CONTROL_LABEL if token in self.controls else token for token in self.tokens(label)]
        if self.style != "gears" and len(tokens) == 1:
            tokens.append(CONTROL_LABEL)
        return SEPARATOR.join(tokens)

    def describe(self) -> str:
        """One line per choice."""
        rows = {
            "style": self.style,
            "condition": f"obs[{self.condition_key!r}]",
            "control": " or ".join(map(repr, self.controls)),
            "separator": repr(self.sep) if self.sep else "none: a label is one gene",
            "cell type": f"obs[{self.cell_type_key!r}]" if self.cell_type_key else f"none: all {ONE_TYPE!r}",
            "gene names": "index of var" if self.gene_key == INDEX else f"var[{self.gene_key!r}]",
        }
        if self.style == GUIDES:
            rows |= {"control": "guides that are controls", "separator": "any sign between guides"}
        option = {
            "condition": "guide_key" if self.style == GUIDES else "condition_key",
            "control": "ctrl_label",
            "separator": "sep",
        }
        option |= {"cell type": "cell_type_key", "gene names": "gene_key"}
        return "\n".join(
            f"{name:<11}{value}" + (f"  ({option[name]}= overrides)" if name in option else "")
            for name, value in rows.items()
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        names = ("style", "condition_key", "cell_type_key", "gene_key", "sep")
        return {name: getattr(self, name) for name in names} | {"controls": list(self.controls)}


def find_layout(obs: pd.DataFrame, var: pd.DataFrame, options: ProcessingOptions) -> tuple[Layout, list[Finding]]:
    """The layout that the options name, or that fits, and what is missing from it."""
    findings = []
    recognised_style = _style(obs, options)
    if isinstance(recognised_style, Finding):
        swapped = [key for _, key in recognised(var, options.controls)]
        what = f"var[{swapped[0]!r}] holds the labels of cells: rows are genes here" if swapped else ""
        findings.append(Finding("transposed", what, "pass adata.T, cells x genes") if swapped else recognised_style)
        style, condition_key = Style("unknown", (), (), None), None
    else:
        style, style_key = recognised_style
        condition_key, of_column = _column("obs", "condition", obs, style_key, options)
        findings += of_column
    findings += _further_positions(obs, condition_key)
    # the published layout needs both columns; other screens may be of one type, and name genes in the index
    cell_type_key = next((key for key in CELL_TYPE_KEYS if key in obs), None)
    if options.style == "gears" or options.cell_type_key is not None:
        cell_type_key, of_column = _column("obs", "cell_type", obs, None, options)
        findings += of_column
    gene_key: str | None = INDEX
    if options.gene_key is None and options.style != "gears":
        gene_key = next((key for key in GENE_KEYS if key in var), INDEX)
    elif options.gene_key != INDEX:
        gene_key, of_column = _column("var", "gene_name", var, None, options)
        findings += of_column
    controls = options.controls
    if condition_key is not None:
        controls = _controls(obs[condition_key], style, options)
    sep = options.sep if options.sep is not None else style.sep
    count_key = next((key for key in style.count_keys if key in obs), None)
    where = condition_key, cell_type_key, gene_key
    return Layout(style.name, *where, controls, sep, count_key, tuple(options.as_genes or ())), findings


def _further_positions(obs: pd.DataFrame, key: str | None) -> list[Finding]:
    """A warning about columns that hold the second perturbation of a cell ("target_gene_2") and are not read."""
    if key is None:
        return []
    others = [name for name in obs if name != key and stem_of(str(name)) == stem_of(key)]
    names = [str(name) for name in others if is_text(obs[name]) and obs[name].nunique() > 1]
    what = f"obs[{key!r}] is read, and not {shorten(map(repr, names))}, which may hold further perturbations of a cell"
    remedy = f"join them into one column ('A{SEPARATOR}B') and name it with condition_key=, of guides with guide_key="
    return check("unread-column", names, what, remedy, "warning")


def recognised(obs: pd.DataFrame, controls: tuple[str, ...] = ()) -> list[tuple[Style, str]]:
    """Every style whose control, or one of `controls` instead, is a label of one of its columns."""
    pairs = [(style, key) for style in STYLES.values() for key in style.condition_keys if key in obs]
    labels = {key: {*map(str.strip, map(str, pd.Series(obs[key].unique()).dropna()))} for _, key in pairs}
    return [(style, key) for style, key in pairs if labels[key] & {*(controls or style.controls)}]


def _style(obs: pd.DataFrame, options: ProcessingOptions) -> tuple[Style, str | None] | Finding:
    if options.guide_key is not None:
        return Style(GUIDES, (options.guide_key,), (), SEPARATOR), options.guide_key
    if options.style != "auto":
        style = STYLES[options.style]
        return style, options.condition_key or next((key for key in style.condition_keys if key in obs), None)
    if options.condition_key is not None:
        key = options.condition_key
        own = [style for style in STYLES.values() if key in style.condition_keys]
        return (own[0] if own else Style("own", (key,), (), SEPARATOR)), key
    fitting = recognised(obs, () if options.ctrl_label == CONTROL_LABEL else options.controls)
    columns = list(dict.fromkeys(key for _, key in fitting))
    if len(columns) == 1:
        return fitting[0]
    if not columns:
        present = {key: style for style in STYLES.values() for key in style.condition_keys if key in obs}
        if CONDITION in present or len(present) == 1:  # checked as that column: what is wrong is reported
            key = CONDITION if CONDITION in present else next(iter(present))
            return present[key], key
        of_guides = {stem_of(key) for key in GUIDE_KEYS}
        guides = [str(name) for name in obs if stem_of(str(name)) in of_guides and is_text(obs[name])]
        if len(guides) == 1:
            return Style(GUIDES, (guides[0],), (), SEPARATOR), guides[0]
        keys = sorted({key for style in STYLES.values() for key in style.condition_keys})
        what = (
            f"no known style fits: none of the columns {', '.join(keys)} holds its style's control label "
            f"(columns: {shorten(obs.columns) or 'none'})"
        )
        remedy = "name the column and the control: condition_key=, ctrl_label= (and sep= if genes are joined)"
        if guides:
            remedy = f"pass {' or '.join(f'guide_key={key!r}' for key in guides)}, the column of each cell's guides; "
            remedy += f"where each holds one guide of a cell, join them into one column ('A{SEPARATOR}B') first"
        elif like := label_like(obs):
            remedy += f"; these columns look like labels: {'; '.join(like)}"
        else:
            remedy += "; of a file of counts, give the table of its cells' guides: guides="
        return Finding("unknown-style", what, remedy)
    if all(_same_labels(obs[columns[0]], obs[key]) for key in columns[1:]):
        return fitting[0]
    options_ = " or ".join(f"condition_key={key!r}" for key in columns)
    what = f"{len(columns)} columns could hold the condition ({', '.join(columns)}) and do not agree"
    return Finding("ambiguous-style", what, f"pass {options_}", len(columns), columns[0])


def label_like(obs: pd.DataFrame, limit: int = 4) -> list[str]:
    """Columns that could hold condition labels with their commonest values; those with a control first."""
    columns = []
    for name in obs:
        counts = obs[name].value_counts()
        if is_text(obs[name]) and 3 <= len(counts) <= len(obs) / 2:
            controls = [label for label in counts.index if is_control_like(str(label))]
            shown = dict.fromkeys([*controls[:1], *counts.index[:3]])
            texts = shorten(f"{str(label)!r} ({counts[label]})" for label in shown)
            columns.append((not controls, f"{str(name)!r} ({len(counts)} values, cells: {texts})"))
    return [text for _, text in sorted(columns, key=lambda one: one[0])][:limit]


def is_text(values: pd.Series) -> bool:
    """Whether a column holds names, not numbers or flags."""
    texts = [*map(str, pd.Series(values.unique()).dropna()[:50])]
    return any(not text.replace(".", "", 1).isdigit() and text not in ("True", "False") for text in texts)


def _same_labels(a: pd.Series, b: pd.Series) -> bool:
    """Whether two columns divide the cells in the same way."""
    pairs = pd.DataFrame({"a": a.astype(str), "b": b.astype(str)}).drop_duplicates()
    return len(pairs) == a.nunique() == b.nunique()


def _column(
    axis: str, name: str, frame: pd.DataFrame, key: str | None, options: ProcessingOptions
) -> tuple[str | None, list[Finding]]:
    """A column that must be there, or a finding with the columns that look like it."""
    option = "gene_key" if name == "gene_name" else f"{name}_key"
    if name == "condition" and options.guide_key is not None:
        option = "guide_key"
    column_name = getattr(options, option) or key or name
    if column_name in frame.columns:
        return column_name, []
    meaning, remedy = _MEANINGS[name]
    columns = [str(column) for column in frame.columns]
    near = [column for column in nearest(column_name, columns) if is_text(frame[column])]
    hint = f"pass {option}={near[0]!r}" if near else f"columns: {shorten(columns) or 'none'}"
    fitting = recognised(frame) if name == "condition" else []
    if others := [(style, column) for style, column in fitting if style.name != "gears"]:
        hint = f"obs[{others[0][1]!r}] is in the style of {others[0][0].name}: pass style='auto'"
    elif not near:
        hint += f": {remedy}"
    what = f"adata.{axis} has no column {column_name!r} ({meaning})"
    return None, check("missing-column", [column_name], what, hint)


_MEANINGS = {
    "condition": ("the label of each cell, such as 'A+B', 'A+ctrl' or 'ctrl'", "name yours with condition_key="),
    "cell_type": (
        "one cell type per cell",
        "name yours with cell_type_key=, or adata.obs['cell_type'] = 'K562' on a copy",
    ),
    "gene_name": (
        "the symbol of each gene",
        "name yours with gene_key= (gene_key='index' where the index of var holds the symbols)",
    ),
}


def _controls(labels: pd.Series, style: Style, options: ProcessingOptions) -> tuple[str, ...]:
    """Control tokens: those of the options, the style's, or the one label that looks like a control; () for none."""
    if options.ctrl_label != CONTROL_LABEL or style.name == "gears":
        return options.controls
    names = [str(label) for label in labels.dropna().unique()]
    known = tuple(label for label in style.controls if label in names)
    like = [label for label in names if is_control_like(label) and label not in (options.as_genes or ())]
    return known or (tuple(like) if len(like) == 1 else ())
