"""`gears compare`: baselines, and GEARS trained anew, over several splits or folds."""

from __future__ import annotations

from functools import partial
from typing import Any

from gears.cli.parser import CommandParser, show
from gears.cli.screens import add_scores, add_screen, check_scores, open_screen, score_options

EPILOG = """examples:
  gears compare screen.h5ad                                      (the baselines alone, one split)
  gears compare screen.h5ad --baselines additive linear go_ridge --split-seeds 1 2 3
  gears compare screen.h5ad --folds 5 --repeats 2 --report reports/baselines
  gears compare screen.h5ad --gears moments cells --epochs 20 --seeds 1 2 --report reports/all
"""


def make_parser() -> CommandParser:
    """Options of ``gears compare``."""
    parser = CommandParser(
        "compare",
        "DATA",
        "Fit methods to one or more splits of a screen and score them side by side.",
        EPILOG,
    )
    add_screen(parser)
    parser.add_argument("--split", default="simulation", help="kind of split")
    parser.add_argument("--split-seeds", nargs="+", type=int, default=[1], help="seeds of the splits")
    parser.add_argument("--folds", type=int, help="cross-validation with so many folds instead of --split")
    parser.add_argument("--repeats", type=int, default=1, help="repeats of the cross-validation")
    parser.add_argument(
        "--gears", nargs="+", type=str, default=[], help="train GEARS with these objectives: moments, cells"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[], help="seeds of GEARS's initial weights")
    parser.add_argument("--epochs", type=int | None, help="of GEARS; by objective if left out")
    parser.add_argument("--hidden-size", type=int, default=64, help="of GEARS")
    parser.add_argument("--device", help="of GEARS: cpu, cuda, ...")
    add_scores(parser)
    return parser


def run(arguments: list[str]) -> None:
    """Compare, print the averages, write the report."""
    options = make_parser().parse(arguments)
    from gears.data.splits import split_kind
    from gears.evaluation import compare, render_table, summary_table, verdict
    from gears.messages import unknown_name

    for objective in options.gears:
        if objective not in ("moments", "cells"):
            raise ValueError(unknown_name("objective", objective, ["moments", "cells"]))
    check_scores(options)
    split_kind(options.split)
    pert_data = open_screen(options)
    models = {
        f"gears_{objective}": partial(_gears, pert_data, objective, options) for objective in options.gears
    }
    result = compare(
        models,
        pert_data.screen,
        _splits(pert_data, options),
        seeds=(options.seeds or [1]) if models else (),
        annotation=pert_data.annotation,
        **score_options(options),
    )
    if options.report:
        result.save(options.report, title=f"Methods on {pert_data.dataset_name}")
    text = render_table(result.table, method=result.models[0] if models else None, subgroups=True)
    value: dict[str, Any] = {
        "verdicts": {name: verdict(result.table, method=name) for name in result.models},
        "left_out": result.left_out,
        "costs": result.costs().to_dict("records"),
        "summary": summary_table(result.table).to_dict("records"),
        "report": options.report,
    }
    show(options, value, text + (f"\n\nreport: {options.report}" if options.report else ""))


def _gears(pert_data: Any, objective: str, options: Any, seed: int) -> Any:
    from gears.judging import GEARSEstimator

    training = {"objective": objective} | ({} if options.epochs is None else {"epochs": options.epochs})
    network = {"hidden_size": options.hidden_size}
    return GEARSEstimator(pert_data, network=network, training=training, seed=seed, device=options.device)


def _splits(pert_data: Any, options: Any) -> list[Any]:
    from gears.data.splits import prepare_split
    from gears.data.splits.folds import folds

    if options.folds is not None:
        return list(folds(pert_data.screen, options.folds, options.repeats, options.split_seeds[0]))
    return [prepare_split(pert_data.screen, options.split, seed=seed) for seed in options.split_seeds]
