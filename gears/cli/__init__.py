"""The `gears` command: thin calls of the public functions, one file per subcommand."""

from gears.cli.main import main

__all__ = ["main"]
