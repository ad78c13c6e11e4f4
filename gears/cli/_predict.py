"""`gears predict`: expression after perturbations, by a saved model; `gears genes`: what such a model can perturb."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gears.cli._parser import DEVICE, CommandParser, add_switch, show
from gears.cli._screens import add_workers, workers_of
from gears.core._messages import count, unknown_name
from gears.files._paths import check_output, user_path
from gears.files._untrusted import listed_names

if TYPE_CHECKING:
    from anndata import AnnData

    from gears.gears import GEARS

EPILOG = """examples:
  gears predict models/run1 KLF1 AHR+KLF1                (the genes that change most)
  gears predict models/run1 AHR+KLF1 --top 50 --json
  gears predict models/run1 AHR+KLF1 --output deltas.csv --values delta
  gears predict models/run1 --file perturbations.txt --output predictions.h5ad
  gears predict models/run1 --all-pairs --output pairs.h5ad             (of all genes perturbed in training)
  gears predict models/run1 KLF1 AHR CEBPA --all-pairs --output pairs.zarr
  gears predict models/run1 --all-pairs --output pairs.h5ad --n-at-once 4   (goes on where it was interrupted)
  gears predict models/run1 KLF1 --controls new_line.h5ad  (control cells of a line that no training saw)

FILE holds one perturbation a line, such as AHR+KLF1. h5ad and zarr files are written chunk by chunk: expression in X,
layers delta, sd (of the mean change, where the model has a prior) and cell_sd (spread of cells, with uncertainty);
obsm interval_widths (of each level, beside a Gaussian's). Printed intervals hold 95 % of the true changes.
"""
SUFFIXES = (".csv", ".h5ad", ".zarr")
VALUES = ("expression", "delta", "sd", "sd_change", "cell_sd")


def predict_parser() -> CommandParser:
    description = "Predict with a trained model; no training data is needed."
    parser = CommandParser("predict", "MODEL [GENES ...]", description, EPILOG)
    parser.add("model", "folder of the model")
    parser.add("genes", "perturbations: a gene (KLF1) or genes joined by + (AHR+KLF1)", nargs="*", default=[])
    parser.add("--file", "file with one perturbation a line, beside or instead of GENES")
    parser.add("--all-pairs", "every pair of GENES, or of the genes perturbed in training", action="store_true")
    text = "h5ad file with control cells of a line that no training saw: predict for it"
    parser.add("--controls", text, metavar="FILE")
    parser.add("--output", f"write all genes to this file ({', '.join(SUFFIXES)}) instead of printing")
    parser.add("--overwrite", "replace an existing OUTPUT", action="store_true")
    parser.add("--values", f"what a CSV holds: {', '.join(VALUES)}", default="expression")
    parser.add("--top", "genes to print per perturbation", type=int, default=20)
    text = "set negative predictions to zero; by default where the training screen has no negative values"
    add_switch(parser, "--clip", text, default=None)
    parser.add("--device", DEVICE)
    add_workers(parser)
    return parser


EXPLAIN_EPILOG = """examples:
  gears explain models/run1 AHR+KLF1                       over all genes
  gears explain models/run1 AHR+KLF1 --genes HBG1 HBB --n 20
  gears explain models/run1 AHR+KLF1 --output parts.csv
"""


def explain_parser() -> CommandParser:
    text = "Which training conditions a prediction rests on, with which weight and share."
    parser = CommandParser("explain", "MODEL CONDITION", text, EXPLAIN_EPILOG)
    parser.add("model", "folder of the model")
    parser.add("condition", "a perturbation, such as KLF1 or AHR+KLF1")
    parser.add("--genes", "genes to explain; default: all", several=True)
    parser.add("--n", "parts of single training conditions to list", type=int, default=10)
    parser.add("--output", "write the table to this CSV file")
    parser.add("--overwrite", "replace an existing OUTPUT", action="store_true")
    return parser


def run_explain(options: Any) -> None:
    output = None if options.output is None else check_output(user_path(options.output), options.overwrite)
    from gears.files.formats import write_text
    from gears.gears import GEARS

    model = GEARS.from_pretrained(options.model, device="cpu")
    explanation = model.explain(options.condition, options.genes or None, options.n)
    table = explanation.table
    if output is not None:
        write_text(output, table.to_csv(index=False))
    value = {"condition": explanation.condition.name, "text": explanation.text, "n_effective": explanation.n_effective}
    rows = table.astype(object).where(table.notna(), None).to_dict("records")
    show(options, value | {"rows": rows}, str(explanation))


def run_predict(options: Any) -> None:
    output = _checked_output(options)
    if options["values"] not in (*VALUES, "logvar"):  # the earlier name of cell_sd, which is reported
        raise ValueError(unknown_name("--values", options["values"], VALUES))
    if options.top < 1:
        msg = f"--top is {options.top}; expected a whole number of at least 1"
        raise ValueError(msg)
    perturbations = _perturbations(options)
    from gears.data.reading._open import open_screen
    from gears.gears import GEARS

    model = GEARS.from_pretrained(options.model, device=options.device)
    controls = None if options.controls is None else open_screen(options.controls)
    if output is not None:
        n_conditions = _write(model, perturbations, output, options, controls)
        value = {"output": str(output), "n_conditions": n_conditions, "n_genes": model.num_genes}
        text = f"{output}: {count(n_conditions, 'condition')} x {count(model.num_genes, 'gene')}"
        show(options, value, text)
        return
    predictions = model.predict(perturbations, clip=options.clip, controls=controls)
    top = predictions.top(options.top).reset_index()
    lines = [predictions.header]
    for condition, rows in top.groupby("condition", sort=False):
        source = rows["informed_by"].iloc[0]
        table = rows.drop(columns=["condition", "informed_by"]).round(4).to_string(index=False)
        lines += ["", f"{condition}{source and f' (informed by {source})'}", table]
    show(options, top.to_dict("records"), "\n".join(lines))


def _perturbations(options: Any) -> list[str]:
    """The perturbations of the command line and of the file."""
    perturbations = list(options.genes)
    if options.file is not None:
        perturbations += [line for line in listed_names(options.file) if not line.startswith("#")]
        if not perturbations:
            msg = f"{options.file} holds no perturbation; expected one a line, such as AHR+KLF1"
            raise ValueError(msg)
    if not perturbations and not options.all_pairs:
        msg = "nothing to predict: give genes such as AHR+KLF1, --file, or --all-pairs"
        raise ValueError(msg)
    return perturbations


def _checked_output(options: Any) -> Path | None:
    path = None if options.output is None else user_path(options.output)
    if path is not None and path.suffix not in SUFFIXES:
        msg = f"the output {options.output!r} has an unknown ending; expected {', '.join(SUFFIXES)}"
        raise ValueError(msg)
    if options.all_pairs and (path is None or path.suffix == ".csv"):
        msg = "--all-pairs writes to a file; give --output with a name that ends in .h5ad or .zarr"
        raise ValueError(msg)
    return None if path is None else check_output(path, options.overwrite)


def _write(model: GEARS, perturbations: list[str], path: Path, options: Any, controls: AnnData | None) -> int:
    """Write the predictions; returns the number of conditions."""
    how: dict[str, Any] = {"clip": options.clip, "overwrite": options.overwrite, "controls": controls}
    how |= workers_of(options)
    if options.all_pairs:
        pairs = model.pairs(perturbations or None)
        model.predict_to_file(pairs, path, **how)
        return len(pairs)
    from gears.prediction._stream import requested_conditions

    conditions = requested_conditions(perturbations, model._need_model())
    if path.suffix == ".csv":
        from gears.files.formats import write_text

        predictions = model.predict(conditions, clip=options.clip, controls=controls)
        frame = predictions.to_frame(options["values"])
        if frame.attrs["uninformed"]:
            frame["informed_by"] = predictions.informed_by
        write_text(path, frame.to_csv())
    else:
        model.predict_to_file(conditions, path, **how)
    return len(conditions)


GENES_EPILOG = """examples:
  gears genes models/run1                    (how many, and those perturbed in training)
  gears genes models/run1 KLF1 TP53          (these genes)
  gears genes models/run1 --all > genes.tsv  (every gene, one a line)

Predictions of a gene are based on the best of: training (it was perturbed there), expression (it is measured),
similarity (similar genes, or neighbours in the perturbation graph), nothing (an average perturbation).
"""


def genes_parser() -> CommandParser:
    parser = CommandParser("genes", "MODEL [GENES ...]", "List the genes that a model can perturb.", GENES_EPILOG)
    parser.add("model", "folder of the model")
    parser.add("genes", "list these genes alone", nargs="*", default=[])
    parser.add("--all", "list every gene, not only how many there are", action="store_true")
    return parser


def run_genes(options: Any) -> None:
    from gears.conditions import Condition
    from gears.model._folder import load_parts
    from gears.prediction._information import SOURCES, nodes_of, source_of_genes

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
