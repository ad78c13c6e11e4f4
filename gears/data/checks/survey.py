"""All checks of a screen before it is prepared: its problems, what is excluded, and the checked screen."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import sparse

from gears.conditions import CONTROL_LABEL, split_label
from gears.core.findings import Finding, errors, refusal
from gears.core.messages import nearest, shorten
from gears.data.checks import filters
from gears.data.checks.filters import Dropped
from gears.data.checks.labels import (
    LabelTable,
    guide_number_findings,
    label_findings,
    other_case_findings,
    unknown_gene_findings,
)
from gears.data.checks.layout import INDEX, ONE_TYPE, Layout, find_layout
from gears.data.checks.options import ProcessingOptions
from gears.data.checks.settings import column_findings, is_divided, one_type_per_batch, setting_table
from gears.data.checks.values import (
    cell_type_findings,
    gene_findings,
    size_findings,
    small_condition_findings,
    small_in_context_findings,
    value_findings,
)
from gears.data.reading.matrix import as_csr, log_normalize, values_of
from gears.data.screen.files import CheckedScreen
from gears.files.mapped import pieces

if TYPE_CHECKING:
    from anndata import AnnData

logger = logging.getLogger(__name__)

MIN_CELLS_DE = 2
REFUSED = "this screen cannot be prepared"

POOLED = "pooled"


@dataclass
class Survey:
    """What was found in a screen.

    Attributes
    ----------
    layout : Layout
    findings : list of Finding
    dropped : list of Dropped
        What is excluded, by filter.
    n_cells, n_genes : int
        Of the screen as given.
    checked : CheckedScreen or None
        The screen to write; None where an error was found.
    table : LabelTable or None
        Labels of the cells that stay, as far as they could be read.
    names : list of str
        Gene names.
    mapping : dict of str to str
        The screen's own labels, and what they are read as.
    """

    layout: Layout
    n_cells: int
    n_genes: int
    findings: list[Finding] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    checked: CheckedScreen | None = None
    table: LabelTable | None = None
    names: list[str] = field(default_factory=list)
    mapping: dict[str, str] = field(default_factory=dict)

    def refuse(self) -> None:
        """Raise one error that lists all errors, if there are any."""
        message = refusal(REFUSED, self.findings)
        if message:
            raise ValueError(message)

    def tell(self) -> None:
        """Log how the screen is read where that was found out, warnings, and what is excluded."""
        if not self.layout.is_published:
            examples = "".join(f"\n  {own!r} -> {new!r}" for own, new in list(self.mapping.items())[:4])
            logger.info("how this screen is read:\n%s\nlabels:%s", self.layout.describe(), examples)
        for finding in self.findings:
            if finding.severity == "warning":
                logger.warning("%s", finding)
        for dropped in self.dropped:
            if dropped.n_cells:
                logger.warning("%s", dropped)


def survey_screen(
    adata: AnnData, options: ProcessingOptions, *, is_gene: Callable[[str], bool] | None = None
) -> Survey:
    """Look at everything, raise nothing.

    Parameters
    ----------
    adata
        The screen; not modified.
    options
        How it is to be prepared.
    is_gene
        Whether a token is a gene that is known elsewhere (the annotation); outside the
        style "gears" tokens that are neither that nor measured are unknown labels.
    """
    layout, findings = find_layout(adata, options)
    survey = Survey(layout, adata.n_obs, adata.n_vars, size_findings(adata) + findings)
    names = gene_names(adata, layout, survey, options.unique_genes)
    survey.names = [] if names is None else names.tolist()
    cell_types = _cell_types(adata, layout, survey, options)
    gone, labels = _labels(adata, layout, survey, options, names, is_gene)
    matrix = _values(adata, survey, options)
    if labels is None or cell_types is None or names is None or matrix is None or survey_failed(survey):
        return survey
    if options.normalize:
        matrix = log_normalize(matrix)
    keep = _filtered(adata.obs, survey, options, labels, gone, matrix, names)
    if keep is None:
        return survey
    kept = np.flatnonzero(keep)
    table = survey.table = LabelTable.of(labels[keep])
    if not options.skip_calc_de:
        survey.findings += small_condition_findings(table, MIN_CELLS_DE)
    is_control = np.array([condition.is_control for condition in table.conditions])
    columns = adata.obs.iloc[kept].assign(cell_type=cell_types.iloc[kept])
    survey.findings += column_findings(columns, options, is_control[table.cell_condition])
    if survey_failed(survey):
        return survey
    settings = setting_table(columns, table, options)
    if is_divided(options) and not options.skip_calc_de:
        survey.findings += small_in_context_findings(settings, MIN_CELLS_DE)
    if survey_failed(survey):
        return survey
    if len(kept) < len(keep):
        matrix = as_csr(matrix[kept])
    obs, condition_names = published_obs(adata.obs.iloc[kept], cell_types.iloc[kept], table, layout)
    var = plain_frame(adata.var.assign(gene_name=names.to_numpy()))
    has_negative = any(bool((piece < 0).any()) for piece in pieces(matrix.data))
    survey.checked = CheckedScreen(matrix, table, settings, obs, var, condition_names, has_negative)
    return survey


def survey_failed(survey: Survey) -> bool:
    """Whether an error was found so far."""
    return bool(errors(survey.findings))


def gene_names(adata: AnnData, layout: Layout, survey: Survey, unique_genes: bool) -> pd.Series | None:
    """Symbol of each gene; repeated ones told apart where asked for."""
    if layout.gene_key is None:
        return None
    index = adata.var_names
    names = pd.Series(index, index=index) if layout.gene_key == INDEX else adata.var[layout.gene_key]
    survey.findings += gene_findings(names, index, unique_genes=unique_genes)
    names = names.astype(object).astype(str)
    if unique_genes:
        again = names.duplicated().to_numpy()
        names = names.where(~again, names + "-" + pd.Series(index.astype(str), index=index))
    return names


def _cell_types(
    adata: AnnData, layout: Layout, survey: Survey, options: ProcessingOptions
) -> pd.Series | None:
    if layout.cell_type_key is None:
        missing = any(finding.kind == "missing-column" for finding in survey.findings)
        return None if missing else pd.Series(ONE_TYPE, index=adata.obs.index)
    cell_types = adata.obs[layout.cell_type_key]
    matched = one_type_per_batch(adata.obs.assign(cell_type=cell_types), options)
    survey.findings += cell_type_findings(cell_types, options.pool_cell_types or matched)
    return cell_types


def _labels(
    adata: AnnData,
    layout: Layout,
    survey: Survey,
    options: ProcessingOptions,
    names: pd.Series | None,
    is_gene: Callable[[str], bool] | None,
) -> tuple[np.ndarray, pd.Series | None]:
    """Cells to leave out because of their label, and every cell's label in the published spelling."""
    nothing = np.zeros(adata.n_obs, dtype=bool)
    if layout.condition_key is None or adata.n_obs == 0:
        return nothing, None
    own = adata.obs[layout.condition_key]
    gone, findings = filters.labels_to_drop(own, options.drop_labels)
    survey.findings += findings
    if gone.any():
        why = f"labels named in drop_labels: {shorten(options.drop_labels or ())}"
        survey.dropped.append(Dropped("drop_labels", int(gone.sum()), 0, why))
    found = label_findings(own[~gone], layout)
    survey.findings += found
    if any(finding.kind in ("missing-label", "unreadable-label", "other-separator") for finding in found):
        return gone, None
    measured = set() if names is None else set(names)

    def known(token: str) -> bool:
        return token in measured or (is_gene is not None and is_gene(token))

    texts = own.astype(object)
    standard = survey.mapping = {label: layout.standard(label, known) for label in pd.unique(texts[~gone])}
    if layout.count_key is not None:
        numbers = adata.obs[layout.count_key][~gone]
        survey.findings += guide_number_findings(own[~gone], numbers, standard, layout.count_key)
    survey.findings += other_case_findings(list(standard.values()), list(measured), known)
    if layout.style != "gears" and is_gene is not None:
        labels = list(dict.fromkeys(standard.values()))
        found, strange = unknown_gene_findings(labels, list(measured), is_gene, options.unknown_labels)
        survey.findings += found
        if strange and options.unknown_labels == "drop":
            lost = texts.map(standard).isin(strange).to_numpy() & ~gone
            why = "labels with a token that is no known gene"
            survey.dropped.append(
                Dropped("unknown_labels", int(lost.sum()), len(strange), why, tuple(strange))
            )
            gone |= lost
    labels_N = texts.map(standard).where(~gone, CONTROL_LABEL)
    survey.table = LabelTable.of(labels_N[~gone])
    return gone, labels_N


def _values(adata: AnnData, survey: Survey, options: ProcessingOptions) -> sparse.csr_matrix | None:
    layers = [str(name) for name in adata.layers]
    if options.layer is not None and options.layer not in adata.layers:
        near = nearest(options.layer, layers)
        hint = f"did you mean {near[0]!r}?" if near else f"layers: {shorten(layers) or 'none'}"
        survey.findings.append(
            Finding("no-layer", f"there is no layer {options.layer!r}", hint, 1, options.layer)
        )
        return None
    if adata.n_obs == 0 or adata.n_vars == 0:
        return None
    values = values_of(adata, options.layer)
    if values is None:
        hint = f"pass layer= (layers: {shorten(layers) or 'none'})"
        survey.findings.append(Finding("no-values", "X is empty", hint))
        return None
    try:
        matrix = as_csr(values)
    except (TypeError, ValueError) as error:
        survey.findings.append(Finding("no-matrix", str(error)))
        return None
    survey.findings += value_findings(matrix, normalize=options.normalize, layer=options.layer, layers=layers)
    return matrix


def _filtered(
    obs: pd.DataFrame,
    survey: Survey,
    options: ProcessingOptions,
    labels: pd.Series,
    gone: np.ndarray,
    matrix: sparse.csr_matrix,
    names: pd.Series,
) -> np.ndarray | None:
    """Cells that stay after every filter; None where a filter leaves nothing."""
    table = LabelTable.of(labels)
    n_genes = np.array([len(condition) for condition in table.conditions])[table.cell_condition]
    for name, (lost, findings), why in (
        ("doublet_key", filters.doublets(obs, options), f"obs[{options.doublet_key!r}] is true"),
        (
            "guide_count_key",
            filters.wrong_guide_counts(obs, n_genes, options),
            f"obs[{options.guide_count_key!r}] is not the number of genes in the label",
        ),
    ):
        survey.findings += findings
        lost = lost & ~gone
        if lost.any():
            emptied = sorted(set(labels[~gone]) - set(labels[~gone & ~lost]))
            survey.dropped.append(Dropped(name, int(lost.sum()), len(emptied), why, tuple(emptied)))
        gone = gone | lost
    if survey_failed(survey) or not _has_both(survey, labels[~gone]):
        return None
    keep = ~gone
    lost, dropped, findings = filters.not_knocked_down(
        matrix[np.flatnonzero(keep)] if gone.any() else matrix,
        LabelTable.of(labels[keep]),
        names.tolist(),
        options,
    )
    survey.dropped += dropped
    survey.findings += findings
    keep[np.flatnonzero(keep)[lost]] = False
    if survey_failed(survey):
        return None
    small, report, findings = filters.small_conditions(LabelTable.of(labels[keep]), options.min_cells)
    survey.findings += findings
    if report is not None:
        survey.dropped.append(report)
    keep[np.flatnonzero(keep)[small]] = False
    return None if survey_failed(survey) else keep


def _has_both(survey: Survey, labels: pd.Series) -> bool:
    """Control and perturbed cells are left after the filters that look at single cells."""
    table = LabelTable.of(labels)
    kinds = {condition.is_control for condition in table.conditions}
    for is_control, what in ((True, "no control cell"), (False, "no perturbed cell")):
        if is_control not in kinds:
            survey.findings.append(
                Finding("filtered-away", f"the filters leave {what}", "loosen them", survey.n_cells)
            )
    return len(kinds) == 2


def plain_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """A copy that h5ad can hold: plain column names, text instead of mixed objects, unique index."""
    plain = frame.copy()
    plain.columns = [str(column).replace("/", "_") for column in plain.columns]
    plain = plain.rename(columns={"_index": "index_"})  # h5ad keeps that name for itself
    plain = plain.loc[:, ~plain.columns.duplicated()].copy()
    plain.index = plain.index.astype(str)
    plain.index.name = None if plain.index.name in set(plain.columns) else plain.index.name
    if not plain.index.is_unique:
        from anndata.utils import make_index_unique

        plain.index = make_index_unique(plain.index)
    for column in plain.columns:
        if not _is_plain(plain[column].dtype):
            plain[column] = plain[column].astype(object).astype(str)
    return plain


def _is_plain(dtype: Any) -> bool:
    """Numbers, truth values, and categories of plain text or numbers."""
    if isinstance(dtype, pd.CategoricalDtype):
        categories = dtype.categories
        return categories.inferred_type == "string" or _is_plain(categories.dtype)
    return isinstance(dtype, np.dtype) and dtype.kind in "biuf"


def published_obs(
    obs: pd.DataFrame, cell_types: pd.Series, table: LabelTable, layout: Layout
) -> tuple[pd.DataFrame, list[str]]:
    """Columns of the published layout, and the published condition name of each label."""
    types = cell_types.astype(str)
    shown = POOLED if types.nunique() > 1 else str(types.iloc[0])
    doses = ["+".join("1" * len(split_label(label))) for label in table.labels]
    names = [f"{shown}_{label}_{dose}" for label, dose in zip(table.labels, doses, strict=True)]
    is_control = np.array([table.conditions[i].is_control for i in table.label_condition], dtype=np.int64)
    plain = plain_frame(obs)
    if not layout.is_published:
        plain["condition_source"] = pd.Categorical(obs[layout.condition_key].astype(str))
    codes = table.cell_label
    columns: dict[str, Any] = {
        "condition": np.asarray(table.labels, dtype=object)[codes],
        "cell_type": types.to_numpy(),
        "dose_val": np.asarray(doses, dtype=object)[codes],
        "control": is_control[codes],
        "condition_name": np.asarray(names, dtype=object)[codes],
    }
    for name, values in columns.items():
        plain[name] = pd.Categorical(values)
    plain["condition_id"] = table.cell_condition
    return plain, names
