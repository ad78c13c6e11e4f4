"""`gears doctor`: check what this machine offers for training, and what training on a screen would take."""

from __future__ import annotations

from gears.cli._parser import CommandParser, show
from gears.cli._screens import add_data, add_nodes, open_screen

EPILOG = """examples:
  gears doctor
  gears doctor --json > machine.json
  gears doctor screen.h5ad               (and what each way to train costs on this screen)

With DATA it prepares the screen, as `gears train` does, and trains for a moment on one device.
Exit codes: 0 ready to train, 1 not ready (the lines that begin with "error").
"""


def make_parser() -> CommandParser:
    """Options of ``gears doctor``."""
    description = "Check this machine without changing it; with DATA, estimate what training on it costs."
    parser = CommandParser("doctor", "[DATA]", description, EPILOG, first=("dataset", "work_dir"))
    add_data(parser, optional=True)
    add_nodes(parser)
    return parser


def run_doctor(arguments: list[str]) -> int:
    """Print the diagnosis, and the costs on a screen; returns 1 where training cannot work."""
    options = make_parser().parse(arguments)
    from gears.distributed.doctor import diagnose

    diagnosis = diagnose()
    values, text = diagnosis.to_dict(), diagnosis.render()
    if options.data is not None and diagnosis.healthy:
        from gears.jobs._costs import measure_costs

        costs = measure_costs(open_screen(options))
        values, text = values | {"costs": costs.to_dict()}, f"{text}\n\n{costs.render()}"
    show(options, values, text)
    return 0 if diagnosis.healthy else 1
