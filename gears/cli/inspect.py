"""`gears inspect`: what is in a screen, how it would be read, what would be left out, and what to mend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gears.cli.parser import CommandParser, show
from gears.cli.spelling import as_options
from gears.files import user_path

EPILOG = """examples:
  gears inspect screen.h5ad
  gears inspect screen.h5ad --condition-key perturbation --ctrl-label control --json
  gears inspect filtered_feature_bc_matrix --guides protospacer_calls_per_cell.csv --guide-targets features.csv
  gears inspect gears_data/norman                       (a prepared screen)

Exit codes: 0 the screen can be prepared as it is, 2 it cannot.
"""
SCREEN = "the screen"


def make_parser() -> CommandParser:
    """Options of ``gears inspect``."""
    from gears.data.options import ProcessingOptions

    parser = CommandParser("inspect", "FILE", "Report on a screen; nothing is written.", EPILOG)
    parser.add_argument(
        "file",
        metavar="FILE",
        help="an h5ad file, zarr store, 10x h5 file, 10x mtx folder, folder of several, or a prepared folder",
    )
    parser.add_argument("--guides", help="table of each cell's guides (CSV or TSV)")
    parser.add_argument("--guide-targets", help="table of each guide's target gene")
    parser.add_argument("--gene2go", help="file with another annotation, gene to terms (JSON, npz or tsv)")
    parser.add_options(SCREEN, ProcessingOptions)
    parser.set_defaults(style="auto")
    return parser


def run(arguments: list[str]) -> int:
    """Report; the exit code says whether the screen can be prepared."""
    parser = make_parser()
    options = parser.parse(arguments)
    names = parser.option_names[SCREEN]
    chosen = {name: options[name] for name in names if options[name] != parser.get_default(name)}
    report = _report(user_path(options.file), options, chosen)
    show(options, report.to_dict(), as_options(str(report)))
    return 0 if report.ok else 2


def _report(path: Path, options: Any, chosen: dict[str, Any]) -> Any:
    from gears.data.inspection import inspect_screen, summarise
    from gears.data.manifest import is_prepared
    from gears.data.opening import open_screen
    from gears.nodes import annotation_from

    annotation = annotation_from(options.gene2go)

    def is_gene(symbol: str) -> bool:
        return annotation.resolve(symbol) is not None

    if path.is_dir() and is_prepared(path):
        from gears.data.screen import PreparedScreen

        return summarise(PreparedScreen.open(path), is_gene=is_gene)
    adata = open_screen(path)
    if options.guides is not None:
        from gears.data.guides import add_guides

        adata = add_guides(
            adata, options.guides, options.guide_targets, ctrl_label=chosen.pop("ctrl_label", None)
        )
    return inspect_screen(adata, name=str(path), is_gene=is_gene, **chosen)
