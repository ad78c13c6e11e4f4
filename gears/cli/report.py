"""`gears report`: the page again from a table that an evaluation wrote."""

from __future__ import annotations

from gears.cli.parser import CommandParser, show
from gears.files import user_path

EPILOG = """examples:
  gears report reports/run1/evaluation.csv reports/again
  gears report evaluation.csv reports/again --title "Run 1" --models gears_cells gears_moments
"""


def make_parser() -> CommandParser:
    """Options of ``gears report``."""
    parser = CommandParser(
        "report", "TABLE.csv FOLDER", "Write the HTML page, CSV, JSON and figures of a tidy table.", EPILOG
    )
    parser.add_argument(
        "table", metavar="TABLE.csv", help="evaluation.csv of a report, or one of the same columns"
    )
    parser.add_argument("folder", metavar="FOLDER", help="where the page goes")
    parser.add_argument("--title", default="Evaluation", help="of the page")
    parser.add_argument(
        "--models", nargs="+", type=str, help="methods to judge; the table's first if left out"
    )
    return parser


def run(arguments: list[str]) -> None:
    """Read the table, write the report, say where it is."""
    options = make_parser().parse(arguments)
    import pandas as pd

    from gears.evaluation import BASELINES, verdict, write_report
    from gears.evaluation.table import COLUMNS
    from gears.messages import unknown_name

    if not user_path(options.table).is_file():
        msg = f"there is no file {options.table}"
        raise FileNotFoundError(msg)
    try:
        table = pd.read_csv(options.table)
    except (ValueError, OSError) as error:
        msg = f"{options.table} cannot be read as a table ({error}); expected the evaluation.csv of a report"
        raise ValueError(msg) from error
    missing = [column for column in COLUMNS if column not in table]
    if missing:
        msg = f"{options.table} lacks the columns {', '.join(missing)}; expected a table that an evaluation wrote"
        raise ValueError(msg)
    methods = list(dict.fromkeys(table["method"]))
    models = options.models or methods[:1]
    for model in models:
        if model not in methods:
            raise ValueError(unknown_name("method", model, methods))
    table.attrs["models"] = [*models, *(name for name in methods if name not in BASELINES)]
    paths = write_report(table, options.folder, title=options.title, models=models)
    verdicts = {model: verdict(table, method=model) for model in models}
    show(
        options,
        {"page": str(paths["page"]), "verdicts": verdicts},
        "\n".join([*verdicts.values(), str(paths["page"])]),
    )
