"""`gears evaluate`, `gears compare` and `gears report`: score models and baselines, and write the page of a table."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from gears.cli import _screens as screens
from gears.cli._parser import DEVICE, CommandParser, show
from gears.core._messages import count
from gears.core._numbers import whole_number
from gears.files._paths import existing_file

if TYPE_CHECKING:
    import pandas as pd

EVALUATE_EPILOG = """examples:
  gears evaluate models/run1 screen.h5ad
  gears evaluate models/run1 gears_data/screen --report reports/run1
  gears evaluate models/run1 screen.h5ad --metrics pearson_delta mse --json
"""

COMPARE_EPILOG = """examples:
  gears compare screen.h5ad                                      (the baselines alone, one split)
  gears compare screen.h5ad --baselines additive go_ridge --split-seeds 1 2 3
  gears compare screen.h5ad --folds 5 --repeats 2 --report reports/baselines
  gears compare screen.h5ad --gears moments cells --epochs 20 --seeds 1 2
"""

REPORT_EPILOG = """examples:
  gears report reports/run1/evaluation.csv reports/again
  gears report evaluation.csv reports/again --models gears_cells gears_moments
"""


def evaluate_parser() -> CommandParser:
    description = "Score a trained model and the baselines on one part of its split, by default the test part."
    parser = CommandParser("evaluate", "MODEL DATA", description, EVALUATE_EPILOG)
    parser.add("model", "folder of the model")
    screens.add_data(parser)
    screens.add_nodes(parser)
    text = "part of the split: test, val or train; default: test, or all conditions in folds where test has few"
    parser.add("--part", text)
    screens.add_scores(parser)
    parser.add("--device", DEVICE)
    return parser


def run_evaluate(options: Any) -> None:
    from gears.core._messages import unknown_name
    from gears.data.splits._split import PARTS
    from gears.evaluation.intervals import summary_table
    from gears.evaluation.verdict import verdict
    from gears.files._paths import need_file
    from gears.jobs.estimators import load_with_screen
    from gears.model._folder import is_model

    screens.check_scores(options)
    if options.part not in (None, *PARTS):
        raise ValueError(unknown_name("part of the split", options.part, PARTS))
    if is_model(options.data) and not is_model(options.model):
        msg = f"MODEL and DATA are in the wrong order: gears evaluate {options.data} {options.model}"
        raise ValueError(msg)
    need_file(options.model, "MODEL")
    pert_data = screens.open_screen(options)
    model = load_with_screen(options.model, pert_data, device=options.device)
    table = model.evaluate(options.part, report=options.report, **screens.score_options(options))
    if table is None:
        msg = f"part {options.part or 'test'!r} of the model's split has no perturbed condition to evaluate"
        raise ValueError(msg)
    summary = summary_table(table).to_dict("records")
    value = {"verdict": verdict(table), "report": options.report, "summary": summary}
    text = _rendered(table, options)
    show(options, value, text + (f"\n\nreport: {options.report}" if options.report else ""))


def _rendered(table: pd.DataFrame, options: Any, method: str | None = None) -> str:
    """The table as text: its decisive metrics, or those of --metrics, or with --all-metrics every one."""
    from gears.evaluation.metrics._registry import DEFAULT
    from gears.evaluation.verdict import first_metrics, render_table

    shows_all = options.all_metrics or list(options.metrics) != list(DEFAULT)
    metrics = None if shows_all else first_metrics(table)
    text = render_table(table, method=method, subgroups=True, metrics=metrics)
    n_others = 0 if metrics is None else table["metric"].nunique() - len(metrics)
    return f"{text}\n\n{count(n_others, 'further metric')}: --all-metrics" if n_others else text


def compare_parser() -> CommandParser:
    from gears.data.splits._registry import SPLITS

    description = "Fit methods to one or more splits of a screen and score them side by side."
    parser = CommandParser("compare", "DATA", description, COMPARE_EPILOG)
    screens.add_data(parser)
    screens.add_nodes(parser)
    parser.add("--split", f"type of split: {', '.join(SPLITS)}", default="simulation")
    parser.add("--split-seeds", "seeds of the splits", nargs="+", type=int, default=[1])
    parser.add("--folds", "cross-validation with this many folds instead of --split", type=int)
    parser.add("--repeats", "repeats of the cross-validation", type=int, default=1)
    parser.add("--gears", "train GEARS with these objectives: moments, cells", several=True)
    parser.add("--seeds", "seeds of GEARS's initial weights", nargs="+", type=int, default=[])
    parser.add("--epochs", "epochs of GEARS; default: by objective", type=int | None)
    parser.add("--hidden-size", "hidden size of GEARS", type=int, default=64)
    parser.add("--device", "device of GEARS: cpu, cuda, ...")
    parser.add("--gpu-ids", "splits side by side on these GPUs: 0 2, or free:2", nargs="+", type=int | str)
    parser.add("--n-at-once", "splits at the same time, such as 2 with --device cpu", type=int | None)
    screens.add_scores(parser)
    return parser


def run_compare(options: Any) -> None:
    from gears.core._messages import unknown_name
    from gears.data.splits._registry import SPLITS
    from gears.evaluation.compare import compare
    from gears.evaluation.intervals import summary_table
    from gears.evaluation.verdict import verdict

    for objective in options.gears:
        if objective not in ("moments", "cells"):
            raise ValueError(unknown_name("objective", objective, ["moments", "cells"]))
    screens.check_scores(options)
    gpu_ids = screens.gpu_ids_of(options)
    _ = SPLITS[options.split]  # raises for an unknown one
    pert_data = screens.open_screen(options)
    models = {f"gears_{objective}": partial(_gears, pert_data, objective, options) for objective in options.gears}
    result = compare(
        models,
        pert_data.screen,
        _splits(pert_data, options),
        seeds=(options.seeds or [1]) if models else (),
        annotation=pert_data.annotation,
        gpu_ids=gpu_ids,
        n_at_once=options.n_at_once,
        device=options.device,
        **screens.score_options(options),
    )
    if options.report:
        from gears.report.of_model import write_report

        write_report(result, options.report, title=f"Methods on {pert_data.dataset_name}")
    text = _rendered(result.table, options, result.models[0] if models else None)
    value: dict[str, Any] = {
        "verdicts": {name: verdict(result.table, method=name) for name in result.models},
        "left_out": result.left_out,
        "costs": result.costs().to_dict("records"),
        "summary": summary_table(result.table).to_dict("records"),
        "report": options.report,
    }
    show(options, value, text + (f"\n\nreport: {options.report}" if options.report else ""))


def _gears(pert_data: Any, objective: str, options: Any, seed: int) -> Any:
    from gears.jobs.estimators import GEARSEstimator

    training = {"objective": objective} | ({} if options.epochs is None else {"epochs": options.epochs})
    network = {"hidden_size": options.hidden_size}
    return GEARSEstimator(pert_data, network=network, training=training, seed=seed, device=options.device)


def _splits(pert_data: Any, options: Any) -> list[Any]:
    from gears.data.splits._make import folds, prepare_split

    if options.folds is not None:
        n_folds = whole_number("--folds", options.folds, 2)
        return list(folds(pert_data.screen, n_folds, options.repeats, options.split_seeds[0]))
    return [prepare_split(pert_data.screen, options.split, seed=seed) for seed in options.split_seeds]


def report_parser() -> CommandParser:
    description = "Write the HTML page, CSV, JSON and figures of a tidy table."
    parser = CommandParser("report", "TABLE.csv FOLDER", description, REPORT_EPILOG)
    parser.add("table", "evaluation.csv of a report, or a table with the same columns", metavar="TABLE.csv")
    parser.add("folder", "folder for the page")
    parser.add("--title", "title of the page", default="Evaluation")
    parser.add("--models", "methods to evaluate; default: the table's first", nargs="+", type=str)
    return parser


def run_report(options: Any) -> None:
    import pandas as pd

    from gears.core._messages import unknown_name
    from gears.evaluation._scoring import COLUMNS
    from gears.evaluation.baselines._base import BASELINES
    from gears.evaluation.verdict import verdict
    from gears.report.of_model import write_report

    file = existing_file(options.table)
    try:
        table = pd.read_csv(file)
    except (ValueError, OSError) as error:
        msg = f"{options.table} cannot be read as a table ({error}); expected the evaluation.csv of a report"
        raise ValueError(msg) from error
    missing = [column for column in COLUMNS if column not in table]
    if missing:
        msg = f"{options.table} lacks the columns {', '.join(missing)}; expected the table of an evaluation"
        raise ValueError(msg)
    methods = list(dict.fromkeys(table["method"]))
    models = options.models or methods[:1]
    for model in models:
        if model not in methods:
            raise ValueError(unknown_name("method", model, methods))
    table.attrs["models"] = [*models, *(name for name in methods if name not in BASELINES)]
    paths = write_report(table, options.folder, title=options.title, models=models)
    verdicts = {model: verdict(table, method=model) for model in models}
    page = str(paths["page"])
    show(
        options,
        {"page": page, "verdicts": verdicts},
        "\n".join([*(f"{model}: {text}" for model, text in verdicts.items()), page]),
    )
