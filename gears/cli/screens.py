"""What the judging subcommands share: a screen from an h5ad file or a folder, and names of metrics and baselines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jsonargparse import ActionYesNo

from gears.cli.parser import CommandParser
from gears.files import check_folder, need_file

if TYPE_CHECKING:
    from gears.pertdata import PertData

# what a docstring says by referring to another
DROP_UNMAPPED = {"drop_unmapped": "leave out conditions with a gene that the annotation lacks"}


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
    parser.add_argument("--metrics", nargs="+", type=str, help="names of metrics; a usual choice if left out")
    parser.add_argument(
        "--baselines", nargs="+", type=str, help="names of baselines; all that see training only if left out"
    )
    parser.add_argument(
        "--halvings", type=int, default=5, help="halvings of the cells for scaled scores; 0: none"
    )
    parser.add_argument("--report", help="folder for the HTML page, CSV, JSON and figures")


def check_scores(options: Any) -> None:
    """Refuse names, devices and folders that cannot be used, before a screen is read."""
    from gears.distributed import find_device
    from gears.evaluation import BASELINES, METRICS
    from gears.messages import unknown_name

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
    from gears.data.manifest import is_prepared
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
    """Metrics, baselines and halvings as functions take them; what was not asked for is left to their defaults."""
    asked = {name: options[name] for name in ("metrics", "baselines") if options[name] is not None}
    return {**asked, "halvings": options.halvings}
