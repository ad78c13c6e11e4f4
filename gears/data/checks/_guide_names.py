"""Names of guides in place of conditions: the gene that each targets ("STAT1_g2", "sgSTAT1-2", "NTC_3")."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gears.conditions import CONTROL_LABEL, SEPARATOR
from gears.core._findings import Finding, check, errors
from gears.core._messages import agreeing, count, shorten
from gears.data.checks._layout import GUIDES, Layout
from gears.data.checks._options import ProcessingOptions
from gears.data.checks._styles import JOINING, is_control_like, is_no_gene, may_be_control
from gears.data.reading._guides import BETWEEN, MISSING, known_parts, without_number

_PREFIX = re.compile(r"(?:(?:p_)?(?:sgRNA|gRNA|guide|sg)[-_. ]?|p_)(?=[A-Za-z0-9])")
_MARK = r"(?:sg|g|gr|guide|sgrna|grna)"
_SUFFIX = re.compile(
    rf"[-_. ]+{_MARK}[-_. ]?\d{{1,6}}|(?-i:sg|g)\d{{1,3}}"  # STAT1_g2, STAT1-sgRNA-2; STAT1g2
    r"|[-_.]\d{1,6}"  # STAT1-2, STAT1.1
    r"|[-_][ACGT]{17,23}"  # STAT1_GACTTCAGGACTTCAGGACT
    r"|_[-+]_\d+\.\d+(?:-\w+)*",  # STAT1_+_191878.23-P1P2
    re.IGNORECASE,
)
_PLAIN = re.compile(r"[-_.]0*(\d+)")
_PHASE = re.compile(r"[-_. ]+G[012]")
MOST_GUIDES, FEW = 0.9, 3
"""Share of the names that must be guides of known genes for a column to be read so; names that are all listed."""
IsGene = Callable[[str], bool]


@dataclass
class GuideReader:
    """Gene of each guide: by the options, else by the form of its name."""

    # known, is_symbol: whether a name is a known gene, and whether it is one under its own symbol. A known gene keeps
    # its whole name.
    known: IsGene
    is_symbol: IsGene
    controls: tuple[str, ...] | None = None
    """Names of the control, of a guide or without its number; None: those that look like one."""
    signs: tuple[str, ...] = ()  # what may join the guides of a cell; () for any sign
    targets: Mapping[str, str] | None = None
    pattern: str | None = None
    genes: dict[str, str | None] = field(default_factory=dict)
    """Gene, or the control's label, of each name that was looked at; None for a name that is no guide."""

    def __contains__(self, name: object) -> bool:
        name = str(name)
        if name not in self.genes:
            self.genes[name] = self._gene_of(name)
        return self.genes[name] is not None

    def is_control(self, name: str) -> bool:
        return is_control_like(name) if self.controls is None else name in (CONTROL_LABEL, *self.controls)

    def _gene_of(self, name: str) -> str | None:
        if self.targets is not None and name in self.targets:
            target = self.targets[name]
            if target.lower() in MISSING:
                return CONTROL_LABEL if self._is_control_without_target(name) else None
            return CONTROL_LABEL if self.is_control(target) else target
        if self.is_control(name):
            return CONTROL_LABEL
        if self.known(name):
            return name
        if self.pattern is not None:
            match = re.fullmatch(self.pattern, name)
            if match is not None and match[1]:
                return CONTROL_LABEL if self.is_control(match[1]) else match[1]
            return CONTROL_LABEL if self.controls is None and may_be_control(name) else None
        stems = list(_stems(name))
        if self.targets is not None:
            return CONTROL_LABEL if any(map(self.is_control, stems)) else None
        if (symbol := next(filter(self.is_symbol, stems), None)) is not None:
            return symbol
        if any(map(self.is_control, stems)) or (self.controls is None and may_be_control(name)):
            return CONTROL_LABEL
        # old names; and genes of a mouse, which the human annotation has in capitals
        return next((stem for stem in stems if self.known(stem) or self.is_symbol(stem.upper())), None)

    def _is_control_without_target(self, name: str) -> bool:
        """Whether its name says so, or guides with that name and another number have a control's target."""
        if self.controls is not None:
            return any(map(self.is_control, [name, *_stems(name)]))
        others = (guide for guide, target in (self.targets or {}).items() if self.is_control(target))
        return may_be_control(name) or without_number(name) in map(without_number, others)

    def guides_of(self, label: str) -> list[str]:
        """The guides that a label names; [] where it cannot be divided into guides, or in several ways."""
        label = _half(label)
        if label in self and self.pattern is None:
            return [label]
        divide = known_parts if self.pattern is None else self._shortest_parts
        ways = set()
        for sign in _signs_of(label):
            parts = divide(label.split(sign), sign, self) if not self.signs or sign in self.signs else []
            # signs of names, as in H2-K1, join no old names of genes (H2, K1)
            if len(parts) > 1 and (sign in (*BETWEEN, *self.signs) or not any(map(self._is_alias, parts))):
                ways.add(tuple(parts))
        # several ways: nobody can say which is meant
        return list(next(iter(ways))) if len(ways) == 1 else [label] if label in self else []

    def _is_alias(self, guide: str) -> bool:
        gene = self.genes[guide]
        is_said = self.targets is not None and guide in self.targets
        return gene not in (None, CONTROL_LABEL) and not is_said and not self.is_symbol(str(gene))

    def _shortest_parts(self, parts: list[str], sign: str, known: object) -> list[str]:
        """Guides of known genes that give a text of these parts, short ones first: patterns often fit all of it."""
        for n in range(1, len(parts) + 1):
            guide = sign.join(parts[:n]).strip()
            gene = self.genes[guide] if guide in self else None
            if gene is not None and (gene == CONTROL_LABEL or self.known(gene)):
                rest = self._shortest_parts(parts[n:], sign, known) if n < len(parts) else []
                if rest or n == len(parts):
                    return [guide, *rest]
        return []

    def label_of(self, guides: Iterable[str]) -> str:
        """The published label of a cell with these guides; those that are not read are taken for genes."""
        genes = dict.fromkeys(self.genes.get(guide) or guide for guide in guides)
        genes.pop(CONTROL_LABEL, None)
        return SEPARATOR.join(genes if len(genes) > 1 else [*genes, CONTROL_LABEL]) if genes else CONTROL_LABEL


def _stems(name: str) -> Iterator[str]:
    """What may be the gene in the name of a guide, longest first: without prefix, without suffix, without both."""
    prefix = _PREFIX.match(name)
    wholes = [name] if prefix is None else [name, name[prefix.end() :]]
    yield from wholes[1:]
    for whole in wholes:
        for start in range(len(whole) - 2, 0, -1):
            if _SUFFIX.fullmatch(whole, start):
                yield whole[:start]


def _signs_of(label: str) -> Iterator[str]:
    """Signs that may join guides in a label: runs of signs, and each sign of a run."""
    runs = dict.fromkeys(match.group() for match in JOINING.finditer(label))
    yield from dict.fromkeys([*runs, *(sign for run in runs for sign in run if not run.strip().isalpha())])


def read_guides(
    labels: Sequence[object], layout: Layout, options: ProcessingOptions, known: IsGene, is_symbol: IsGene
) -> tuple[dict[str, str], dict[str, str], list[Finding]]:
    """Published labels of those of the `labels` that are guides, and of each guide, where the column holds guides.

    The options say that it does, or nearly all of its names are guides of known genes. A column in which some names are
    such guides and others are not is an error; twice {} and no finding where it holds none.
    """
    reader = GuideReader(
        known,
        is_symbol,
        None if options.ctrl_label == CONTROL_LABEL else options.controls,
        () if options.sep is None else (options.sep,),
        options.guide_targets,
        options.guide_pattern,
    )
    reader.genes |= {gene: gene for gene in layout.as_genes}
    reader.genes |= dict.fromkeys((*layout.controls, CONTROL_LABEL), CONTROL_LABEL)
    published, findings = _published(labels, layout, options, reader)
    guides = [guide for guide, gene in reader.genes.items() if published and gene not in (None, guide)]
    return published, {guide: reader.label_of([guide]) for guide in guides}, findings


def _published(
    labels: Sequence[object], layout: Layout, options: ProcessingOptions, reader: GuideReader
) -> tuple[dict[str, str], list[Finding]]:
    key, is_symbol = str(layout.condition_key), reader.is_symbol
    names = [label for label in labels if isinstance(label, str) and not is_no_gene(label)]
    guides = {name: reader.guides_of(name.strip()) for name in names}
    genes = {guide: reader.genes[guide] or guide for parts in guides.values() for guide in parts}
    targeting = [guide for guide, gene in genes.items() if gene not in (CONTROL_LABEL, guide)]
    if options.guide_key or options.guide_targets is not None or options.guide_pattern:
        return _as_said(guides, targeting, layout, options, reader)
    certain = [guide for guide in targeting if is_symbol(genes[guide]) or is_symbol(genes[guide].upper())]
    n = sum(not parts for parts in guides.values()) + sum(gene != CONTROL_LABEL for gene in genes.values())
    # what stands behind the gene: a number, or perhaps a time, a dose or a phase
    ends = {guide: guide[len(genes[guide]) :] for guide in certain if guide.startswith(genes[guide])}
    is_most = len(certain) > 0 and len(certain) >= MOST_GUIDES * n
    may_be_values = layout.style != GUIDES and len(ends) == len(certain) and _may_be_values(list(ends.values()))
    if is_most and not may_be_values:
        _settle(guides, targeting, reader)
        shown = _readings(guides, certain, layout, reader)
        what = f"obs[{key!r}] holds names of guides, read as the genes that they target: {shown} "
        n_genes = len({genes[guide] for guide in targeting})
        what += f"({count(len(genes), 'guide')}, {count(n_genes, 'gene')})"
        remedy = f"guide_key={key!r} confirms this; guide_targets= or guide_pattern= reads them in another way"
        return _labels(guides, layout, reader, check("guides", certain, what, remedy, "warning"))
    if not is_most:  # a phase beside few genes is asked about as a word
        certain = [guide for guide in certain if not _PHASE.fullmatch(ends.get(guide, ""))]
    if layout.style == GUIDES and not certain:  # its name says that it holds guides
        return _as_said(guides, [], layout, options, reader)
    shown = _readings(guides, certain, layout, reader)
    n, few = len(certain), agreeing(len(certain), "a guide of a known gene", "guides of known genes")
    what = f"{count(n, 'name')} in obs[{key!r}] may be {few}: {shown}"
    remedy = f"pass guide_key={key!r} if they are guides"
    if is_most:
        remedy += "; if their ends are times, doses or phases, write these into another column of obs (context_key=)"
    elif len(certain) <= FEW:
        remedy += f", as_genes={certain} if they are genes"
    severity = "warning" if options.unknown_labels == "keep" else "error"
    return {}, check("guide-like", certain, what, remedy, severity)


def _settle(guides: dict[str, list[str]], targeting: Sequence[str], reader: GuideReader) -> list[str]:
    """Decide about names that could not be read alone, in a column of guides; those that are still not read.

    An old name of another gene ("CAT-1", of SLC7A1) is a guide where another guide has that gene ("CAT-2"). The gene of
    a guide may be unknown where its end is that of most guides; an end of numbers alone needs another number with it.
    """
    for name in [name for name, parts in guides.items() if not parts]:
        guides[name] = _parts_of(_half(name.strip()), reader)
    if reader.targets is not None or reader.pattern is not None:
        return sorted({part for parts in guides.values() for part in parts if part not in reader})
    names = dict.fromkeys(part for parts in guides.values() for part in parts)
    targets = {reader.genes[guide] for guide in targeting}
    forms = Counter(_form(guide[len(reader.genes[guide] or "") :]) for guide in targeting)
    usual = forms.most_common(1)[0][0] if forms else ""
    stems = {name: [stem for stem in _stems(name) if _form(name[len(stem) :]) == usual] for name in names}
    n_guides = Counter(stem for own in stems.values() for stem in own)
    for name in names:
        if reader.genes.get(name) == name and not reader.is_symbol(name):
            own = [stem for stem in stems[name] if reader.is_symbol(stem)]
            reader.genes[name] = next((stem for stem in own if stem in targets or n_guides[stem] > 1), name)
        elif name not in reader:
            own = [stem for stem in stems[name] if any(map(str.isalpha, usual)) or n_guides[stem] > 1]
            reader.genes[name] = own[0] if own else None
    return sorted(name for name in names if name not in reader)


def _parts_of(label: str, reader: GuideReader) -> list[str]:
    """Guides of a label of which some cannot be read: a usual sign joins them, or any sign joins one and a control."""
    for sign in reader.signs or (*BETWEEN, *_signs_of(label)):
        parts = [part.strip() for part in label.split(sign)]
        beside = [part for part in parts if not reader.is_control(part)]
        if len(parts) > 1 and (sign in BETWEEN or (len(parts) == 2 and len(beside) == 1 and beside[0][:1].isalpha())):
            return parts
    return [label]


def _half(label: str) -> str:
    """One half of a label that says the same twice, as in ``KLF1_NegCtrl0__KLF1_NegCtrl0`` of Norman et al. (2019)."""
    half, _, other = label.partition("__")
    return half if half == other else label


def _form(end: str) -> str:
    return re.sub(r"\d+", "0", end)


def _may_be_values(ends: Sequence[str]) -> bool:
    """Whether ends of names may be phases, times or doses: G1 and G2 alone, or few numbers without 0 and 1."""
    numbers = [_PLAIN.fullmatch(end) for end in ends]
    values = {int(match[1]) for match in numbers if match is not None}
    few = None not in numbers and not values & {0, 1} and len(values) < 1 + len(ends) / 2
    return few or all(map(_PHASE.fullmatch, ends))


def _as_said(
    guides: dict[str, list[str]],
    targeting: Sequence[str],
    layout: Layout,
    options: ProcessingOptions,
    reader: GuideReader,
) -> tuple[dict[str, str], list[Finding]]:
    """Labels of a column that holds guides, as the options or its name say."""
    strange = _settle(guides, targeting, reader)
    n, severity = len({part for parts in guides.values() for part in parts}), "error"
    what = f"{len(strange)} of {count(n, 'name')} in obs[{layout.condition_key!r}] "
    if options.guide_pattern is not None or options.guide_targets is not None:
        given = "do not fit guide_pattern" if options.guide_pattern else "have no target in guide_targets"
        what += f"{given}, and are neither a gene nor a control: {shorten(strange, 4)}"
        remedy = "give them a target (guide_targets=), name controls (ctrl_label=), or exclude them (drop_labels=)"
    else:
        is_few = n - len(strange) >= MOST_GUIDES * n
        severity, taken = ("note", ", and are taken for genes") if is_few else ("error", "")
        what += f"contain no known gene{taken}: {shorten(strange, 4)}"
        remedy = (
            "say which gene each guide targets: guide_targets= takes a table of guides and genes, or "
            f"a dict {{{next(iter(strange), '')!r}: 'GENE', ...}}; guide_pattern='(.+)_g[0-9]+' says where the gene is "
            "in the name"
        )
    findings = check("no-target", strange, what, remedy, severity)
    what = f"guides are read as the genes that they target: {_readings(guides, targeting, layout, reader)}"
    return _labels(guides, layout, reader, [*findings, *check("guides", targeting, what, severity="note")])


def _labels(
    guides: Mapping[str, list[str]], layout: Layout, reader: GuideReader, findings: list[Finding]
) -> tuple[dict[str, str], list[Finding]]:
    """Published labels by the names in the screen, and the findings; also that no label is the control's."""
    labels = {name: reader.label_of(parts) for name, parts in guides.items()}
    if CONTROL_LABEL in labels.values() or errors(findings):
        return labels, findings
    shown = shorten(labels, 4)
    what = f"no control cells: no guide in obs[{layout.condition_key!r}] is known to be a control ({shown})"
    remedy = "name the control guides, or what their names begin with: ctrl_label='...'"
    return labels, check("no-control", labels, what, remedy)


def _readings(guides: Mapping[str, list[str]], targeting: Iterable[str], layout: Layout, reader: GuideReader) -> str:
    """Three readings: of two genes, and of a control where there is one."""
    of_gene: dict[str | None, str] = {}
    for guide in targeting:
        of_gene.setdefault(reader.genes[guide], guide)
    plain = {CONTROL_LABEL, *layout.controls}
    controls = [name for parts in guides.values() for name in parts if reader.genes.get(name) == CONTROL_LABEL]
    control = [f"{name} -> control" for name in controls if name not in plain][:1]
    shown = [f"{guide} -> {gene}" for gene, guide in of_gene.items()][: 3 - len(control)]
    return ", ".join([*shown, *control])
