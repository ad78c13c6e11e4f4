"""Entry point of the `gears` command: run a subcommand, and turn errors into a message and an exit code.

Heavy packages are imported by the subcommands only, so that ``gears --help`` responds at once.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gears.core._installation import __version__
from gears.core._messages import unknown_name

if TYPE_CHECKING:
    from gears.cli._parser import CommandParser

BAD_INPUT, FAILURE, INTERRUPTED = 2, 1, 130

COMMANDS = {  # in the order of use
    "doctor": ("_train", "check this machine: torch, GPUs and their load, cores, versions"),
    "simulate": ("_screens", "write a simulated screen to an h5ad file"),
    "inspect": ("_screens", "report on a screen: what it holds, what to exclude and to fix"),
    "prepare": ("_screens", "check a screen and prepare it for training"),
    "merge": ("_screens", "add up moment packs of lanes or replicates of one screen"),
    "effects": ("_screens", "write a screen's effects of single genes, for other trainings"),
    "train": ("_train", "train a model on a screen, on one or several GPUs or CPUs"),
    "train-many": ("_train_many", "train several models, here or as a job array, and their table"),
    "predict": ("_predict", "predict expression after perturbing genes, with a trained model"),
    "explain": ("_predict", "say which training conditions a prediction rests on"),
    "genes": ("_predict", "list the genes that a trained model can perturb"),
    "suggest": ("_design", "choose the perturbations to measure next"),
    "hits": ("_design", "rank perturbations by the probability that genes change"),
    "reverse": ("_design", "find perturbations whose predicted change is nearest a wanted one"),
    "power": ("_design", "cells per condition that an effect needs, by a screen's variances"),
    "evaluate": ("_evaluate", "score a trained model and simple baselines, write a report"),
    "compare": ("_evaluate", "score baselines, and GEARS retrained, over several splits"),
    "report": ("_evaluate", "write the HTML page of a table from evaluate or compare"),
    "convert": ("_convert", "convert screens, splits and saved models of cell-gears"),
    "completion": ("_completion", "print a script for completion in bash, zsh or tcsh"),
}
"""Module and description of each command; the module has its ``run_<command>`` and ``<command>_parser``."""

HELP = f"""usage: gears [--version] [--help] COMMAND ...

Predict how every gene's expression responds to perturbing one or more genes.

commands:
{chr(10).join(f"  {name:<12}{text}" for name, (_, text) in COMMANDS.items())}

examples:
  gears simulate screen.h5ad --n-genes 300 --n-pairs 20  (to try it without data)
  gears inspect screen.h5ad
  gears prepare screen.h5ad
  gears train screen.h5ad --save-path models/run1
  gears train screen.h5ad --save-path models/run2 --gpu-ids 0 2
  gears train --config run.yaml
  gears genes models/run1
  gears predict models/run1 GNG4 CDK15+GNG4 --top 10
  gears predict models/run1 CDK15+GNG4 --output predictions.csv
  gears suggest models/run1 --n 20
  gears evaluate models/run1 screen.h5ad --report reports/run1
  gears compare screen.h5ad --folds 5 --report reports/baselines

`gears COMMAND --help` lists the options of a command, --help-all every one.
Every command takes --json, --config FILE.yaml, --quiet and --traceback.
Results go to stdout, progress to stderr.
Exit codes: 0 done, 1 failed, 2 bad input, 130 interrupted.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `gears` command with these arguments (by default those of the process).

    Returns the exit code: 0, 1 (failed), 2 (bad input) or 130 (interrupted).
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        (sys.stdout if arguments else sys.stderr).write(HELP)
        return 0 if arguments else BAD_INPUT
    if arguments[0] == "--version":
        print(f"gears {__version__}")
        return 0
    name, command_arguments = arguments[0], arguments[1:]
    if name not in COMMANDS:
        return _print_error("gears", unknown_name("command", name, list(COMMANDS)), BAD_INPUT)
    traceback = "--traceback" in command_arguments
    return _guarded(name, [word for word in command_arguments if word != "--traceback"], traceback)


def _guarded(name: str, arguments: list[str], traceback: bool) -> int:
    """Run a subcommand; an error becomes a message and an exit code, or a traceback with --traceback."""
    try:
        code = _function(name, "run_{}")(parser_of(name).parse(arguments))
        sys.stdout.flush()
    except KeyboardInterrupt:
        more = "; --resume continues from the last checkpoint, if one was written" if name == "train" else ""
        return _print_error(f"gears {name}", f"interrupted{more}", INTERRUPTED)
    except BrokenPipeError:  # the reader of a pipe (`| head`) has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if traceback:
            raise
        message, code = _plain_message(error), exit_code(error)
        if code == BAD_INPUT:  # arguments in messages about the user's input become options
            from gears.cli._parser import as_options

            message = as_options(message)
        return _print_error(f"gears {name}", message, code)
    return code or 0


def _function(command: str, form: str) -> Callable[..., Any]:
    """A function of a command, such as ``run_{}``, from its module, which is imported when the command runs."""
    module = importlib.import_module(f"gears.cli.{COMMANDS[command][0]}")
    return getattr(module, form.format(command.replace("-", "_")))


def parser_of(command: str) -> CommandParser:
    """The parser of a command."""
    parser: CommandParser = _function(command, "{}_parser")()
    return parser


def exit_code(error: Exception) -> int:
    """2 for errors that the user can fix in arguments or files, 1 for all others."""
    files = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)
    bad_input = (ValueError, TypeError, KeyError, *files)
    return BAD_INPUT if isinstance(error, (argparse.ArgumentError, *bad_input)) else FAILURE


def _plain_message(error: Exception) -> str:
    """The message of an error in one line, a list in a line for each; ``--traceback`` alone shows where it arose."""
    from gears.core._installation import torch_problem

    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    head, _, more = text.partition("\n\nOriginal traceback")
    lines = [" ".join(line.split()) for line in re.split(r"\n(?=\s*- )", head)]
    message = "\n  ".join(lines) or type(error).__name__
    if exit_code(error) == FAILURE and (problem := torch_problem()) is not None:
        return f"{problem}; `gears doctor` shows what this machine has"
    return f"{message} (--traceback shows more)" if more or exit_code(error) == FAILURE else message


def _print_error(program: str, message: str, code: int) -> int:
    sys.stdout.flush()
    print(f"{program}: {'' if code == INTERRUPTED else 'error: '}{message}", file=sys.stderr)
    return code
