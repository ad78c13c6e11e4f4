"""Reports on a screen: before it is prepared (what was found, what goes, what to fix) and after."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gears.conditions import Condition
from gears.core._findings import Finding, check, errors
from gears.core._messages import count, shorten
from gears.data.checks._filters import Dropped
from gears.data.checks._names import KnownGene
from gears.data.checks._options import ProcessingOptions
from gears.data.checks._survey import check_screen
from gears.data.reading._by_dask import from_dask
from gears.data.reading._open import in_reach

if TYPE_CHECKING:
    from anndata import AnnData

    from gears.data.screen._prepared import PreparedScreen


@dataclass(frozen=True)
class ScreenReport:
    """What a screen is, what is excluded from it and why, and what to fix; ``print(report)``, :meth:`to_dict`."""

    name: str
    facts: dict[str, Any]  # numbers of cells, genes and conditions, and the like
    layout: str = ""  # where labels, cell types and gene names are, a line each ("" where unknown)
    findings: tuple[Finding, ...] = ()
    dropped: tuple[str, ...] = ()  # what is excluded, a line each
    mapping: dict[str, str] = field(default_factory=dict)
    is_prepared: bool = False

    @property
    def ok(self) -> bool:
        return not errors(self.findings)

    def __str__(self) -> str:
        lines = [self.name, *(f"  {key.replace('_', ' '):<28}{_text(value)}" for key, value in self.facts.items())]
        if self.layout:
            lines += ["how it is read", *(f"  {line}" for line in self.layout.splitlines())]
        if self.mapping:
            lines += ["labels", *(f"  {own!r} -> {new!r}" for own, new in self.mapping.items())]
        if self.dropped:
            lines += ["excluded", *(f"  {line}" for line in self.dropped)]
        by_severity = {"error": "problems", "warning": "take note", "note": "notes"}
        for severity, title in by_severity.items():
            of_severity = [finding for finding in self.findings if finding.severity == severity]
            if of_severity:
                lines += [title, *(f"  - {finding}" for finding in of_severity)]
        if not self.is_prepared:
            lines.append("ready to be prepared" if self.ok else "not ready: fix the problems above")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "name": self.name,
            "ok": self.ok,
            "is_prepared": self.is_prepared,
            "facts": self.facts,
            "layout": self.layout.splitlines(),
            "labels": self.mapping,
            "dropped": list(self.dropped),
            "findings": [finding.to_dict() for finding in self.findings],
        }


def inspect_screen(
    adata: AnnData, *, name: str = "screen", is_gene: KnownGene | None = None, **options: Any
) -> ScreenReport:
    """Look at a screen as :func:`gears.data.screen.prepare.prepare_screen` would, and write nothing.

    Parameters
    ----------
    adata
        The screen; not modified. Values that are a dask array, or lie in a file, are read as they are for preparing.
    name
        Shown in the report.
    is_gene
        Symbol of a gene that the annotation knows, None for other names; without it a note says which perturbed genes
        were compared with no annotation. :class:`gears.PertData` and the commands use
        ``GeneAnnotation.human().resolve`` where no other annotation is given.
    **options
        See :class:`gears.data.ProcessingOptions`.
    """
    settings, temporary = ProcessingOptions.from_mapping(options), Path(tempfile.gettempdir())
    adata = from_dask(in_reach(adata, temporary), settings.layer, temporary)
    draft = check_screen(adata, settings, is_gene=is_gene)
    facts: dict[str, Any] = {"cells": draft.n_cells, "genes": draft.n_genes}
    if draft.table is not None:
        facts |= _facts(draft.table.conditions, draft.table.counts(), draft.gene_names.tolist(), is_gene)
    if draft.ok and is_gene is None:
        unmeasured = facts.get("not_measured", ())
        what = f"{count(len(unmeasured), 'perturbed gene')} compared with no annotation: {shorten(unmeasured)}"
        remedy = "pass is_gene=GeneAnnotation.human().resolve (of gears.graphs), as PertData and the commands do"
        draft = draft.found(check("no-annotation", unmeasured, what, remedy, "note"))
    return ScreenReport(
        name=name,
        facts=facts,
        layout=draft.layout.describe(),
        findings=draft.findings,
        dropped=tuple(str(dropped) for dropped in draft.dropped if dropped.n_cells or dropped.unchecked),
        mapping=dict([(own, label) for own, label in draft.mapping.items() if own != label][:6]),
    )


def summarise(
    screen: PreparedScreen, *, is_gene: KnownGene | None = None, parts: Mapping[str, Sequence[str]] | None = None
) -> ScreenReport:
    facts: dict[str, Any] = {"folder": str(screen.folder), "cells": screen.n_cells, "genes": len(screen.gene_names)}
    counts = np.asarray(screen.statistics.n, dtype=np.int64)
    facts |= _facts(screen.conditions, counts, screen.gene_names, is_gene)
    facts["cell_types"] = screen.manifest["cell_types"]
    facts["differential_expression"] = screen.manifest["differential_expression"]
    if parts:
        facts["split"] = {part: len(labels) for part, labels in parts.items()}
    layout = screen.manifest.get("layout", {})
    lines = [f"{key:<16}{value!r}" for key, value in layout.items()]
    dropped = tuple(str(Dropped(**entry)) for entry in screen.manifest.get("dropped", []))
    return ScreenReport(screen.folder.name, facts, "\n".join(lines), dropped=dropped, is_prepared=True)


def _facts(
    conditions: Sequence[Condition], counts: np.ndarray, measured: Sequence[str], is_gene: KnownGene | None
) -> dict[str, Any]:
    """Numbers of conditions by size and of cells; perturbed genes, and those that are not measured or not annotated."""
    sizes = np.array([len(condition) for condition in conditions])
    perturbed = counts[sizes > 0]
    facts: dict[str, Any] = {"control_cells": int(counts[sizes == 0].sum()), "conditions": int((sizes > 0).sum())}
    facts |= {"singles": int((sizes == 1).sum()), "pairs": int((sizes == 2).sum())}
    if (sizes > 2).any():
        facts["three_or_more_genes"] = int((sizes > 2).sum())
    if len(perturbed):
        low, middle, high = perturbed.min(), np.median(perturbed), perturbed.max()
        facts["cells_per_condition"] = f"{low} to {high}, median {middle:g}"
    genes = sorted({gene for condition in conditions for gene in condition.genes})
    facts |= {"perturbed_genes": len(genes), "not_measured": sorted(set(genes) - set(measured))}
    if is_gene is not None:
        facts["not_annotated"] = [gene for gene in genes if not is_gene(gene)]
    return facts


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)}{f' ({shorten(value, 6)})' if value else ''}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {entry}" for key, entry in value.items())
    return str(value)
