"""Build command-line options from dataclasses and functions, and write messages with these options."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import json
import logging
import math
import re
import shlex
import sys
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

from docstring_parser import parse as parse_docstring
from jsonargparse import ActionYesNo, ArgumentParser, Namespace

from gears.core.messages import nearest
from gears.core.options import Options
from gears.distributed.log import HANDLER, show_progress
from gears.files.untrusted import check_config_files

_WRONG_VALUE = re.compile(r'Parser key "([\w.]+)":(.*?)(?:Given value:|Got value:)(.*)', re.DOTALL)
"""The parser's message for a value of another type."""
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "list": "a list",
}
_ARGUMENT = re.compile(r"\b([a-z][a-z0-9_]*)=(True\b|False\b|'[^']*'|\"[^\"]*\"|\[[^\]]*\]|-?[\w.]*\w)?(?!=)")


class CommandParser(ArgumentParser):
    """A jsonargparse parser whose errors are exceptions, with near matches for misspelt options."""

    def __init__(self, name: str, needs: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=f"gears {name}",
            usage=f"gears {name} {needs} [options]",
            description=description,
            epilog=epilog,
            exit_on_error=False,
            allow_abbrev=False,
            formatter_class=_Help,
        )
        self.option_names: dict[str, list[str]] = {}
        self._titled: dict[str, Any] = {}
        self._expected: dict[str, str] = {}
        self.add_argument("--quiet", action="store_true", help="no progress on stderr")
        self.add_argument("--traceback", action="store_true", help="show where an error arose")
        self.add_argument("--json", action="store_true", help="print the result as JSON")
        self.add_argument("--config", action="config", help="YAML file with any of these options")

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise ArgumentError: what an option must be, or a hint where it is misspelt."""
        wrong = _WRONG_VALUE.match(message)
        if wrong is not None:
            message = self._wrong_value(*wrong.groups())
        if "unrecognized arguments" in message and "did you mean" not in message:
            option_strings = [option for action in self._actions for option in action.option_strings]
            words = [word.split("=")[0] for word in message.split() if word.startswith("--")]
            words = list(dict.fromkeys(words))
            hints = [
                f"{word}: did you mean {near[0]}?"
                for word in words
                if (near := nearest(word, option_strings))
            ]
            message = "; ".join([message, *hints])
        raise argparse.ArgumentError(None, message) from ex

    def _wrong_value(self, name: str, expected: str, given: str) -> str:
        """Message for a value of another type, in place of the parser's: what is expected, by the option's check."""
        types = re.findall(r"<class '(\w+)'>", expected)
        kinds = [_TYPES[kind] for kind in dict.fromkeys(types) if kind in _TYPES]
        wanted = self._expected.get(name) or " or ".join(kinds) or "another kind of value"
        return f"--{name.replace('_', '-')} must be {wanted.removesuffix(', or None')}, got {given.strip()!r}"

    def parse(self, arguments: Sequence[str]) -> Namespace:
        """Parse, and set up progress on stderr."""
        check_config_files(arguments)
        # YAML's word for nothing is null; help and messages speak of None, as Python does
        words = [re.sub(r"^(--[\w-]+=)?None$", r"\1null", word) for word in arguments]
        options = self.parse_args(words)
        if not options.quiet:
            show_progress()
            for handler in logging.getLogger("gears").handlers:
                if handler.name == HANDLER and not isinstance(handler.formatter, _OptionLines):
                    handler.setFormatter(_OptionLines(handler.formatter))
        return options

    def changed(self, options: Namespace, title: str) -> dict[str, Any]:
        """The options of a group that differ from their defaults."""
        names = self.option_names[title]
        return {name: options[name] for name in names if options[name] != self.get_default(name)}

    def resolved(self, options: Namespace) -> str:
        """Every option with its value, as YAML that ``--config`` takes."""
        import yaml

        hidden = ("quiet", "traceback", "json", "config", "print_config")
        plain = {name: value for name, value in vars(options).items() if name not in hidden}
        return yaml.safe_dump(_plain(plain), sort_keys=False)

    def add_options(
        self,
        title: str,
        source: type | Callable[..., Any],
        *,
        omit: Collection[str] = (),
        only: Collection[str] | None = None,
        texts: Mapping[str, str] | None = None,
        lists: Collection[str] = (),
    ) -> None:
        """Add one option per field of an options class or parameter of a function, except those in `omit`.

        Its help is the field's or the docstring's, except where `texts` has another. Those named by `lists` take
        several words.
        """
        group = self._titled.get(title) or self.add_argument_group(title)
        self._titled[title] = group
        help_texts, types = described(source) | dict(texts or {}), typing.get_type_hints(source)
        if isinstance(source, type) and issubclass(source, Options):
            checks = {field.name: field.metadata["check"] for field in dataclasses.fields(source)}  # type: ignore[arg-type]
            self._expected |= {
                name: check.expected for name, check in checks.items() if check.expected != "a value"
            }
        names = []
        for name, default in defaults_of(source).items():
            if name in omit or (only is not None and name not in only):
                continue
            option, text = f"--{name.replace('_', '-')}", help_texts.get(name, "")
            if name in lists:
                group.add_argument(option, nargs="+", type=str, default=list(default), help=text)
            elif types[name] is bool and name.startswith("no_"):
                group.add_argument(option, action="store_true", default=default, help=text)
            elif types[name] is bool:
                add_switch(group, option, text, default=default)
            else:
                kind = types[name]
                if kind == (list[str] | None):  # one word, too
                    kind = str | list[str] | None
                group.add_argument(option, type=kind, default=default, help=text)
            names.append(name)
        self.option_names.setdefault(title, []).extend(names)


class _Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Examples keep their lines; defaults are shown where there are any."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False or action.default == []:
            return action.help
        return super()._get_help_string(action)


def add_switch(place: Any, option: str, text: str, *, default: bool | None = True) -> None:
    """Add an option and its opposite, such as ``--clip`` and ``--no-clip``, to a parser or a group."""
    place.add_argument(option, action=ActionYesNo(yes_prefix="", no_prefix="no-"), default=default, help=text)


def described(source: Any) -> dict[str, str]:
    """Text of each option: its help, or its entry in a NumPy docstring."""
    if isinstance(source, type) and issubclass(source, Options):
        return {name: text.replace("%", "%%") for name, text in source.help().items()}
    texts: dict[str, str] = {}
    for entry in parse_docstring(inspect.getdoc(source) or "").params:
        text = " ".join(re.sub(r":\w+:`|`", "", entry.description or "").split()).replace("%", "%%")
        texts.update({name.strip(): text for name in entry.arg_name.split(",")})
    return texts


def defaults_of(source: Any) -> dict[str, Any]:
    """Names and defaults of a dataclass's fields or a function's parameters that have one."""
    if dataclasses.is_dataclass(source):
        return {field.name: field.default for field in dataclasses.fields(source)}
    parameters = inspect.signature(source).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}


def show(options: Namespace, value: Any, text: str) -> None:
    """Print a result on stdout: as JSON with --json (undefined numbers as null), else as text."""
    shown = json.dumps(_plain(value), indent=1, allow_nan=False) if options.json else text
    sys.stdout.write(shown + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


class _OptionLines(logging.Formatter):
    """The lines of another formatter, with options in place of arguments."""

    def __init__(self, lines: logging.Formatter | None) -> None:
        super().__init__()
        self._lines: logging.Formatter = lines or logging.Formatter()

    def format(self, record: logging.LogRecord) -> str:
        """One line (or more) of the log."""
        return as_options(self._lines.format(record))


def as_options(message: str) -> str:
    """Replace the arguments in a message by options.

    Examples
    --------
    >>> as_options("pass ctrl_label='NT', or normalize=True")
    'pass --ctrl-label NT, or --normalize'
    """
    names = option_names()

    def replace(match: re.Match[str]) -> str:
        name, value = match.groups()
        if name not in names:
            return match.group()
        option = name.replace("_", "-")
        if value in ("True", "False"):
            return f"--{option}" if value == "True" else f"--no-{option}"
        return f"--{option}{f' {_word(value)}' if value else ''}"

    return _ARGUMENT.sub(replace, message)


def _word(value: str) -> str:
    """A Python value as one word of a shell."""
    try:
        literal = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
    return shlex.quote(literal if isinstance(literal, str) else json.dumps(literal))


def option_names() -> frozenset[str]:
    """Every name that is an option of some command."""
    from gears.data.checks.options import ProcessingOptions
    from gears.data.splits.registry import SplitOptions
    from gears.model.config import ModelConfig
    from gears.training.options import TrainOptions

    names = {
        name for kind in (ProcessingOptions, SplitOptions, ModelConfig, TrainOptions) for name in kind.names()
    }
    others = (
        "n_gpus gpu_ids device timeout num_workers test_batch_size drop_unmapped guides guide_targets gene2go obo "
        "go_graph coexpress_graph pert_embedding gene_set_path split_dict_path overwrite clip split "
        "aim threshold targets readout costs effect cells control_cells"
    )
    return frozenset({*names, *others.split()} - {"split_dict"})
