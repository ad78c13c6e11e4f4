"""`gears doctor`: check what this machine offers for training."""

from __future__ import annotations

from gears.cli._parser import CommandParser, show

EPILOG = """examples:
  gears doctor
  gears doctor --json > machine.json

Exit codes: 0 ready to train, 1 not ready (the lines that begin with "error").
"""


def make_parser() -> CommandParser:
    """Options of ``gears doctor``."""
    return CommandParser("doctor", "", "Check this machine without changing it.", EPILOG)


def run_doctor(arguments: list[str]) -> int:
    """Print the diagnosis; returns 1 where training cannot work."""
    options = make_parser().parse(arguments)
    from gears.distributed.doctor import diagnose

    diagnosis = diagnose()
    show(options, diagnosis.to_dict(), diagnosis.render())
    return 0 if diagnosis.healthy else 1
