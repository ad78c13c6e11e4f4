"""`gears inspect` and `gears prepare`, and the options for screens that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ActionYesNo

from gears.cli.parser import CommandParser, as_options, show
from gears.files.paths import check_folder, need_file, user_path

if TYPE_CHECKING:
    from gears.pertdata import PertData

# help of an option whose docstring refers to another one
DROP_UNMAPPED = {"drop_unmapped": "exclude conditions with a gene that the annotation lacks"}

INSPECT_EPILOG = """examples:
  gears inspect screen.h5ad
  gears inspect screen.h5ad --condition-key perturbation --ctrl-label control --json
  gears inspect filtered_feature_bc_matrix --guides protospacer_calls_per_cell.csv --guide-targets features.csv
  gears inspect gears_data/norman                       (a prepared screen)

Exit codes: 0 the screen is ready to be prepared, 2 it has problems.
"""
SCREEN = "the screen"

PREPARE_EPILOG = """examples:
  gears prepare screen.h5ad                                       (into gears_data/screen)
  gears prepare screen.h5ad --work-dir data --style auto --min-cells 10
  gears prepare filtered_feature_bc_matrix --guides protospacer_calls_per_cell.csv --guide-targets features.csv \\
      --normalize

`gears inspect` reports on a file without writing; `gears train` prepares a file by itself.
Exit codes: 0 prepared (now or before), 2 the screen cannot be used (all problems are listed).
"""


def add_screen(parser: CommandParser) -> None:
    """Options for the location of the screen."""
    parser.add_argument(
        "data", metavar="DATA", help="an h5ad file, a prepared folder, or the folder that holds DATASET"
    )
    parser.add_argument("--dataset", help="name of the screen in the folder DATA")
    parser.add_argument(
        "--work-dir", default="gears_data", help="folder for the prepared screen of an h5ad file"
    )
    add_nodes(parser)


def add_nodes(parser: CommandParser) -> None:
    """Options for the nodes of the perturbation graph."""
    add_annotation(parser)
    action = ActionYesNo(yes_prefix="", no_prefix="no-")
    text = "all annotated genes are nodes of GEARS's graph, not only measured and perturbed ones"
    parser.add_argument("--default-pert-graph", action=action, default=True, help=text)


def add_guide_tables(parser: CommandParser) -> None:
    """Options for the guides of the cells, where a file of counts has none."""
    parser.add_argument("--guides", help="table of each cell's guides (CSV or TSV) beside a 10x file")
    parser.add_argument("--guide-targets", help="table of each guide's target gene")


def add_annotation(parser: Any) -> None:
    """Options (of a parser or a group) for the annotation of the genes."""
    parser.add_argument(
        "--gene2go", help="file with another annotation: JSON, npz, GAF, GMT, or a table of genes and terms"
    )
    parser.add_argument("--obo", help="ontology file (OBO): adds the ancestors of the genes' terms")


def node_options(options: Any) -> dict[str, Any]:
    """Arguments of :class:`gears.PertData`."""
    return {name: options[name] for name in ("default_pert_graph", "gene2go", "obo")}


def add_scores(parser: CommandParser) -> None:
    """Options of the scores."""
    parser.add_argument("--metrics", nargs="+", type=str, help="names of metrics; default: the common ones")
    parser.add_argument(
        "--baselines",
        nargs="+",
        type=str,
        help="names of baselines; default: all that use training conditions only",
    )
    parser.add_argument(
        "--halvings", type=int, default=5, help="split-half repeats of the cells for scaled scores; 0: none"
    )
    parser.add_argument("--report", help="folder for the HTML page, CSV, JSON and figures")


def check_scores(options: Any) -> None:
    """Raise for invalid names, devices and folders, before a screen is read."""
    from gears.core.messages import unknown_name
    from gears.distributed.devices import find_device
    from gears.evaluation.baselines.base import BASELINES
    from gears.evaluation.metrics.registry import METRICS

    need_file(options.data, "DATA")
    for kind, names, known in (
        ("metric", options.metrics, METRICS),
        ("baseline", options.baselines, BASELINES),
    ):
        for name in names or ():
            if name not in known:
                raise ValueError(unknown_name(kind, name, list(known)))
    if options.device is not None:
        find_device(options.device)
    if options.report is not None:
        check_folder(options.report, "--report")


def open_screen(options: Any) -> PertData:
    """The screen that DATA and its options name; an h5ad file is prepared in the work folder."""
    from gears.data.screen.files import is_prepared
    from gears.pertdata import PertData

    data = need_file(options.data, "DATA")
    class_options = node_options(options)
    if data.is_dir() and options.dataset is not None:
        pert_data = PertData(data, **class_options)
        pert_data.load(data_name=options.dataset)
    else:
        prepared = data.is_dir() and is_prepared(data)
        pert_data = PertData(data.resolve().parent if prepared else options.work_dir, **class_options)
        pert_data.load(data_path=data)
    return pert_data


def score_options(options: Any) -> dict[str, Any]:
    """Arguments for metrics, baselines and split-half repeats; omitted ones have their defaults."""
    requested = {name: options[name] for name in ("metrics", "baselines") if options[name] is not None}
    return {**requested, "halvings": options.halvings}


def inspect_parser() -> CommandParser:
    """Options of ``gears inspect``."""
    from gears.data.checks.options import ProcessingOptions

    parser = CommandParser("inspect", "FILE", "Report on a screen without writing.", INSPECT_EPILOG)
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
    """Report; the exit code is 0 if the screen can be prepared."""
    parser = inspect_parser()
    options = parser.parse(arguments)
    names = parser.option_names[SCREEN]
    processing = {name: options[name] for name in names if options[name] != parser.get_default(name)}
    report = _report(user_path(options.file), options, processing)
    show(options, report.to_dict(), as_options(str(report)))
    return 0 if report.ok else 2


def _report(path: Path, options: Any, processing: dict[str, Any]) -> Any:
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
            adata, options.guides, options.guide_targets, ctrl_label=processing.pop("ctrl_label", None)
        )
    return inspect_screen(adata, name=str(path), is_gene=is_gene, **processing)


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
    parser.add_argument("--work-dir", default="gears_data", help="folder for the prepared screen")
    add_guide_tables(parser)
    parser.add_argument("--workers", type=int, default=1, help="processes that read the cells")
    add_nodes(parser)
    parser.add_options(SCREEN, PertData.load, only=("drop_unmapped",), texts=DROP_UNMAPPED)
    parser.add_options(SCREEN, ProcessingOptions)
    return parser


def run_prepare(arguments: list[str]) -> None:
    """Prepare, and print a report and the folder."""
    parser = prepare_parser()
    options = parser.parse(arguments)
    file = need_file(options.file, "FILE")
    from gears.pertdata import PertData

    load_options: dict[str, Any] = parser.changed(options, SCREEN)
    if options.guides is not None:
        load_options |= {"guides": options.guides, "guide_targets": options.guide_targets}
    if options.workers != 1:
        load_options["workers"] = options.workers
    data = PertData(options.work_dir, **node_options(options))
    data.load(data_path=file, **load_options)
    report, folder = data.summary(), str(Path(str(data.dataset_path)))
    show(options, {"folder": folder, **report.to_dict()}, f"{report}\n\nprepared: {folder}")
