"""The labels of a screen, parsed once, and what is wrong with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd

from gears.conditions import AT, CONTROL_LABEL, SEPARATOR, Condition, conditions_of
from gears.core._findings import Finding, check
from gears.core._messages import agreeing, count, nearest, shorten
from gears.data.checks._layout import Layout
from gears.data.checks._styles import CONTROLS_JOINED, JOINING, is_control_like, is_no_gene, is_word, may_be_control
from gears.files._mapped import taken

FEW_CONTROLS = 10
"""Control cells below which the noise of their mean is reported."""
MOST_CONTROLS = 30
"""Control labels that a remedy lists."""
MOST_GENES = 5
"""Tokens that a remedy lists as genes."""
MOST_LABELS, FEWEST_LABELS = 0.9, 5
"""Share of the perturbed labels from which on a token is no second gene, and labels that tell."""
MOST_KNOWN = 0.9
"""Share of the tokens that must be known genes for the others to be taken for genes, too."""
CODES = "whole numbers are codes: give the names that they mean, such as obs[...].map({0: 'ctrl', 1: 'A+ctrl'})"


@dataclass(frozen=True)
class LabelTable:
    """Labels of a screen in order of first appearance, parsed once."""

    cell_label: np.ndarray  # (N,): label of each cell, in as few bytes as can be
    # labels, label_condition, conditions: the L labels, the number of each one's condition, (L,) int64, and the C
    # conditions
    labels: list[str]
    label_condition: np.ndarray
    conditions: tuple[Condition, ...]

    @classmethod
    def of(cls, labels: pd.Series, parsed: Mapping[str, Condition] | None = None) -> LabelTable:
        """One label per cell, :func:`by_first`, without missing values; those not `parsed` yet are parsed."""
        own, codes = list(labels.cat.categories), labels.cat.codes.to_numpy()
        ids: dict[Condition, int] = {}
        label_condition = [ids.setdefault(one, len(ids)) for one in conditions_of(own, parsed).values()]
        return cls(codes, own, np.asarray(label_condition, dtype=np.int64), tuple(ids))

    def part(self, kept: np.ndarray) -> LabelTable:
        """The labels of some cells, by a mask, again in order of first appearance."""
        codes, labels = pd.factorize(self.cell_label[kept])
        ids, conditions = pd.factorize(self.label_condition[labels])
        return LabelTable(
            codes.astype(np.int32),
            [self.labels[label] for label in labels],
            ids.astype(np.int64),
            tuple(self.conditions[condition] for condition in conditions),
        )

    @property
    def cell_condition(self) -> np.ndarray:
        """Condition of each cell, (N,) int32."""
        return taken(self.label_condition.astype(np.int32), self.cell_label)

    @property
    def is_control(self) -> np.ndarray:
        """Whether a condition is the control, (C,) bool."""
        return np.array([condition.is_control for condition in self.conditions])

    def counts(self) -> np.ndarray:
        """Cells per condition, (C,)."""
        n_L = pd.Series(self.cell_label).value_counts(sort=False)
        n_C = np.zeros(len(self.conditions), dtype=np.int64)
        np.add.at(n_C, self.label_condition[n_L.index], n_L)
        return n_C


def by_first(values: pd.Series) -> pd.Series:
    """A column as categories in order of first appearance, the codes as small as they can be."""
    codes, distinct = _distinct(values)
    is_missing = pd.isna(distinct)
    number = np.where(is_missing, -1, np.cumsum(~is_missing) - 1).astype(codes.dtype)
    categories = pd.Index(list(distinct[~is_missing]), dtype=object)
    return pd.Series(pd.Categorical.from_codes(taken(number, codes), categories), index=values.index)


def _distinct(values: pd.Series) -> tuple[np.ndarray, Any]:
    """Number of each cell's value among the distinct ones, in order of first appearance, a missing one too."""
    if not isinstance(values.dtype, pd.CategoricalDtype):
        return pd.factorize(values, use_na_sentinel=False)
    codes = values.cat.codes.to_numpy()
    present = pd.unique(codes)
    number = np.empty(len(values.cat.categories) + 1, dtype=codes.dtype)  # the last for -1, a missing value
    number[present] = np.arange(len(present))
    return taken(number, codes), pd.Categorical.from_codes(present, dtype=values.dtype)


def by_text(values: pd.Series) -> pd.Categorical:
    """A column as categories of text, the missing ones among them, in order of first appearance."""
    codes, distinct = _distinct(values)
    number, texts = pd.factorize(pd.Series(distinct).astype(str).to_numpy(dtype=object))
    return pd.Categorical.from_codes(taken(number.astype(codes.dtype), codes), pd.Index(texts))


def renamed_labels(labels: pd.Series, names: Mapping[object, object]) -> pd.Series:
    """Labels, :func:`by_first`, by other names, which several may share."""
    number, distinct = pd.factorize(np.array([*map(names.__getitem__, labels.cat.categories)], dtype=object))
    own = labels.cat.codes.to_numpy()
    codes = taken(np.append(number, -1).astype(own.dtype), own)  # -1 where the label is missing
    return pd.Series(pd.Categorical.from_codes(codes, pd.Index(distinct, dtype=object)), index=labels.index)


def label_findings(labels: pd.Series, layout: Layout) -> tuple[list[Finding], dict[str, Condition]]:
    """What is wrong with labels, :func:`by_first`, and the condition of each that the layout's separator reads."""
    missing = list(labels.index.take(np.flatnonzero(labels.isna())))
    what = f"obs[{layout.condition_key!r}] is missing for {count(len(missing), 'cell')}"
    control = layout.controls[0] if layout.controls else CONTROL_LABEL
    remedy = f"drop them (drop_labels=['nan']), or label them {control!r} if they are controls"
    findings = check("missing-label", missing, what, remedy)
    n_cells = labels.cat.codes.value_counts().reindex(range(len(labels.cat.categories)), fill_value=0)
    counts = Counter(dict(zip(labels.cat.categories, n_cells.tolist(), strict=True)))
    of_labels, readable = _readable(counts, layout)
    findings += of_labels
    empty = [
        label
        for label in readable
        if label.strip() in layout.controls or not set(layout.tokens(label)) - set(layout.controls)
    ]
    if empty:
        findings += _strange_tokens(counts, readable, layout)
    else:
        findings += _no_control(counts, layout)
    if readable and len(empty) == len(readable):
        what = f"no perturbed condition among {count(len(labels), 'cell')}"
        remedy = f"at least one label such as 'A{SEPARATOR}{CONTROL_LABEL}' is needed"
        findings.append(Finding("no-perturbed-condition", what, remedy, len(labels)))
    return findings, readable


def _readable(counts: Counter, layout: Layout) -> tuple[list[Finding], dict[str, Condition]]:
    findings: list[Finding] = []
    readable: dict[str, Condition] = {}
    unreadable: dict[bool, list[tuple[object, str]]] = {True: [], False: []}
    for label in counts:
        try:
            readable[label] = Condition.parse(label, sep=layout.sep or "\0")  # a sign that no label holds
        except ValueError as error:
            unreadable[isinstance(label, str)].append((label, str(error)))
    for bad in filter(None, unreadable.values()):
        (first, why), *others = bad
        what, _, remedy = why.partition("; ")
        if others:
            shown = shorten([repr(label) for label, _ in others], 5)
            what += f" (and {count(len(others), 'other label')} like it: {shown})"
        n = sum(counts[label] for label, _ in bad)
        codes = not isinstance(first, str) and all(isinstance(label, Integral) for label, _ in bad)
        remedy = CODES if codes else remedy or "write genes as text"
        findings += check("unreadable-label", [first], what, remedy, n=n)
    settled = [label for label, condition in readable.items() if condition.suffix]
    what = f"{count(len(settled), 'label')} with a context or a type: {shorten(map(repr, settled), 5)}"
    remedy = (
        f"put what follows {AT!r} into a column of obs (context_key=) and what is in brackets into another "
        "(perturbation_type_key=); labels hold genes only"
    )
    findings += check("context-in-label", settled, what, remedy, n=sum(counts[label] for label in settled))
    joined = [label for label in readable if layout.sep != SEPARATOR and SEPARATOR in label]
    sign = repr(layout.sep) if layout.sep else "no sign"
    what = f"{count(len(joined), 'label')} with {SEPARATOR!r} ({shorten(joined)}) though {sign} joins genes here"
    findings += check("other-separator", joined, what, f"pass sep={SEPARATOR!r}, or rename")
    return findings, readable


def _no_control(counts: Counter, layout: Layout) -> list[Finding]:
    names = [label for label in counts if isinstance(label, str)]
    wanted = " or ".join(map(repr, layout.controls)) or "known to be the control"
    what = f"no control cells: no label in obs[{layout.condition_key!r}] is {wanted}"
    own = [label for label in names if label.strip() not in layout.as_genes]
    known = [label for label in own if is_control_like(label)] or [label for label in own if may_be_control(label)]
    tokens = {token for label in names for token in layout.tokens(label) if is_control_like(token)}
    tokens -= set(layout.as_genes)
    if tokens and tokens <= set(layout.controls) and not known:
        largest, n = counts.most_common(1)[0]
        what = f"{what} alone: it is named beside genes only; {largest!r} has most cells ({n})"
        remedy = f"label the control cells {sorted(tokens)[0]!r}, or name their label, too: ctrl_label="
        return check("no-control", [largest], what, f"{remedy}{[*sorted(tokens), '...']}", n=n)
    if len(known) > 1 or tokens - {label.strip() for label in known}:
        spelled = sorted({label.strip() for label in known} | tokens)
        remedy = f"several tokens look like a control; name all that are: ctrl_label={spelled}"
        if len(spelled) > MOST_CONTROLS:
            remedy = (
                f"several tokens look like a control; pass guide_key={layout.condition_key!r} if all are, or label "
                f"their cells {CONTROL_LABEL!r}"
            )
        what = f"{what}; found {shorten(map(repr, spelled))}"
        return check("no-control", spelled, what, remedy + _or_joined(known, layout))
    control = layout.controls[0] if layout.controls else "control"
    like = known or nearest(control, names) or nearest("control", names)
    if not like:
        remedy = "label the control cells, or name their label: ctrl_label='...'"
        what += f"; labels found: {shorten(names)}" if names else ""
        return [Finding("no-control", what, remedy)]
    best = like[0]
    what = f"{what}; the label most like it is {best!r} ({count(counts[best], 'cell')})"
    remedy = f"rename it to {CONTROL_LABEL!r}, or pass ctrl_label={best.strip()!r}{_or_joined(known, layout)}"
    return check("no-control", [best], what, remedy, n=counts[best])


def _or_joined(controls: Sequence[str], layout: Layout) -> str:
    """The further remedy where the control label joins the names of two control guides by another sign."""
    for sign in CONTROLS_JOINED:
        parts = {part.strip() for label in controls for part in label.split(sign)}
        if sign != layout.sep and any(sign in label for label in controls) and all(map(may_be_control, parts)):
            names = sorted(parts) if len(parts) <= MOST_CONTROLS else [*sorted(parts)[:3], "..."]
            return f"; where {sign!r} joins the genes of all labels, sep={sign!r} and ctrl_label={names}"
    return ""


def _strange_tokens(counts: Counter, labels: Iterable[str], layout: Layout) -> list[Finding]:
    """Tokens that mean control, or nothing, in other screens and would be taken for genes here."""
    controls: dict[str, list[str]] = {}
    doubtful: dict[str, list[str]] = {}
    unknown: dict[str, list[str]] = {}

    def n_cells(by_token: dict[str, list[str]]) -> int:
        return sum(counts[label] for labels_ in by_token.values() for label in labels_)

    for label in labels:
        for token in [label.strip()] if is_control_like(label) else layout.tokens(label):
            if token in layout.controls or token in layout.as_genes:
                continue
            if is_control_like(token):
                controls.setdefault(token, []).append(label)
            elif may_be_control(token):
                doubtful.setdefault(token, []).append(label)
            elif is_no_gene(token):
                unknown.setdefault(token, []).append(label)
    tokens, n = sorted(controls), n_cells(controls)
    named = [f"{labels_[0]!r} has {token!r}" for token, labels_ in controls.items()]
    what = (
        f"{count(len(tokens), 'token')} like a control's, which would be taken for a gene "
        f"({count(n, 'cell')}): label {shorten(named, 5)}"
    )
    remedy = (
        f"write {CONTROL_LABEL!r} for the control, or pass ctrl_label={sorted({*layout.controls, *tokens})}; "
        f"{_as_genes(tokens)} if genes have these names"
    )
    if len(tokens) > MOST_CONTROLS:
        remedy = f"pass guide_key={layout.condition_key!r} if all are controls"
    findings = check("control-like-token", tokens, what, remedy, n=n)
    tokens, n = sorted(doubtful), n_cells(doubtful)
    number = count(len(tokens), "token that is often a control", "tokens that are often controls")
    what = f"{number} ({shorten(tokens)}; {count(n, 'cell')}), taken for genes"
    spelled = sorted({*layout.controls, *tokens})
    remedy = f"pass ctrl_label={spelled} if they are controls, {_as_genes(tokens)} if they are genes"
    findings += check("maybe-control", tokens, what, remedy, "warning", n=n)
    n, whole = n_cells(unknown), sorted({label for labels_ in unknown.values() for label in labels_})
    names = agreeing(len(whole), "names", "name")
    what = f"{count(len(whole), 'label')} ({count(n, 'cell')}) {names} no gene: {shorten(map(repr, whole))}"
    remedy = (
        f"these cells are no controls: exclude them with drop_labels={whole[:5]}, or pass "
        f"as_genes={sorted(unknown)[:5]} if genes have these names"
    )
    return findings + check("no-gene-label", whole, what, remedy, n=n)


def _as_genes(tokens: Sequence[str]) -> str:
    """The option by which tokens are genes: many are hardly ever."""
    return f"as_genes={tokens if len(tokens) <= MOST_GENES else [tokens[0], '...']}"


def word_findings(labels: Iterable[str], layout: Layout, is_symbol: Callable[[str], bool]) -> list[Finding]:
    """Tokens, or parts of them beside a gene, that say what was done and not to which gene ("AHR KO", "AHR+LPS").

    So does a part beside a gene in nearly every label, whatever it is ("AHR_K562", "KLF1_K562").
    """
    words: dict[str, list[str]] = {}
    beside: dict[str, list[str]] = {}
    for label in labels:
        for token in layout.tokens(label):
            if token in (*layout.controls, *layout.as_genes) or is_symbol(token) or is_control_like(token):
                continue
            parts = [part for part in JOINING.split(token) if part]
            if not any(map(is_symbol, parts)):
                parts = [token]
            for part in parts:
                if not is_symbol(part):
                    (words if is_word(part) else beside).setdefault(part, []).append(label)
    n = len({label for label in labels if set(layout.tokens(label)) - set(layout.controls)})
    if n >= FEWEST_LABELS:
        words |= {
            part: labels_of_part for part, labels_of_part in beside.items() if len(labels_of_part) >= MOST_LABELS * n
        }
    names = sorted(words)
    shown = shorten((f"{word!r} in {words[word][0]!r}" for word in names), 5)
    what = f"{count(len(names), 'word')} that may say how, where or when cells were perturbed: {shown}"
    return check("word-in-label", names, what, _IN_COLUMNS.format(names[:5]))


_IN_COLUMNS = (
    "write the genes alone in labels, and the rest into columns of obs: perturbation_type_key= (knock-out, CRISPRi), "
    "context_key= (treatment, time, cell line), batch_key= (replicate); as_genes={} if genes have these names"
)


def everywhere_findings(mapping: Mapping[str, str], layout: Layout) -> list[Finding]:
    """A token beside another gene in nearly every label, or in half of them: a treatment or a cell line.

    The latter is beside most genes that also occur alone. It is in most combinations, or its only label without
    another gene names the control ("control_IFNG") where most other genes stand alone ("AHR").

    `mapping` gives the published form of each label.
    """
    genes_of = {own: frozenset(label.split(SEPARATOR)) - {CONTROL_LABEL} for own, label in mapping.items()}
    perturbed = [genes for genes in dict.fromkeys(genes_of.values()) if genes]
    several = [genes for genes in perturbed if len(genes) > 1]
    combined = Counter(gene for genes in several for gene in genes)
    alone = {gene for genes in perturbed if len(genes) == 1 for gene in genes}
    controls = {*layout.controls, CONTROL_LABEL}
    bare = {
        gene
        for own, genes in genes_of.items()
        if len(genes) == 1 and not controls & {*layout.tokens(own), *JOINING.split(own)}
        for gene in genes
    }
    partners: dict[str, set[str]] = {}
    for genes in several:
        for gene in genes:
            partners.setdefault(gene, set()).update(genes & alone - {gene})
    n = len(perturbed)

    def is_everywhere(gene: str, k: int) -> bool:
        if n >= FEWEST_LABELS and k >= MOST_LABELS * n:
            return True
        beside_most = len(partners[gene]) >= max(FEWEST_LABELS, len(alone - {gene}) / 2)
        only_beside_control = gene in alone - bare and 2 * len(bare) >= len(alone)
        return beside_most and (2 * k >= len(several) or only_beside_control)

    names = [gene for gene, k in combined.items() if gene not in layout.as_genes and is_everywhere(gene, k)]
    if not names:
        return []
    what = f"{shorten(names)} stands beside another gene in {combined[names[0]]} of {n} labels, as a treatment would"
    return check("in-every-label", names, what, _IN_COLUMNS.format(names))


def guide_number_findings(labels: pd.Series, numbers: pd.Series, mapping: dict[str, str], key: str) -> list[Finding]:
    """Labels that read as more genes than every one of their cells has perturbations: a name was split."""
    counts = pd.to_numeric(numbers.astype(object), errors="coerce")
    most = counts.groupby(labels.astype(object).to_numpy()).max()
    wrong = [
        label
        for label, standard in mapping.items()
        if label in most.index and len(set(standard.split(SEPARATOR)) - {CONTROL_LABEL}) > most[label]
    ]
    shown = shorten(f"{label!r} ({mapping[label]})" for label in wrong)
    what = f"{count(len(wrong), 'label')} read as more genes than obs[{key!r}] says: {shown}"
    remedy = "pass the sign that joins genes as sep=, or rename genes whose names hold it"
    return check("split-name", wrong, what, remedy)


def unknown_gene_findings(
    labels: Sequence[str], known: Callable[[str], bool], choice: str
) -> tuple[list[Finding], list[str]]:
    """Labels (published spelling) with a token that is neither measured nor annotated; and those labels.

    With the choice "auto" they are kept where :data:`MOST_KNOWN` of the tokens are known genes: the others become
    isolated nodes of the graph, which is reported where the graph is made.
    """
    strange = {
        label: token
        for label in labels
        for token in label.split(SEPARATOR)
        if token.strip() != CONTROL_LABEL and not known(token.strip())
    }
    tokens = {token.strip() for label in labels for token in label.split(SEPARATOR)} - {CONTROL_LABEL}
    n_unknown = len({token for token in tokens if not known(token)})
    if choice == "auto":
        choice = "isolated" if len(tokens) - n_unknown >= MOST_KNOWN * len(tokens) else "refuse"
    shown = shorten(sorted(set(strange.values())))
    what = f"{count(len(strange), 'label')} with a token that is neither a measured nor an annotated gene: {shown}"
    remedies = {
        "refuse": "unknown_labels='keep' takes them for genes, unknown_labels='drop' excludes them, "
        "ctrl_label= names a control",
        "isolated": "taken for genes of which nothing else is known; unknown_labels='drop' leaves these labels out",
        "keep": "taken for genes, as requested",
        "drop": "excluded, as requested",
    }
    remedy = remedies[choice]
    if choice == "refuse" and 2 * n_unknown > len(tokens):
        remedy = (
            "name the genes as the annotation does, or give that of your species (gene2go=); if these are guides, say "
            "which gene each targets (guide_key=, guide_targets=, guide_pattern=)"
        )
    severity = {"refuse": "error", "isolated": "note"}.get(choice, "warning")
    return check("unknown-gene", strange, what, remedy, severity), list(strange)


def joined_genes(
    labels: Iterable[str], layout: Layout, known: Callable[[str], bool], is_symbol: Callable[[str], bool]
) -> tuple[dict[str, str], list[Finding]]:
    """Labels of known genes that another sign joins than the layout's, in the published form; a warning per sign."""
    published: dict[str, str] = {}
    by_sign: dict[str, list[str]] = {}
    by_alias: dict[str, str] = {}
    for label in labels:
        tokens, signs = [], set()
        for token in layout.tokens(label):
            parts, sign = _divided(token, layout, known, is_symbol)
            tokens += parts
            signs |= {sign} - {""}
            if not sign and (alike := _divided(token, layout, known, known)[1]) not in ("", "-"):
                by_alias[label] = alike
        if signs:
            tokens = [CONTROL_LABEL if token in layout.controls else token for token in tokens]
            published[label] = SEPARATOR.join(tokens)
            for sign in signs:
                by_sign.setdefault(sign, []).append(label)
    sep, sign = layout.sep or SEPARATOR, next(iter(by_alias.values()), "")
    what = f"{count(len(by_alias), 'label')} may join genes under old names ({shorten(map(repr, by_alias), 4)})"
    remedy = f"pass sep={sign!r} if each is a combination, sep={sep!r} if each is one gene"
    findings = check("joined-aliases", by_alias, what, remedy)
    for sign, own in by_sign.items():
        what = f"{count(len(own), 'label')} of known genes joined by {sign!r} ({shorten(own, 4)}), read as combinations"
        findings += check("joined-genes", own, what, f"pass sep={sep!r} if each is the name of one gene", "warning")
    return published, findings


def _divided(
    token: str, layout: Layout, known: Callable[[str], bool], is_symbol: Callable[[str], bool]
) -> tuple[list[str], str]:
    """Known genes and controls that one sign joins in a token, and the sign; the token and "" where there are none."""
    whole = [token], ""
    if token.isalnum() or token in layout.controls or known(token):
        return whole

    ways = {}
    for match in JOINING.finditer(token):
        sign = match.group().strip() or match.group()
        everywhere = [part.strip() for part in token.split(sign)]
        here = [token[: match.start()].strip(), token[match.end() :].strip()]
        for parts in (everywhere, here):
            if all(part in layout.controls or is_symbol(part) for part in parts) and not set(parts) <= set(
                layout.controls
            ):
                ways[tuple(parts)] = sign
    if len(ways) != 1:  # nobody can say which is meant
        return whole
    ((genes, sign),) = ways.items()
    return list(genes), sign
