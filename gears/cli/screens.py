"""`gears inspect` and `gears prepare`, and the options for screens that several commands share."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ActionYesNo

from gears.cli.parser import CommandParser, as_options, show
from gears.files.paths import check_folder, need_file, user_path

if TYPE_CHECKING:
    from gears.pertdata import PertData

logger = logging.getLogger(__name__)

# what a docstring says by referring to another
DROP_UNMAPPED = {"drop_unmapped": "leave out conditions with a gene that the annotation lacks"}

INSPECT_EPILOG = """examples:
  gears inspect screen.h5ad
  gears inspect screen.h5ad --condition-key perturbation --ctrl-label control --json
  gears inspect filtered_feature_bc_matrix --guides protospacer_calls_per_cell.csv --guide-targets features.csv
  gears inspect gears_data/norman                       (a prepared screen)

Exit codes: 0 the screen can be prepared as it is, 2 it cannot.
"""
SCREEN, SCORES = "the screen", "the scores"
SCORES_SHOWN = ("metrics", "baselines", "n_split_half")

PREPARE_EPILOG = """examples:
  gears prepare screen.h5ad                                       (into gears_data/screen)
  gears prepare screen.h5ad --work-dir data --style auto --min-cells 10
  gears prepare filtered_feature_bc_matrix --guides protospacer_calls_per_cell.csv --guide-targets features.csv \\
      --normalize

`gears inspect` reports on a file without writing; `gears train` prepares a file by itself.
Exit codes: 0 prepared (or the same was there already), 2 the screen cannot be used (every problem is named).
"""


def add_screen(parser: CommandParser) -> None:
    """Options that say where the screen is."""
    parser.add_argument(
        "data", metavar="DATA", help="an h5ad file, a prepared folder, or the folder that holds DATASET"
    )
    parser.add_argument("--dataset", help="name of the screen in the folder DATA")
    parser.add_argument("--work-dir", default="gears_data", help="where an h5ad file's prepared screen goes")
    add_nodes(parser)


def add_nodes(parser: CommandParser) -> None:
    """Options that say which genes are nodes of the perturbation graph."""
    add_annotation(parser)
    action = ActionYesNo(yes_prefix="", no_prefix="no-")
    text = "all annotated genes are nodes of GEARS's graph, not only measured and perturbed ones"
    parser.add_argument("--default-pert-graph", action=action, default=True, help=text)


def add_guide_tables(parser: CommandParser) -> None:
    """Options for the guides of the cells, where a file of counts comes without them."""
    parser.add_argument("--guides", help="table of each cell's guides (CSV or TSV) beside a 10x file")
    parser.add_argument("--guide-targets", help="table of each guide's target gene")


def add_annotation(parser: Any) -> None:
    """Options (of a parser or a group) that say what is known of the genes."""
    parser.add_argument(
        "--gene2go", help="file with another annotation: JSON, npz, GAF, GMT, or a table of genes and terms"
    )
    parser.add_argument("--obo", help="ontology file (OBO): genes get the ancestors of their terms as well")


def node_options(options: Any) -> dict[str, Any]:
    """What :class:`gears.PertData` is made with."""
    return {name: options[name] for name in ("default_pert_graph", "gene2go", "obo")}


def add_scores(parser: CommandParser) -> None:
    """Options that say what is scored."""
    from gears.evaluation.compare import CompareOptions

    parser.add_options(SCORES, CompareOptions, only=SCORES_SHOWN, lists=("metrics", "baselines"))
    parser.add_argument("--halvings", type=int | None, help=argparse.SUPPRESS)
    parser.add_argument("--report", help="folder for the HTML page, CSV, JSON and figures")


def check_scores(options: Any) -> None:
    """Refuse names, devices and folders that cannot be used, before a screen is read."""
    from gears.distributed.devices import find_device
    from gears.evaluation.compare import CompareOptions

    need_file(options.data, "DATA")
    CompareOptions(**score_options(options))
    if options.device is not None:
        find_device(options.device)
    if options.report is not None:
        check_folder(options.report, "--report")


def open_screen(options: Any) -> PertData:
    """The screen that DATA and its options name; an h5ad file is prepared in the work folder."""
    from gears.data.screen.files import is_prepared
    from gears.pertdata import PertData

    data = need_file(options.data, "DATA")
    given = node_options(options)
    if data.is_dir() and options.dataset is not None:
        pert_data = PertData(data, **given)
        pert_data.load(data_name=options.dataset)
    else:
        prepared = data.is_dir() and is_prepared(data)
        pert_data = PertData(data.resolve().parent if prepared else options.work_dir, **given)
        pert_data.load(data_path=data)
    return pert_data


def score_options(options: Any) -> dict[str, Any]:
    """What is scored, as functions take it."""
    if options.halvings is not None:
        logger.warning(
            "--halvings is called --n-split-half now; the old name will be removed in a later release"
        )
        options.n_split_half, options.halvings = options.halvings, None
    return {name: options[name] for name in SCORES_SHOWN}


def inspect_parser() -> CommandParser:
    """Options of ``gears inspect``."""
    from gears.data.checks.options import ProcessingOptions

    parser = CommandParser("inspect", "FILE", "Report on a screen; nothing is written.", INSPECT_EPILOG)
    parser.add_argument(
        "file",
        metavar="FILE",
        help="an h5ad file, zarr store, 10x h5 file, 10x mtx folder, folder of several, or a prepared folder",
    )
    add_guide_tables(parser)
    parser.add_argument("--gene2go", help="file with another annotation, gene to terms (JSON, npz or tsv)")
    parser.add_options(SCREEN, ProcessingOptions)
    parser.set_defaults(style="auto")
    return parser


def run_inspect(arguments: list[str]) -> int:
    """Report; the exit code says whether the screen can be prepared."""
    parser = inspect_parser()
    options = parser.parse(arguments)
    names = parser.option_names[SCREEN]
    chosen = {name: options[name] for name in names if options[name] != parser.get_default(name)}
    report = _report(user_path(options.file), options, chosen)
    show(options, report.to_dict(), as_options(str(report)))
    return 0 if report.ok else 2


def _report(path: Path, options: Any, chosen: dict[str, Any]) -> Any:
    from gears.data.checks.report import inspect_screen, summarise
    from gears.data.reading.open import open_screen
    from gears.data.screen.files import is_prepared
    from gears.graphs.annotation import annotation_from

    annotation = annotation_from(options.gene2go)

    def is_gene(symbol: str) -> bool:
        return annotation.resolve(symbol) is not None

    if path.is_dir() and is_prepared(path):
        from gears.data.screen.prepared import PreparedScreen

        return summarise(PreparedScreen.open(path), is_gene=is_gene)
    adata = open_screen(path)
    if options.guides is not None:
        from gears.data.reading.guides import add_guides

        adata = add_guides(
            adata, options.guides, options.guide_targets, ctrl_label=chosen.pop("ctrl_label", None)
        )
    return inspect_screen(adata, name=str(path), is_gene=is_gene, **chosen)


def prepare_parser() -> CommandParser:
    """Options of ``gears prepare``."""
    from gears.data.checks.options import ProcessingOptions
    from gears.pertdata import PertData

    parser = CommandParser(
        "prepare", "FILE", "Check a screen and prepare it for training, once.", PREPARE_EPILOG
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        help="an h5ad file, zarr store, 10x h5 file, 10x mtx folder, or folder of several",
    )
    parser.add_argument("--work-dir", default="gears_data", help="where the prepared screen goes")
    add_guide_tables(parser)
    parser.add_argument("--workers", type=int, default=1, help="processes that share the pass over the cells")
    add_nodes(parser)
    parser.add_options(SCREEN, PertData.load, only=("drop_unmapped",), texts=DROP_UNMAPPED)
    parser.add_options(SCREEN, ProcessingOptions)
    return parser


def run_prepare(arguments: list[str]) -> None:
    """Prepare, and say what the screen holds and where it is."""
    parser = prepare_parser()
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
