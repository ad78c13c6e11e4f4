"""From an AnnData to a screen that can be written: read, standardise labels, check, filter.

Each step takes a :class:`ScreenDraft` and gives one. Nothing is raised on the way: problems are findings of the draft,
and the steps that need a screen without errors are omitted where it has any.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import sparse

from gears.conditions import CONTROL_LABEL, SEPARATOR, split_label
from gears.core._findings import Finding, check, errors
from gears.core._messages import count, shorten, suggestion
from gears.data.checks import _filters, _labels, _names, _scale, _settings
from gears.data.checks._filters import Dropped
from gears.data.checks._guide_names import read_guides
from gears.data.checks._labels import LabelTable, by_first, by_text, renamed_labels
from gears.data.checks._layout import GUIDES, INDEX, ONE_TYPE, Layout, find_layout
from gears.data.checks._names import KnownGene
from gears.data.checks._options import ProcessingOptions
from gears.data.checks._scale import COUNTS, LOG1P
from gears.data.checks._settings import POOLED, SettingTable
from gears.data.checks._styles import is_control_like
from gears.data.reading._matrix import RAW, Annotations, as_csr, layers_of, log_normalize, other_features, values_of
from gears.files._mapped import pieces, taken

if TYPE_CHECKING:
    from anndata import AnnData

logger = logging.getLogger(__name__)

MIN_CELLS_DE = 2
REFUSED = "this screen cannot be prepared"
UNREADABLE = ("missing-label", "unreadable-label", "other-separator")
"""Findings after which labels cannot be brought into the published form."""


@dataclass(frozen=True)
class ScreenDraft:
    """A screen on its way from an AnnData to a prepared folder, and what was found on the way."""

    options: ProcessingOptions
    # n_cells, n_genes: N and G of the screen as given
    n_cells: int
    n_genes: int
    # obs, var: annotations as given; in the end those of the cells that stay, in the published layout
    obs: pd.DataFrame
    var: pd.DataFrame
    # layers, raw, values: the layers by name and ``adata.raw``, None where there is none; X or the layer that is used,
    # in whatever form it is held
    layers: dict[str, Any]
    raw: Any
    values: Any
    layout: Layout
    cells: np.ndarray  # (n,): cells that stay, by their number among the N given
    # gene_names, cell_types: (G,), (N,)
    gene_names: pd.Series = field(default_factory=lambda: pd.Series(dtype=object))
    cell_types: pd.Series = field(default_factory=lambda: pd.Series(dtype=object))
    table: LabelTable | None = None  # labels of the cells that stay; None where labels could not be read
    mapping: dict[str, str] = field(default_factory=dict)
    """The screen's own labels, and what they are read as."""
    guides: dict[str, str] = field(default_factory=dict)  # published label of each guide
    matrix: sparse.csr_matrix = field(default_factory=lambda: sparse.csr_matrix((0, 0), dtype=np.float32))
    """Log-normalised expression: (N, G), in the end (n, G)."""
    # settings, condition_names, has_negative, scale: labels with context and perturbation type (None before the cells
    # are divided); published name of each label; whether a value is below 0; the scale of the values as given
    # (:data:`gears.data.checks._scale.SCALES`)
    settings: SettingTable | None = None
    condition_names: list[str] = field(default_factory=list)
    has_negative: bool = False
    scale: str | None = None
    # findings, dropped: problems; what is excluded, by filter
    findings: tuple[Finding, ...] = ()
    dropped: tuple[Dropped, ...] = ()

    @property
    def has_values(self) -> bool:
        """Whether the draft holds the values of its cells, which may lie elsewhere."""
        return self.n_cells == 0 or self.matrix.shape[0] > 0

    @property
    def ok(self) -> bool:
        """Whether no error was found so far."""
        return not errors(self.findings)

    @property
    def labels(self) -> LabelTable:
        """Labels of the cells that stay, where they could be read."""
        assert self.table is not None
        return self.table

    def found(self, findings: Iterable[Finding], **changes: Any) -> ScreenDraft:
        return replace(self, findings=(*self.findings, *findings), **changes)

    def without(self, lost: np.ndarray, *dropped: Dropped) -> ScreenDraft:
        """The draft without some of the cells that stayed, by a mask of them."""
        dropped = (*self.dropped, *dropped)
        if not lost.any():
            return replace(self, dropped=dropped)
        return replace(self, cells=self.cells[~lost], table=self.labels.part(~lost), dropped=dropped)

    def of_cells(self, table: pd.DataFrame | pd.Series) -> Any:
        """The rows of the cells that stay; no copy where all do."""
        return table if len(self.cells) == self.n_cells else table.iloc[self.cells]

    def log(self) -> None:
        """Log how the screen is read where that was detected, warnings, and what is excluded."""
        if not self.layout.is_published:
            examples = "".join(f"\n  {own!r} -> {new!r}" for own, new in list(self.mapping.items())[:4])
            logger.info("how this screen is read:\n%s\nlabels:%s", self.layout.describe(), examples)
        for finding in self.findings:
            if finding.severity == "warning":
                logger.warning("%s", finding)
        for dropped in self.dropped:
            if dropped.n_cells:
                logger.warning("%s", dropped)


def check_screen(
    adata: AnnData | Annotations,
    options: ProcessingOptions,
    *,
    is_gene: KnownGene | None = None,
    sample: tuple[np.ndarray, sparse.csr_matrix] | None = None,
) -> ScreenDraft:
    """Every step from an AnnData (not modified) to a screen that can be written, if no error is found.

    `is_gene` gives the symbol of a gene that is known elsewhere (the annotation), None for any other token; outside
    the style "gears" tokens that are neither that nor measured are unknown labels. `sample` are numbers and values of
    some cells, by which values are judged that lie elsewhere; of the cells the draft then holds codes alone.
    """
    draft = check_cell_types(check_genes(read(adata, options)))
    draft = check_values(standardise_labels(draft, is_gene), sample)
    if options.normalize and draft.ok:
        draft = replace(draft, matrix=log_normalize(draft.matrix), scale=LOG1P)
    for step in (filter_cells, divide, publish):
        if draft.ok:
            draft = step(draft)
    return draft


def read(adata: AnnData | Annotations, options: ProcessingOptions) -> ScreenDraft:
    """What is used of an AnnData; where its labels, cell types and gene names are."""
    layers = {str(name): matrix for name, matrix in layers_of(adata).items()}
    column, others_G = other_features(adata.var)
    is_gene_G, others = others_G == "", others_G[others_G != ""]
    whole = adata
    if len(others):
        adata = adata[:, is_gene_G]
    (obs, repeated_obs), (var, repeated_var) = map(_each_column_once, (adata.obs, adata.var))
    layout, findings = find_layout(obs, var, options)
    used = {layout.condition_key, layout.cell_type_key, layout.gene_key, layout.count_key}
    used |= {options.doublet_key, options.guide_count_key, options.perturbation_type_key, *(options.batch_key or ())}
    for axis, repeated in (("obs", repeated_obs), ("var", repeated_var)):
        for name in repeated:
            what = f"{axis} has the column {name!r} more than once, with different values"
            severity, remedy = ("error", "keep one of them") if name in used else ("warning", "the first is kept")
            findings += check("repeated-column", [name], what, remedy, severity)
    kinds = shorten(f"{kind}: {n}" for kind, n in Counter(others).items())
    what = f"{count(len(others), 'feature')} other than gene expression excluded ({kinds})"
    remedy = f"call them 'Gene Expression' in var[{column!r}] if they are genes"
    findings += check("other-features", list(others), what, remedy, "warning" if is_gene_G.any() else "error")
    raw = None if adata.raw is None else adata.raw.X
    is_raw = options.layer == RAW and RAW not in layers and raw is not None
    is_there = is_raw or options.layer is None or options.layer in layers
    if is_raw and len(missing := adata.var_names.difference(adata.raw.var_names)):  # type: ignore[union-attr]
        what = f"adata.raw does not measure {count(len(missing), 'gene')} of adata ({shorten(missing)})"
        findings += check("raw-genes", list(missing), what, "call adata.raw.to_adata() and give that")
        is_there = False
    values = values_of(adata, options.layer) if is_there and adata.n_obs and adata.n_vars else None
    as_log1p = not options.normalize and options.scale in (None, LOG1P)
    if len(others) and values is not None and as_log1p and not is_raw:
        findings += _scale.shared_totals_findings(values_of(whole, options.layer), is_gene_G)
    return ScreenDraft(
        options=options,
        n_cells=adata.n_obs,
        n_genes=adata.n_vars,
        obs=obs,
        var=var,
        layers=layers,
        raw=raw,
        values=values,
        layout=layout,
        cells=np.arange(adata.n_obs, dtype=np.min_scalar_type(adata.n_obs)),
        findings=(*_scale.size_findings(adata.n_obs, adata.n_vars), *findings),
    )


def _each_column_once(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The first column of each name, and the names whose other columns have other values."""
    again = frame.columns.duplicated()
    if not again.any():
        return frame, []
    once = frame.loc[:, ~again]
    others = [(name, frame.iloc[:, i]) for i, name in enumerate(frame.columns) if again[i]]
    different = [str(name) for name, values in others if not once[name].astype(str).equals(values.astype(str))]
    return once, list(dict.fromkeys(different))


def check_genes(draft: ScreenDraft) -> ScreenDraft:
    """Symbol of each gene; repeated ones get the gene id where the options request it."""
    key, index, unique_genes = draft.layout.gene_key, draft.var.index, draft.options.unique_genes
    if key is None:
        return draft
    names = pd.Series(index, index=index) if key == INDEX else draft.var[key]
    names = names.astype(object).map(lambda name: name.strip() if isinstance(name, str) else name)
    findings = _names.gene_findings(names, index, unique_genes=unique_genes)
    names = names.astype(str)
    findings += _names.date_findings(names.tolist(), "gene name", "warning")
    if unique_genes:
        again = names.duplicated().to_numpy()
        names = names.where(~again, names + "-" + pd.Series(index.astype(str), index=index))
    return draft.found(findings, gene_names=names)


def check_cell_types(draft: ScreenDraft) -> ScreenDraft:
    """Type of each cell."""
    key, options = draft.layout.cell_type_key, draft.options
    if key is None:
        one_type = pd.Categorical.from_codes(np.zeros(draft.n_cells, dtype=np.int8), pd.Index([ONE_TYPE]))
        return replace(draft, cell_types=pd.Series(one_type, index=draft.obs.index))
    cell_types = draft.obs[key]
    matched = _settings.one_type_per_batch(draft.obs.assign(cell_type=cell_types), options)
    findings = _settings.cell_type_findings(cell_types, options.pool_cell_types or matched)
    return draft.found(findings, cell_types=cell_types)


def standardise_labels(draft: ScreenDraft, is_gene: KnownGene | None) -> ScreenDraft:
    """Labels in the published form, each parsed once; cells without a usable label are excluded."""
    layout, options = draft.layout, draft.options
    if layout.condition_key is None or draft.n_cells == 0:
        return draft
    own = draft.obs[layout.condition_key]
    lost, findings = _filters.labels_to_drop(own, options.drop_labels)
    if lost.any():
        why = f"labels named in drop_labels: {shorten(options.drop_labels or ())}"
        draft = replace(draft, dropped=(*draft.dropped, Dropped("drop_labels", int(lost.sum()), 0, why)))
    measured, genes = draft.gene_names.tolist(), {*draft.gene_names, *layout.as_genes}

    def known(token: str) -> bool:
        return token in genes or (is_gene is not None and bool(is_gene(token)))

    def is_symbol(token: str) -> bool:
        return token in genes or (is_gene is not None and is_gene(token) in (True, token))

    own = by_first(own if not lost.any() else own[~lost])
    of_guides, guides, more_findings = read_guides(list(own.unique()), layout, options, known, is_symbol)
    draft = draft.found([*findings, *more_findings], cells=draft.cells[~lost] if lost.any() else draft.cells)
    if errors(more_findings):
        return draft
    texts = renamed_labels(own, {label: of_guides.get(label, label) for label in own.cat.categories})
    if of_guides:  # from here on labels are in the published form
        layout = replace(layout, style=GUIDES, controls=(CONTROL_LABEL,), sep=SEPARATOR)
        draft = replace(draft, layout=layout, guides=guides)
    more_findings, parsed = _labels.label_findings(texts, layout)
    draft, findings = draft.found(more_findings), []
    if any(finding.kind in UNREADABLE for finding in more_findings):
        return draft
    distinct = list(texts.cat.categories)
    words = _labels.word_findings(distinct, layout, is_symbol)
    if words:
        return draft.found(words)
    joined, findings = _labels.joined_genes(distinct, layout, known, is_symbol) if options.sep is None else ({}, [])
    mapping = {label: joined.get(label) or layout.standard(label, known) for label in distinct}
    if layout.count_key is not None:
        numbers = draft.obs[layout.count_key][~lost]
        findings += _labels.guide_number_findings(texts, numbers, mapping, layout.count_key)
    tokens = _names.tokens_of(mapping.values())
    renamed = _names.other_names(tokens, measured, is_gene) if is_gene is not None else {}
    if renamed:
        mapping = {label: _names.with_names(standard, renamed) for label, standard in mapping.items()}
        tokens = _names.tokens_of(mapping.values())
    labels = list(dict.fromkeys(mapping.values()))
    findings += _names.other_name_findings(renamed)
    findings += _labels.everywhere_findings(mapping, layout)
    findings += _names.date_findings([token for token in tokens if token not in genes], "perturbed gene", "error")
    findings += _names.look_alike_findings(tokens, known, "perturbed gene", "error")
    perturbed = set(tokens)
    findings += _names.look_alike_findings(
        measured,
        lambda name: name in perturbed or (is_gene is not None and bool(is_gene(name))),
        "gene name",
        "warning",
    )
    findings += _names.other_case_findings(tokens, measured, known)
    findings += _names.unmeasured_findings(tokens, measured, draft.var)
    # labels that became others are parsed again
    is_same = layout.sep == SEPARATOR and not (joined or renamed)
    table = LabelTable.of(renamed_labels(texts, mapping), parsed if is_same else {})
    shown = {label: mapping[of_guides[label]] for label in of_guides} if of_guides else mapping
    draft = draft.found(findings, mapping=shown, table=table)
    if layout.style == "gears" or is_gene is None:
        return draft
    labels = [
        label
        for own, label in mapping.items()
        # a control's name that was divided is an error above
        if not (is_control_like(own) and len(_names.tokens_of([label])) > 1)
    ]
    more_findings, strange = _labels.unknown_gene_findings(list(dict.fromkeys(labels)), known, options.unknown_labels)
    draft = draft.found(more_findings)
    if not strange or options.unknown_labels != "drop":
        return draft
    lost = np.isin(table.labels, strange)[table.cell_label]
    why = "labels with a token that is no known gene"
    return draft.without(lost, Dropped("unknown_labels", int(lost.sum()), len(strange), why, tuple(strange)))


def check_values(draft: ScreenDraft, sample: tuple[np.ndarray, sparse.csr_matrix] | None = None) -> ScreenDraft:
    """Expression as CSR, and its scale: as stated, else as detected."""
    layer, layers = draft.options.layer, [*draft.layers, *([RAW] if draft.raw is not None else [])]
    if layer is not None and layer not in layers:
        hint = suggestion(layer, layers, "layers")
        return draft.found(check("no-layer", [layer], f"there is no layer {layer!r}", hint))
    if draft.n_cells == 0 or draft.n_genes == 0 or (draft.values is None and not draft.ok):
        return draft
    if draft.values is None:
        hint = f"pass layer= (layers: {shorten(layers) or 'none'})"
        return draft.found([Finding("no-values", "X is empty", hint)])
    try:
        matrix = as_csr(draft.values)
    except (TypeError, ValueError) as error:
        return draft.found([Finding("no-matrix", str(error))])
    draft, names = replace(draft, matrix=matrix, values=None), draft.obs.index
    if sample is not None:
        rows, matrix = sample
        names = names.take(rows)
    if findings := _scale.value_findings(matrix, layer=layer, layers=layers):
        return draft.found(findings)
    options = draft.options
    scale = options.scale or _scale.detect_scale(matrix)
    draft = draft.found(_scale.repeated_cell_findings(matrix, names), scale=scale)
    if options.scale is not None and not (options.normalize and scale != COUNTS):
        return draft  # the user knows better than the signs
    elsewhere = partial(_scale.other_places, draft.layers, draft.raw, layer)
    return draft.found(_scale.scale_findings(matrix, scale, layer, elsewhere, normalize=options.normalize))


def filter_cells(draft: ScreenDraft) -> ScreenDraft:
    """Exclude cells and conditions by every filter; where one leaves nothing, the report is about all cells."""
    filtered, options = exclude_marked_cells(draft), draft.options
    if filtered.ok and draft.has_values:
        genes = draft.gene_names.tolist()
        lost, dropped, findings = _filters.not_knocked_down(
            draft.matrix, filtered.cells, filtered.labels, genes, options
        )
        filtered = filtered.found(findings).without(lost, *dropped)
    if filtered.ok:
        lost, dropped, findings = _filters.small_conditions(filtered.labels, options.min_cells)
        filtered = filtered.found(findings).without(lost, *dropped)
    return filtered if filtered.ok else replace(draft, findings=filtered.findings, dropped=filtered.dropped)


def exclude_marked_cells(draft: ScreenDraft) -> ScreenDraft:
    """Exclude doublets, and cells with another number of guides than their label has genes."""
    options, table = draft.options, draft.labels

    def wrong_counts(obs: pd.DataFrame, key: str) -> tuple[np.ndarray, list[Finding]]:
        n_genes_N = np.zeros(draft.n_cells, dtype=np.int64)
        n_genes_N[draft.cells] = np.array([len(one) for one in table.conditions])[table.cell_condition]
        return _filters.wrong_guide_counts(obs, key, n_genes_N)

    for name, key, judge, reason in (
        ("doublet_key", options.doublet_key, _filters.doublets, "is true"),
        ("guide_count_key", options.guide_count_key, wrong_counts, "is not the number of genes in the label"),
    ):
        if key is None:
            continue
        lost_N, findings = judge(draft.obs, key)
        draft, lost = draft.found(findings), lost_N[draft.cells]
        if lost.any():
            emptied = sorted(set(draft.labels.labels) - set(draft.labels.part(~lost).labels))
            why = f"obs[{key!r}] {reason}"
            draft = draft.without(lost, Dropped(name, int(lost.sum()), len(emptied), why, tuple(emptied)))
    left = set(draft.labels.is_control.tolist())
    return draft.found(
        Finding("filtered-away", f"the filters leave {what}", "loosen them", draft.n_cells)
        for is_control, what in ((True, "no control cell"), (False, "no perturbed cell"))
        if draft.ok and is_control not in left
    )


def divide(draft: ScreenDraft) -> ScreenDraft:
    """Divide the cells by context and perturbation type, and look for small conditions."""
    options, table = draft.options, draft.labels
    with_de = not options.skip_calc_de
    draft = draft.found(_settings.small_condition_findings(table, MIN_CELLS_DE, with_de=with_de))
    obs, types = draft.of_cells(draft.obs), draft.of_cells(draft.cell_types)
    columns = obs.assign(cell_type=types)
    draft = draft.found(
        _settings.column_findings(columns, options, taken(table.is_control[table.label_condition], table.cell_label))
    )
    if not draft.ok:
        return draft
    settings = _settings.setting_table(columns, table, options)
    findings = (
        _settings.small_in_context_findings(settings, MIN_CELLS_DE) if with_de and _settings.is_divided(options) else []
    )
    return draft.found(findings, settings=settings)


def publish(draft: ScreenDraft) -> ScreenDraft:
    """Values and annotations of the cells that stay, in the published layout."""
    types, matrix = by_text(draft.of_cells(draft.cell_types)), draft.matrix
    names = types.categories.tolist()
    shown, labels = POOLED if len(names) > 1 else names[0], draft.labels.labels
    doses = ["+".join("1" * len(split_label(label))) for label in labels]
    condition_names = [f"{shown}_{label}_{dose}" for label, dose in zip(labels, doses, strict=True)]
    if draft.has_values:
        obs = published_obs(draft, types, doses, condition_names)
        matrix = matrix if len(draft.cells) == draft.n_cells else as_csr(matrix[draft.cells])
    else:  # annotations of cells are written nowhere
        obs = pd.DataFrame({"cell_type": types})
    return replace(
        draft,
        matrix=matrix,
        obs=obs,
        var=plain_frame(draft.var.assign(gene_name=draft.gene_names.to_numpy())),
        condition_names=condition_names,
        has_negative=any(bool((piece < 0).any()) for piece in pieces(matrix.data)),
    )


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
    draft: ScreenDraft, types: pd.Categorical, doses: list[str], condition_names: list[str]
) -> pd.DataFrame:
    """Columns of the published layout, with the screen's own labels where these were changed."""
    table, layout = draft.labels, draft.layout
    obs = draft.of_cells(draft.obs)
    plain = plain_frame(obs)
    if not layout.is_published or [*draft.mapping] != [*draft.mapping.values()]:
        plain["condition_source"] = pd.Categorical(obs[layout.condition_key].astype(str))
    is_control = table.is_control.astype(np.int64)[table.label_condition]
    columns: dict[str, tuple[Any, np.ndarray]] = {
        "condition": (table.labels, table.cell_label),
        "cell_type": (types.categories, types.codes),
        "dose_val": (doses, table.cell_label),
        "control": (is_control, table.cell_label),
        "condition_name": (condition_names, table.cell_label),
    }
    for name, (values, codes) in columns.items():
        number, distinct = pd.factorize(np.array(values, dtype=np.int64 if name == "control" else object), sort=True)
        plain[name] = pd.Categorical.from_codes(number[codes], pd.Index(distinct))
    plain["condition_id"] = table.cell_condition
    return plain
