"""`gears genes`: list the genes that a model can perturb, and what their predictions are based on."""

from __future__ import annotations

import textwrap
from typing import Any

from gears.cli._parser import CommandParser, show
from gears.core._messages import count

EPILOG = """examples:
  gears genes models/run1                    (how many, and those perturbed in training)
  gears genes models/run1 KLF1 TP53          (these genes)
  gears genes models/run1 --all > genes.tsv  (every gene, one a line)

Predictions of a gene are based on the best of: training (it was perturbed there), expression (it is measured),
similarity (similar genes, or neighbours in the perturbation graph), nothing (an average perturbation).
"""


def make_parser() -> CommandParser:
    """Options of ``gears genes``."""
    parser = CommandParser("genes", "MODEL [GENES ...]", "List the genes that a model can perturb.", EPILOG)
    parser.add_argument("model", metavar="MODEL", help="folder of the model")
    parser.add_argument("genes", metavar="GENES", nargs="*", default=[], help="list these genes alone")
    parser.add_argument("--all", action="store_true", help="list every gene, not only how many there are")
    return parser


def run_genes(arguments: list[str]) -> None:
    options = make_parser().parse(arguments)
    from gears.conditions import Condition
    from gears.model._folder import load_parts
    from gears.prediction._information import SOURCES, source_of_genes
    from gears.prediction.predictions import nodes_of

    parts = load_parts(options.model)
    nodes_of([Condition((name,)) for name in options.genes], parts.pert_names)  # raises for unknown ones
    source_of, measured = source_of_genes(parts), set(parts.gene_names)
    rows = [
        {"gene": name, "measured": name in measured, "informed_by": source_of.get(name, "unknown")}
        for name in options.genes or parts.pert_names
    ]
    rows.sort(key=lambda row: SOURCES.index(str(row["informed_by"])) if source_of else 0)
    value = {"n_perturbable": len(parts.pert_names), "n_measured": len(measured), "genes": rows}
    show(options, value, _table(rows) if options.genes or options.all else _summary(rows, len(measured)))


def _table(rows: list[dict[str, Any]]) -> str:
    lines = ["gene\tmeasured\tinformed_by"]
    lines += [f"{row['gene']}\t{'yes' if row['measured'] else 'no'}\t{row['informed_by']}" for row in rows]
    return "\n".join(lines)


def _summary(rows: list[dict[str, Any]], n_measured: int) -> str:
    """Numbers of genes by source, and the names of those perturbed in training."""
    by_source: dict[str, list[str]] = {}
    for row in rows:
        by_source.setdefault(row["informed_by"], []).append(row["gene"])
    lines = [
        f"{count(len(rows), 'gene')} can be perturbed, alone or joined by +; {n_measured} are measured",
        *(f"  {source:<12}{len(names)}" for source, names in by_source.items()),
    ]
    if "training" in by_source:
        lines += textwrap.wrap(f"perturbed in training: {', '.join(by_source['training'])}", 100)
    return "\n".join([*lines, "`--all` lists every gene, `--help` explains the words."])
