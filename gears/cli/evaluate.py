"""`gears evaluate`: a saved model beside the baselines on a part of its split."""

from __future__ import annotations

from gears.cli.parser import CommandParser, show
from gears.cli.screens import add_scores, add_screen, check_scores, open_screen, score_options

EPILOG = """examples:
  gears evaluate models/run1 screen.h5ad
  gears evaluate models/run1 gears_data/screen --report reports/run1
  gears evaluate models/run1 screen.h5ad --part val --metrics pearson_delta mse_top20_de --json
"""


def make_parser() -> CommandParser:
    """Options of ``gears evaluate``."""
    parser = CommandParser(
        "evaluate",
        "MODEL DATA",
        "Score a trained model and the baselines on the part of the split that it was trained on.",
        EPILOG,
    )
    parser.add_argument("model", metavar="MODEL", help="folder of the model")
    add_screen(parser)
    parser.add_argument("--part", default="test", help="part of the split: test, val or train")
    add_scores(parser)
    parser.add_argument("--device", help="cpu, cuda, ...; the first GPU where there is one if left out")
    return parser


def run(arguments: list[str]) -> None:
    """Load the model and its screen, score, print the table, write the report."""
    options = make_parser().parse(arguments)
    from gears.data.splits import PARTS
    from gears.evaluation import render_table, summary_table, verdict
    from gears.files import need_file
    from gears.judging import load_with_screen
    from gears.messages import unknown_name

    check_scores(options)
    if options.part not in PARTS:
        raise ValueError(unknown_name("part of the split", options.part, PARTS))
    need_file(options.model, "MODEL")
    pert_data = open_screen(options)
    model = load_with_screen(options.model, pert_data, device=options.device)
    table = model.evaluate(options.part, report=options.report, **score_options(options))
    if table is None:
        msg = f"part {options.part!r} of the model's split holds no perturbed condition; there is nothing to evaluate"
        raise ValueError(msg)
    value = {
        "verdict": verdict(table),
        "report": options.report,
        "summary": summary_table(table).to_dict("records"),
    }
    text = render_table(table, subgroups=True)
    show(options, value, text + (f"\n\nreport: {options.report}" if options.report else ""))
