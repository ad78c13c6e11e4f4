"""`gears completion`: a script that completes commands and options in a shell."""

from __future__ import annotations

import argparse
from typing import Any

from gears.cli._parser import CommandParser, show
from gears.cli.main import COMMANDS, parser_of
from gears.core._messages import unknown_name

EPILOG = """examples:
  gears completion bash > ~/.local/share/bash-completion/completions/gears
  gears completion zsh > ~/.zsh/completions/_gears       (a folder in fpath)
  gears completion tcsh > ~/.gears.csh                   (source it in ~/.tcshrc)

Needs the package shtab: pip install 'gears-perturb[completion]'. Run it again after an update of gears.
"""
SHELLS = ("bash", "zsh", "tcsh")


def completion_parser() -> CommandParser:
    text = "Print a script that completes commands, options, their valid names and files."
    parser = CommandParser("completion", "SHELL", text, EPILOG)
    parser.add("shell", ", ".join(SHELLS))
    return parser


def run_completion(options: Any) -> None:
    if options.shell not in SHELLS:
        raise ValueError(unknown_name("shell", options.shell, SHELLS))
    try:
        import shtab
    except ModuleNotFoundError as error:
        msg = "completion needs the package shtab; run: pip install 'gears-perturb[completion]'"
        raise ModuleNotFoundError(msg) from error
    script = shtab.complete(command_tree(shtab.FILE), shell=options.shell)
    show(options, {"script": script}, script)


def command_tree(file: Any = None) -> argparse.ArgumentParser:
    """All commands as one parser of argparse, which shtab reads; values without valid names are completed by `file`."""
    tree = argparse.ArgumentParser(prog="gears")
    commands = tree.add_subparsers(dest="command")
    for name, (_, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, add_help=False)
        parser = parser_of(name)
        for action in parser._actions:
            names = [option for option in action.option_strings if not option.endswith("+")]
            if action.help == argparse.SUPPRESS:
                continue
            options: dict[str, Any] = {"help": action.help}
            if action.nargs == 0:
                options["action"] = "store_true"
            else:
                options |= {"nargs": action.nargs, "choices": parser.choices(action.dest) or None}
            added = command.add_argument(*(names or [action.dest]), **options)
            if action.nargs != 0 and not added.choices:
                added.complete = file  # type: ignore[attr-defined]
    return tree
