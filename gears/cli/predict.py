"""`gears predict`: expression after perturbations, from a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gears.cli.parser import CommandParser, show
from gears.messages import unknown_name

if TYPE_CHECKING:
    from gears.predictions import Predictions

EPILOG = """examples:
  gears predict models/run1 KLF1 AHR+KLF1                  the genes that change most
  gears predict models/run1 AHR+KLF1 --top 50 --json
  gears predict models/run1 AHR+KLF1 --output deltas.csv --values delta
  gears predict models/run1 AHR+KLF1 --output predictions.h5ad
"""
SUFFIXES = (".csv", ".h5ad")
VALUES = ("expression", "delta", "logvar")


def make_parser() -> CommandParser:
    """Options of ``gears predict``."""
    parser = CommandParser(
        "predict",
        "MODEL GENES [GENES ...]",
        "Predict with a trained model; no training data is needed.",
        EPILOG,
    )
    parser.add_argument("model", metavar="MODEL", help="folder of the model")
    parser.add_argument(
        "genes",
        metavar="GENES",
        nargs="+",
        help="perturbations: a gene (KLF1) or genes joined by + (AHR+KLF1)",
    )
    parser.add_argument("--output", help="write all genes to this file (.csv or .h5ad) instead of printing")
    parser.add_argument("--values", default="expression", help=f"what a CSV holds: {', '.join(VALUES)}")
    parser.add_argument("--top", type=int, default=20, help="genes to print per perturbation")
    parser.add_argument(
        "--device", help="cpu, cuda, cuda:1, ...; the first GPU where there is one if left out"
    )
    return parser


def run(arguments: list[str]) -> None:
    """Load the model, predict, and print or write."""
    options = make_parser().parse(arguments)
    output = None if options.output is None else _checked_output(options.output)
    if options["values"] not in VALUES:
        raise ValueError(unknown_name("values", options["values"], VALUES))
    if options.top < 1:
        msg = f"--top is {options.top}; expected a whole number of at least 1"
        raise ValueError(msg)
    from gears.gears import GEARS

    predictions = GEARS.from_pretrained(options.model, device=options.device).predict(options.genes)
    if output is not None:
        _write(predictions, output, options["values"])
        n_conditions, n_genes = predictions.expression_UG.shape
        value = {"output": str(output), "n_conditions": n_conditions, "n_genes": n_genes}
        show(options, value, f"{output}: {n_conditions} conditions x {n_genes} genes")
        return
    top = predictions.top(options.top)
    show(options, top.to_dict("records"), top.round(4).to_string(index=False))


def _checked_output(name: str) -> Path:
    path = Path(name)
    if path.suffix not in SUFFIXES:
        msg = f"the output {name!r} has none of the known endings; expected {' or '.join(SUFFIXES)}"
        raise ValueError(msg)
    return path


def _write(predictions: Predictions, path: Path, values: str) -> None:
    from gears.files import write_atomically, write_text

    if path.suffix == ".csv":
        write_text(path, predictions.to_frame(values).to_csv())
    else:
        write_atomically(path, predictions.to_adata().write_h5ad)
