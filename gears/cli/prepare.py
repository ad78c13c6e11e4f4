"""`gears prepare`: check a screen and write it in the form that training reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gears.cli.parser import CommandParser, show
from gears.cli.screens import DROP_UNMAPPED, add_nodes, node_options
from gears.files import need_file

EPILOG = """examples:
  gears prepare screen.h5ad                                       (into gears_data/screen)
  gears prepare screen.h5ad --work-dir data --style auto --min-cells 10
  gears prepare filtered_feature_bc_matrix --guides protospacer_calls_per_cell.csv --guide-targets features.csv \\
      --normalize

`gears inspect` reports on a file without writing; `gears train` prepares a file by itself.
Exit codes: 0 prepared (or the same was there already), 2 the screen cannot be used (every problem is named).
"""
SCREEN = "the screen"


def make_parser() -> CommandParser:
    """Options of ``gears prepare``."""
    from gears.data.options import ProcessingOptions
    from gears.pertdata import PertData

    parser = CommandParser("prepare", "FILE", "Check a screen and prepare it for training, once.", EPILOG)
    parser.add_argument(
        "file",
        metavar="FILE",
        help="an h5ad file, zarr store, 10x h5 file, 10x mtx folder, or folder of several",
    )
    parser.add_argument("--work-dir", default="gears_data", help="where the prepared screen goes")
    parser.add_argument("--guides", help="table of each cell's guides (CSV or TSV)")
    parser.add_argument("--guide-targets", help="table of each guide's target gene")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the pass over the cells")
    add_nodes(parser)
    parser.add_options(SCREEN, PertData.load, only=("drop_unmapped",), texts=DROP_UNMAPPED)
    parser.add_options(SCREEN, ProcessingOptions)
    return parser


def run(arguments: list[str]) -> None:
    """Prepare, and say what the screen holds and where it is."""
    parser = make_parser()
    options = parser.parse(arguments)
    file = need_file(options.file, "FILE")
    from gears.pertdata import PertData

    chosen: dict[str, Any] = parser.changed(options, SCREEN)
    if options.guides is not None:
        chosen |= {"guides": options.guides, "guide_targets": options.guide_targets}
    if options.workers != 1:
        chosen["workers"] = options.workers
    data = PertData(options.work_dir, **node_options(options))
    data.load(data_path=file, **chosen)
    report, folder = data.summary(), str(Path(str(data.dataset_path)))
    show(options, {"folder": folder, **report.to_dict()}, f"{report}\n\nprepared: {folder}")
