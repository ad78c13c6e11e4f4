"""`gears doctor`: what this machine has for training."""

from __future__ import annotations

from gears.cli.parser import CommandParser, show

EPILOG = """examples:
  gears doctor
  gears doctor --json > machine.json

Exit codes: 0 ready to train, 1 not ready (the lines that begin with "error").
"""


def make_parser() -> CommandParser:
    """Options of ``gears doctor``."""
    return CommandParser("doctor", "", "Look at this machine; nothing is changed.", EPILOG)


def run_doctor(arguments: list[str]) -> int:
    """Print what was found; 1 where training cannot work."""
    options = make_parser().parse(arguments)
    from gears.distributed.doctor import diagnose

    found = diagnose()
    show(options, found.to_dict(), found.render())
    return 0 if found.healthy else 1
