"""`gears simulate`, `inspect`, `prepare` and `effects`, and the options that several commands share."""

from __future__ import annotations

import argparse
import contextlib
import logging
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gears.cli._parser import CommandParser, as_options, changed_of, show, values_of
from gears.core._findings import Finding
from gears.core._messages import count, shorten
from gears.files._paths import check_output, named, user_path

if TYPE_CHECKING:
    from gears.data.checks._report import ScreenReport
    from gears.graphs._annotation import GeneAnnotation
    from gears.pertdata import PertData

logger = logging.getLogger(__name__)

INSPECT_EPILOG = """examples:
  gears inspect screen.h5ad
  gears inspect screen.h5ad --condition-key perturbation --ctrl-label control
  gears inspect filtered_feature_bc_matrix --guides calls.csv
  gears inspect gears_data/norman                       (a prepared screen)

Exit codes: 0 the screen is ready to be prepared, 2 it has problems.
"""
SCREEN = "the screen"
FIRST = (
    "work_dir", "guides", "guide_targets", "guide_key", "condition_key", "ctrl_label", "sep", "cell_type_key",
    "gene_key", "layer", "normalize", "min_cells",
)  # fmt: skip
"""Options in the short help of the commands that read a screen."""
N_NEAR = 8
"""Unknown genes for which near names are looked up: it takes 0.1 s each."""

PREPARE_EPILOG = """examples:
  gears prepare screen.h5ad                                       (into gears_data/screen)
  gears prepare screen.h5ad --work-dir data --min-cells 10
  gears prepare screen.zarr --moments screen.moments.h5ad --dask tcp://HOST:8786
  gears prepare filtered_feature_bc_matrix --guides calls.csv \\
      --guide-targets features.csv --normalize
  gears prepare lines --screens K562=k562.h5ad RPE1=rpe1.h5ad     (contexts of one screen)

`gears inspect` reports on a file without writing; `gears train` prepares a file by itself.
Exit codes: 0 prepared (now or before), 2 the screen cannot be used (all problems are listed).
"""


def add_data(parser: CommandParser, *, optional: bool = False) -> None:
    """Options for the location of the screen; :func:`locate` reads them."""
    from gears.data.reading._open import KINDS

    text = f"{KINDS}; a prepared folder; the folder that holds DATASET; or a name in the work folder"
    parser.add("data", text, nargs="?" if optional else None)
    parser.add("--dataset", "name of the screen in the folder DATA")
    parser.add("--work-dir", "folder for prepared screens", default="gears_data")


def add_nodes(parser: CommandParser, *, omit: Sequence[str] = ("gene_set_path",)) -> None:
    """Options for the nodes of the perturbation graph."""
    from gears.pertdata import PertDataOptions

    parser.add_options("the perturbation graph", PertDataOptions, omit=omit)


def add_guide_tables(parser: CommandParser) -> None:
    """Options for the guides of the cells, where a file of counts has none."""
    parser.add(
        "--guides", "table of each cell's guides (CSV or TSV) beside a 10x file, or the folder with one of each lane"
    )


def add_scores(parser: CommandParser) -> None:
    from gears.evaluation.compare import CompareOptions

    parser.add_options("the scores", CompareOptions, several_words=True)
    parser.add("--halvings", argparse.SUPPRESS, type=int | None)
    text = "show every metric, also those that do not decide (the report and --json always have them)"
    parser.add("--all-metrics", text, action="store_true")
    parser.add("--report", "folder for the HTML page, CSV, JSON and figures")


def check_scores(options: Any) -> None:
    """Raise for invalid names, devices and folders, before a screen is read."""
    from gears.distributed._devices import find_device
    from gears.evaluation.compare import CompareOptions
    from gears.evaluation.verdict import check_report_folder

    CompareOptions(**score_options(options))
    if options.device is not None:
        find_device(options.device)
    if options.report is not None:
        check_report_folder(options.report, "--report")


def add_workers(parser: CommandParser) -> None:
    """Options that divide predictions among workers; :func:`workers_of` reads them."""
    group = parser.add_argument_group("workers")
    group.add_argument("--n-at-once", type=int | None, help="worker processes that predict side by side")
    group.add_argument("--gpu-ids", nargs="+", type=int | str, help="GPUs that predict, such as 0 2")
    text = "address of a dask scheduler (tcp://HOST:8786) whose workers predict"
    group.add_argument("--dask", metavar="ADDRESS", help=text)


def check_output_of(options: Any) -> None:
    """Raise for an OUTPUT that exists or is no CSV, before work begins."""
    if options.output is not None:
        if not options.output.endswith(".csv"):
            msg = f"the output is a CSV file; found {options.output!r}: give a name that ends in .csv"
            raise ValueError(msg)
        check_output(options.output, options.overwrite)


def workers_of(options: Any) -> dict[str, Any]:
    """The arguments `gpu_ids`, `n_at_once` and `dask`."""
    return {"gpu_ids": gpu_ids_of(options), "n_at_once": options.n_at_once, "dask": options.dask}


def gpu_ids_of(options: Any) -> list[int] | str | None:
    """The argument `gpu_ids` from ``0 2``, ``0,2`` or ``free:2`` behind --gpu-ids."""
    entries = options.gpu_ids
    if entries is None or (len(entries) == 1 and str(entries[0]).startswith("free")):
        return None if entries is None else str(entries[0])
    try:
        return [int(word) for entry in entries for word in str(entry).split(",")]
    except ValueError:
        text = " ".join(map(str, entries))
        msg = f"--gpu-ids {text}: expected whole numbers, such as --gpu-ids 0 2, or free:2 for the least busy two"
        raise ValueError(msg) from None


def locate(options: Any) -> tuple[Path, Path]:
    """The prepared folder, file or folder that DATA and --dataset name, and where it is prepared."""
    from gears.data.screen._files import is_prepared
    from gears.data.screen.prepare import find_screen, locate_screen

    folder = user_path(options.work_dir if options.dataset is None else options.data)
    if options.dataset is not None and not folder.is_dir():
        msg = f"--dataset names a screen in a folder, but DATA {options.data} is no folder"
        raise NotADirectoryError(msg)
    screen = locate_screen(options.data, folder) if options.dataset is None else find_screen(folder, options.dataset)
    return (named(screen), named(screen).parent) if is_prepared(screen) else (screen, folder)


def open_screen(options: Any) -> PertData:
    """The screen that DATA and its options name; what is not prepared yet is prepared in the work folder."""
    from gears.data.checks._survey import REFUSED
    from gears.pertdata import PertData, PertDataOptions

    screen, folder = locate(options)
    pert_data = PertData(folder, **values_of(options, PertDataOptions))
    try:
        pert_data.load(data_path=screen)
    except ValueError as error:
        if not str(error).startswith(REFUSED):
            raise
        msg = f"{error}\n  - run `gears prepare {screen}` with these options, and give the folder that it prints"
        raise ValueError(msg) from error
    return pert_data


def score_options(options: Any) -> dict[str, Any]:
    """Arguments for metrics, baselines and split-half repeats."""
    from gears.evaluation.compare import CompareOptions

    if options.halvings is not None:
        logger.warning("--halvings is called --n-split-half now; the old name will be removed in a later release")
        options.n_split_half, options.halvings = options.halvings, None
    return values_of(options, CompareOptions)


def inspect_parser() -> CommandParser:
    from gears.data.checks._options import ProcessingOptions
    from gears.data.reading._open import KINDS

    parser = CommandParser("inspect", "FILE", "Report on a screen without writing.", INSPECT_EPILOG, first=FIRST)
    parser.add("file", f"{KINDS}; or a prepared folder")
    add_guide_tables(parser)
    add_nodes(parser, omit=("gene_set_path", "default_pert_graph"))
    parser.add_options(SCREEN, ProcessingOptions)
    return parser


def run_inspect(options: Any) -> int:
    """Report; the exit code is 0 if the screen can be prepared."""
    from gears.data.checks._options import ProcessingOptions
    from gears.graphs._annotation import annotation_from

    annotation = annotation_from(options.gene2go)
    report = _report(options, changed_of(options, ProcessingOptions), annotation)
    report = replace(report, findings=(*report.findings, *_near_names(report, annotation.genes)))
    show(options, report.to_dict(), as_options(str(report)))
    return 0 if report.ok else 2


def _near_names(report: ScreenReport, genes: Sequence[str]) -> list[Finding]:
    """A warning about perturbed genes that are neither measured nor annotated, with the genes that may be meant."""
    from gears.graphs._annotation import near_symbols

    facts = report.facts
    unknown = sorted(set(facts.get("not_measured", ())) & set(facts.get("not_annotated", ())))
    if not unknown:
        return []
    near = {name: ", ".join(near_symbols(name, genes)) or "none" for name in unknown[:N_NEAR]}
    names = [f"{name} (near: {near[name]})" if name in near else name for name in unknown]
    what = f"{count(len(unknown), 'perturbed gene')} neither measured nor annotated: {shorten(names, N_NEAR)}"
    remedy = "correct labels with a wrong name; a gene without annotation is known by its own cells only"
    return [Finding("unknown-gene", what, remedy, len(unknown), unknown[0], "warning")]


def _report(options: Any, processing: dict[str, Any], annotation: GeneAnnotation) -> ScreenReport:
    from gears.data.checks._report import inspect_screen, summarise
    from gears.data.reading._open import open_screen
    from gears.data.screen._files import is_prepared
    from gears.data.screen._packs import is_pack
    from gears.data.screen.prepare import locate_screen, open_pack, source_in

    is_gene = (annotation if options.obo is None else annotation.with_ancestors(options.obo)).resolve
    path = locate_screen(options.file)
    if is_prepared(path):
        from gears.data.screen._prepared import PreparedScreen

        return summarise(PreparedScreen.open(path), is_gene=is_gene)
    if is_pack(path):
        with tempfile.TemporaryDirectory() as folder:
            return summarise(open_pack(path, Path(folder) / path.name), is_gene=is_gene)
    adata = open_screen(source_in(path))
    if options.guides is not None:
        from gears.data.reading._guides import add_guides

        adata = add_guides(
            adata, options.guides, processing.pop("guide_targets", None), ctrl_label=processing.pop("ctrl_label", None)
        )
    return inspect_screen(adata, name=str(path), is_gene=is_gene, **processing)


def prepare_parser() -> CommandParser:
    from gears.data.reading._open import KINDS
    from gears.data.screen.prepare import LoadOptions

    parser = CommandParser(
        "prepare", "FILE", "Check a screen and prepare it for training, once.", PREPARE_EPILOG, first=FIRST
    )
    parser.add("file", f"{KINDS}; the name of a published screen; or, with --screens, the name of the whole")
    text = "screens that become contexts of one, each with its name: files or prepared folders"
    parser.add("--screens", text, metavar="NAME=FILE", nargs="+", type=str)
    text = "genes of several screens: shared, those that all measure (the default), or all, those that any measures"
    parser.add("--genes", text, choices=["shared", "all"])
    parser.add("--work-dir", "folder for prepared screens", default="gears_data")
    add_guide_tables(parser)
    parser.add("--workers", "processes that read the cells", type=int, default=1)
    text = "write a moment pack (h5ad or zarr), a small file for everything but cells, and prepare no cells"
    parser.add("--moments", text, metavar="OUT")
    text = "address of a dask scheduler (tcp://HOST:8786) whose workers read FILE at the same path, for --moments"
    parser.add("--dask", text, metavar="ADDRESS")
    add_nodes(parser)
    parser.add_options(SCREEN, LoadOptions)
    return parser


def run_prepare(options: Any) -> None:
    from gears.data.screen.prepare import LoadOptions, locate_screen
    from gears.pertdata import PertData, PertDataOptions

    reading = {
        name: options[name] for name in ("guides", "workers", "dask", "moments") if options[name] not in (None, 1)
    }
    if options.screens is None:
        if options.genes is not None:
            logger.warning("--genes has no effect without --screens")
        reading["data_path"] = locate_screen(options.file, user_path(options.work_dir))
    else:
        reading |= {"data_name": options.file, "screens": _named(options.screens), "genes": options.genes or "shared"}
    data = PertData(options.work_dir, **values_of(options, PertDataOptions))
    data.load(**reading, **changed_of(options, LoadOptions))
    report, folder = data.summary(), str(Path(str(data.dataset_path)))
    pack = "" if options.moments is None else f"\nmoment pack: {options.moments}"
    value = {"folder": folder, "moments": options.moments, **report.to_dict()}
    show(options, value, f"{report}\n\nprepared: {folder}{pack}")


MERGE_EPILOG = """examples:
  gears merge lane1.moments.h5ad lane2.moments.h5ad screen.moments.h5ad

Lanes, plates or replicates of one screen, with the same genes and scale: each is compared with its own control cells,
as in one pass with their source as batch_key. `gears prepare ... --moments OUT` writes packs.
Exit codes: 0 written, 2 the packs cannot be merged.
"""


def merge_parser() -> CommandParser:
    parser = CommandParser("merge", "PACK PACK ... OUT", "Add up moment packs of one screen.", MERGE_EPILOG)
    parser.add("packs", "moment packs; the last name is the one to write", metavar="PACK", nargs="+")
    parser.add("--overwrite", "replace an existing file", action="store_true")
    return parser


def run_merge(options: Any) -> None:
    from gears.pertdata import PertData

    *packs, out = options.packs
    written = PertData.merge_moments(packs, out, overwrite=options.overwrite)
    show(options, {"moments": str(written), "packs": packs}, f"moment pack: {written}")


def _named(words: Sequence[str]) -> dict[str, str]:
    """Screens by name, from words such as K562=k562.h5ad."""
    pairs = [word.partition("=") for word in words]
    for word, (name, _, file) in zip(words, pairs, strict=True):
        if not name or not file:
            msg = f"--screens {word}: expected NAME=FILE, such as K562=k562.h5ad"
            raise ValueError(msg)
    if len({name for name, _, _ in pairs}) < len(pairs):
        msg = f"--screens {' '.join(words)}: give each screen another name"
        raise ValueError(msg)
    return {name: file for name, _, file in pairs}


SIMULATE_EPILOG = """examples:
  gears simulate screen.h5ad
  gears simulate screen.h5ad --n-pairs 20 --seed 7 --truth truth.npz
"""


def simulate_parser() -> CommandParser:
    from gears.simulate._options import SimulationOptions

    parser = CommandParser(
        "simulate", "OUTPUT.h5ad", "Write a simulated screen with real gene symbols.", SIMULATE_EPILOG
    )
    parser.add("output", "file to write", metavar="OUTPUT.h5ad")
    parser.add("--truth", "npz file for the simulation's parameters (gears.simulate.SimulatedTruth)")
    parser.add("--overwrite", "replace existing files", action="store_true")
    parser.add_options("the screen", SimulationOptions)
    return parser


def run_simulate(options: Any) -> None:
    output = user_path(options.output)
    if output.suffix != ".h5ad":
        msg = f"the output is an h5ad file; found {options.output!r}: give a name that ends in .h5ad"
        raise ValueError(msg)
    for path in (output, options.truth):
        if path is not None:
            check_output(path, options.overwrite)
    from gears.simulate._options import SimulationOptions
    from gears.simulate._screen import simulate_to_h5ad

    simulation_options = SimulationOptions(**values_of(options, SimulationOptions))
    truth = simulate_to_h5ad(output, simulation_options, overwrite=options.overwrite)
    if options.truth is not None:
        truth.save(options.truth, overwrite=options.overwrite)
    n_conditions = len(truth.conditions) - 1
    value = {"output": str(output), "n_genes": len(truth.genes), "n_conditions": n_conditions}
    text = f"{output}: {len(truth.genes)} genes, {n_conditions} perturbed conditions and the control"
    show(options, value | {"truth": options.truth}, text)


EFFECTS_EPILOG = """examples:
  gears effects k562.h5ad k562.npz                              (a file of cells, log-normalised)
  gears effects k562_counts.h5ad k562.npz --normalize --condition-key gene
  gears effects gears_data/two_lines rpe1.npz --context RPE1    (one context of a prepared screen)
  gears train screen.h5ad --save-path models/run1 --effects-of k562.npz

The table has a row for each gene that was perturbed alone: its mean change of every measured gene, and beside them the
s.d. of a cell. It takes some megabytes; a screen of thousands of genes is brought to its 256 leading directions. OUT
may be .csv or .tsv (.gz), too, without the s.d. Nothing else is written.
"""
EFFECTS_FIRST = ("context", "overwrite", "dataset", "guides", "condition_key", "ctrl_label", "normalize", "layer")


def effects_parser() -> CommandParser:
    from gears.data.screen.prepare import LoadOptions

    text = "Write the effects of single genes in a screen as a small table."
    parser = CommandParser("effects", "DATA OUT", text, EFFECTS_EPILOG, first=EFFECTS_FIRST)
    add_data(parser)
    parser.add("out", "file to write: .npz, .csv or .tsv (.gz)")
    parser.add("--context", "of several contexts (cell lines, donors) this one; default: their mean")
    parser.add("--overwrite", "replace OUT", action="store_true")
    add_guide_tables(parser)
    add_nodes(parser, omit=("gene_set_path", "default_pert_graph"))
    parser.add_options(SCREEN, LoadOptions)
    return parser


def run_effects(options: Any) -> None:
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
