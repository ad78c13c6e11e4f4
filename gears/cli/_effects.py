"""`gears effects`: write the effects of single genes in a screen as a table for `gears train --effects-of`."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gears.cli._parser import CommandParser, changed_of, show, values_of
from gears.cli._screens import SCREEN, add_data, add_guide_tables, add_nodes, locate
from gears.files._paths import check_output

EPILOG = """examples:
  gears effects k562.h5ad k562.npz                              (a file of cells, log-normalised)
  gears effects k562_counts.h5ad k562.npz --normalize --condition-key gene
  gears effects gears_data/two_lines rpe1.npz --context RPE1    (one context of a prepared screen)
  gears train screen.h5ad --save-path models/run1 --effects-of k562.npz

The table has a row for each gene that was perturbed alone: its mean change of every measured gene, and beside them the
s.d. of a cell. It takes some megabytes; a screen of thousands of genes is brought to its 256 leading directions. OUT
may be .csv or .tsv (.gz), too, without the s.d. Nothing else is written.
"""
FIRST = ("context", "overwrite", "dataset", "guides", "condition_key", "ctrl_label", "normalize", "layer")


def effects_parser() -> CommandParser:
    """Options of ``gears effects``."""
    from gears.data.screen.prepare import LoadOptions

    text = "Write the effects of single genes in a screen as a small table."
    parser = CommandParser("effects", "DATA OUT", text, EPILOG, first=FIRST)
    add_data(parser)
    parser.add_argument("out", metavar="OUT", help="file to write: .npz, .csv or .tsv (.gz)")
    parser.add_argument("--context", help="of several contexts (cell lines, donors) this one; default: their mean")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT")
    add_guide_tables(parser)
    add_nodes(parser, omit=("gene_set_path", "default_pert_graph"))
    parser.add_options(SCREEN, LoadOptions)
    return parser


def run_effects(arguments: list[str]) -> None:
    """Write, and print how many genes the table has."""
    options = effects_parser().parse(arguments)
    output = check_output(options.out, options.overwrite)
    with _opened(options) as pert_data:
        effects = pert_data.effects(options.context)
        effects.save(output)
    n_bytes = output.stat().st_size
    value = {"file": str(output), "genes": len(effects.genes), "measured": len(effects.measured), "bytes": n_bytes}
    show(options, value, f"{effects!r}\nwritten: {output} ({n_bytes / 1e6:.1f} MB)")


@contextlib.contextmanager
def _opened(options: Any) -> Iterator[Any]:
    """The screen; one that is not prepared yet is prepared in a folder that is removed again."""
    from gears.data.screen._files import is_prepared
    from gears.data.screen.prepare import LoadOptions
    from gears.pertdata import PertData, PertDataOptions

    screen, folder = locate(options)
    nodes, processing = values_of(options, PertDataOptions), changed_of(options, LoadOptions)
    if is_prepared(screen):
        pert_data = PertData(folder, **nodes)
        pert_data.load(data_path=screen, **processing)
        yield pert_data
        return
    with tempfile.TemporaryDirectory(prefix="gears-") as aside:
        pert_data = PertData(Path(aside), **nodes)
        pert_data.load(data_path=screen, guides=options.guides, **{"skip_calc_de": True, **processing})
        yield pert_data
