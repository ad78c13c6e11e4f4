"""Build command-line options from dataclasses and functions, and write messages with these options."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import itertools
import json
import logging
import re
import shlex
import sys
import textwrap
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

from jsonargparse import ActionYesNo, ArgumentParser, Namespace

from gears.core._messages import nearest, shorten, unknown_name
from gears.core._options import Check, Options
from gears.distributed._log import HANDLER, Once, show_progress
from gears.files.formats import plain_values

COMMON = ("help", "help_all", "config", "json", "quiet")
"""Options of every command in the short help."""
DEVICE = "cpu, cuda, cuda:1, ...; default: the first GPU, or the CPU where there is none"
"""Help of --device where a model predicts."""
HIDDEN = ("quiet", "traceback", "json", "config", "overwrite", "help_all")
"""Options that belong to one call: no file of options holds them."""
_LISTS = frozenset({list, tuple, Sequence})
_NUMBERS = frozenset({int, float, str, type(None)})
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "list": "a list, such as [A, B]",
}
_ARGUMENT = re.compile(r"\b([a-z][a-z0-9_]*)=(True\b|False\b|'[^']*'|\"[^\"]*\"|\[[^\]]*\]|-?[\w.]*\w)?(?!=)")
_OF_PYTHON = {
    "see pert_list for what can be predicted": "`gears genes MODEL` lists what can be predicted",
    "give the folder that save_model wrote": "give the --save-path of a training",
    "clip=True does": "--clip does",
    "give genes of pert_list": "give genes that `gears genes MODEL` lists",
}
"""Remedies in Python, and what they are on the command line."""


class Problems(argparse.ArgumentError):
    """What is wrong with the words of a command: one sentence, or a list with one problem a line."""

    def __init__(self, problems: Sequence[str]) -> None:
        listed = "\n  - ".join([f"{len(problems)} problems:", *problems])
        super().__init__(None, problems[0] if len(problems) == 1 else listed)


class CommandParser(ArgumentParser):
    """A jsonargparse parser with the messages and the help of this package.

    Errors are exceptions, one problem a line. Of options classes every wrong value is listed, with what its field
    expects; near names follow unknown options. Where `first` names options, ``--help`` shows these and ``--help-all``
    the others.
    """

    names: ClassVar[set[str]] = set()
    """Options of the command that runs."""

    def __init__(self, name: str, needs: str, description: str, epilog: str, *, first: Collection[str] = ()) -> None:
        super().__init__(
            prog=f"gears {name}",
            usage=f"gears {name} {needs} [options]",
            description=description,
            epilog=epilog,
            exit_on_error=False,
            allow_abbrev=False,
            formatter_class=_Help,
            print_config="--print-config",
        )
        self._titled: dict[str, Any] = {}
        self._checks: dict[str, Check] = {}
        self._hints: dict[str, Any] = {}
        self._first = (*COMMON, *first) if first else ()
        self.add_argument("--help-all", action=_HelpAll, help="show every option and exit")
        self.add_argument("--config", action="config", metavar="FILE", help="YAML file with any of these options")
        self.add_argument("--json", action="store_true", help="print the result as JSON")
        self.add_argument("--quiet", action="store_true", help="no progress on stderr")
        self.add_argument("--traceback", action="store_true", help="show where an error arose")
        for action in self._actions:
            if "--print-config" in action.option_strings:
                action.help, action.metavar = ("print every option with its value, a file for --config, and exit", "")

    def add(self, name: str, text: str, *, several: bool = False, **options: Any) -> None:
        """Add an option or an argument with its help; `several` words are a list of text, which is empty by default."""
        if several:
            options |= {"nargs": "+", "type": str, "default": []}
        if not name.startswith("-"):
            options = {"metavar": name.upper(), **options}
        self.add_argument(name, help=text, **options)

    def format_help(self, formatter: argparse.HelpFormatter | None = None, *, every: bool = False) -> str:
        formatter = formatter or self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        every = every or not self._first
        n_hidden = 0
        for group in self._action_groups:
            actions = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
            shown = [action for action in actions if every or not action.option_strings or action.dest in self._first]
            n_hidden += len(actions) - len(shown)
            formatter.start_section(group.title)
            formatter.add_arguments([action for action in shown if self._first or action.dest != "help_all"])
            formatter.end_section()
        if n_hidden:
            formatter.add_text(f"`{self.prog} --help-all` shows the other {n_hidden} options.")
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise :class:`Problems` with this package's message, in place of the parser's."""
        if isinstance(ex, Problems):
            raise ex
        raise Problems(self._problems(" ".join(message.split()))) from ex

    def _problems(self, message: str) -> list[str]:
        """What is wrong, a sentence each, from a message of argparse or jsonargparse."""
        if match := re.match(r"the following arguments are required: (.*)", message):
            named = {each.dest: _option(each.dest) if each.option_strings else each.metavar for each in self._actions}
            return [f"{named.get(name, name)} is missing; usage: {self.usage}" for name in match[1].split(", ")]
        if match := re.match(r"unrecognized arguments: (.*)", message):
            words = match[1].split()
            unknown = [word.split("=")[0] for word in words if word.startswith("-")]
            extra = [f"there is nothing to do with {word!r}; usage: {self.usage}" for word in words]
            return [self._unknown(word) for word in dict.fromkeys(unknown)] or extra
        if match := re.match(r"Option '(\w+)' is not accepted", message):
            return [f"in the file of --config: {self._unknown(_option(match[1]))}"]
        if match := re.match(r"argument (\S+): expected (?:one|at least one) argument", message):
            return [f"{match[1]} needs a value; it is {self._expectation(match[1])}"]
        if match := re.match(r"argument (\S+): ignored explicit argument (.*)", message):
            return [f"{match[1]} takes no value, got {match[2]}"]
        if match := re.match(r'Parser key "config": .*?(\'.*\')', message):
            return [f"there is no file {match[1]} of options (--config); `{self.prog} --print-config` prints one"]
        if message.startswith("Problems parsing config: "):
            reason = message.partition(": ")[2]
            return [f"the file of --config cannot be read as YAML ({reason}); expected lines of name: value"]
        if message.startswith("Unexpected config: "):
            return ["the file of --config has no options; expected lines such as epochs: 20"]
        if match := re.match(r'Parser key "([\w.]+)":(.*?)(?:Given value|Got value)', message):
            value = message.rpartition("Given value: " if "Given value: " in message else "Got value: ")[2]
            return [self._wrong_value(match[1], value, match[2])]
        return [re.sub(r'^Parser key "(\w+)"', lambda match: _option(match[1]), message)]

    def _unknown(self, option: str) -> str:
        names = [name.strip("-") for action in self._actions for name in action.option_strings if name[-1] != "+"]
        near = nearest(option.strip("-"), names, 1, least=0.7)
        hint = f"did you mean --{near[0]}?" if near else f"`{self.prog} --help-all` lists the options"
        return f"unknown option {option}; {hint}"

    def _wrong_value(self, name: str, value: object, expected: str = "") -> str:
        """Message for a wrong value: what is expected, by the option's check or the parser's message."""
        check = self._checks.get(name)
        if check is not None and check.names and isinstance(value, str):
            return unknown_name(_option(name), value, self.choices(name))
        types = dict.fromkeys(re.findall(r"<class '(\w+)'>", expected))
        described = [_TYPES[type_name] for type_name in types if type_name in _TYPES]
        return f"{_option(name)} must be {self._expectation(_option(name), described)}, got {value!r}"

    def _expectation(self, option: str, types: Sequence[str] = ()) -> str:
        """What the value of an option is, in words."""
        check = self._checks.get(option.strip("-").replace("-", "_"))
        words = "" if check is None or check.expected == "a value" else check.expected
        if check is not None and ", or " in words and check.valid(None):
            words = words.rpartition(", or ")[0]
        return words or " or ".join(types) or "described by --help-all"

    def parse(self, arguments: Sequence[str]) -> Namespace:
        """Parse, check every value, and set up progress on stderr."""
        self.names.update(action.dest for action in self._actions)
        options = self.parse_args(self._as_yaml(arguments))
        problems = []
        for name, check in self._checks.items():
            if not check.valid(options[name]):
                problems.append(self._wrong_value(name, options[name]))
            elif float in _kinds(self._hints.get(name)) and type(options[name]) is int:
                options[name] = float(options[name])
        if problems:
            raise Problems(problems)
        if not options.quiet:
            show_progress()
            for handler in logging.getLogger("gears").handlers:
                if handler.name == HANDLER and not isinstance(handler.formatter, _OptionLines):
                    handler.setFormatter(_OptionLines(handler.formatter))
                    handler.addFilter(Once())
        return options

    def _as_yaml(self, arguments: Sequence[str]) -> list[str]:
        """The words with values as YAML: null for none, [a, b] for a,b."""
        words, option = [], ""
        for word in arguments:
            name, is_pair, value = word.partition("=") if word.startswith("--") else (option, "", word)
            value = "null" if value in ("none", "None") else value
            hint = self._hints.get(name.strip("-").replace("-", "_"))
            if value and _is_list(hint) and not value.startswith("[") and value != "null":
                value = f"[{value}]"
            words.append(f"{name}={value}" if is_pair else word if word.startswith("--") else value)
            option = word if word.startswith("--") else ""
        return ["--print-config" if word == "--print_config" else word for word in words]  # the earlier name

    def add_options(
        self,
        title: str,
        source: type[Options],
        *,
        omit: Collection[str] = (),
        texts: Mapping[str, str] | None = None,
        several_words: bool = False,
    ) -> None:
        """Add the options of a class that have a name on the command line, except those in `omit`.

        The help is that of the option, except where `texts` has another. With `several_words`, lists are several words.
        """
        group = self._titled.get(title) or self.add_argument_group(title)
        self._titled[title] = group
        hints, commands = typing.get_type_hints(source), source.commands()
        for field in dataclasses.fields(source):  # type: ignore[arg-type]
            if field.name not in commands or field.name in omit:
                continue
            name, hint, default = commands[field.name], hints[field.name], typing.cast(Any, field.default)
            text = (texts or {}).get(name, field.metadata["help"]).replace("%", "%%")
            check = self._checks[name] = field.metadata["check"]
            if several_words and _is_list(hint):
                group.add_argument(_option(name), nargs="+", type=str, default=list(default), help=text)
                continue
            self._hints[name] = hint = str | None if hint is Any else _without_any(hint)
            if _kinds(hint) & _LISTS and not _is_list(hint):
                text += "; several: [A,B]"
            if hint is bool and name.startswith("no_"):
                group.add_argument(_option(name), action="store_true", default=default, help=text)
            elif hint is bool:
                add_switch(group, _option(name), text, default=default)
            else:
                words = self.choices(name) if sum(map(len, check.names)) < 40 else ()
                metavar = f"{{{','.join(words)}}}" if words else _metavar(name, hint)
                if _kinds(hint) <= _NUMBERS and _kinds(hint) & {int, float}:
                    hint = Any  # its check says what it may be
                elif hint == (list[str] | None):  # one word, too
                    hint = str | list[str] | None
                group.add_argument(_option(name), type=hint, default=default, metavar=metavar, help=text)

    def choices(self, name: str) -> tuple[str, ...]:
        """The valid names of an option, where it takes one of several."""
        names = self._checks[name].names if name in self._checks else ()
        return tuple("none" if word == "None" else word for word in names)


class _HelpAll(argparse.Action):
    """Show every option and exit."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=options.get("help"))

    def __call__(self, parser: Any, *_: Any) -> None:
        print(parser.format_help(every=True), end="")
        parser.exit()


def _example(line: str) -> str:
    """A line of an example; a remark that goes beyond 80 columns stands below it."""
    match = re.fullmatch(r"(.*\S)\s{2,}(\(.*\))", line)
    return f"{match[1]}\n      {match[2]}" if match and len(line) > 80 else line


class _Help(argparse.RawDescriptionHelpFormatter):
    """Examples keep their lines, texts fill theirs; defaults are shown where there are any, in words."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        blocks: list[str] = []
        for is_example, lines in itertools.groupby(text.splitlines(), lambda line: line.startswith("  ") or not line):
            block = list(lines)
            blocks += map(_example, block) if is_example else textwrap.wrap(" ".join(block), width)
        return "".join(f"{indent}{line}\n" for line in blocks)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Such as ``--epochs N`` or ``--refit, --no-refit``, without the parser's ``--name+``."""
        names = [name for name in action.option_strings if not name.endswith("+")]
        if not names or action.nargs == 0:
            return ", ".join(names) or super()._format_action_invocation(action)
        metavar = _metavar(action.dest, getattr(action, "_typehint", action.type))
        return f"{', '.join(names)} {self._format_args(action, metavar)}".rstrip()

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default, text = action.default, as_options(action.help or "")
        if default in (None, False, [], (), argparse.SUPPRESS) or "default" in text or not action.option_strings:
            return text
        if isinstance(default, list | tuple):
            default = shorten(default, 3)
        return f"{text} (default: {'on' if default is True else default})"


def _option(name: str) -> str:
    """The option of an argument: ``--save-path`` for save_path."""
    return f"--{name.strip('-').replace('_', '-')}"


def _metavar(name: str, hint: Any) -> str:
    """What the help shows for the value of an option: N, X, or the last word of its name."""
    if _kinds(hint) & {int, float} and str not in _kinds(hint):
        return "N" if int in _kinds(hint) else "X"
    return name.rpartition("_")[2].upper()


def _is_list(hint: Any) -> bool:
    """Whether a type hint admits lists and no single word."""
    return bool(_kinds(hint) & _LISTS) and str not in _kinds(hint)


def _kinds(hint: Any) -> set[Any]:
    """The types that a type hint admits, without what is in lists and tuples."""
    members = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return {typing.get_origin(member) or member for member in members}


def _without_any(hint: Any) -> Any:
    """A union without the objects that a command line cannot name."""
    members = typing.get_args(hint)
    return typing.Union[tuple(one for one in members if one is not Any)] if Any in members else hint  # noqa: UP007


def add_switch(place: Any, option: str, text: str, *, default: bool | None = True) -> None:
    """Add an option and its opposite, such as ``--clip`` and ``--no-clip``, to a parser or a group."""
    place.add_argument(option, action=ActionYesNo(yes_prefix="", no_prefix="no-"), default=default, help=text)


def values_of(options: Namespace, source: type[Options]) -> dict[str, Any]:
    """The options of a class that are on a command line, by name."""
    return {name: options[command] for name, command in source.commands().items() if command in options}


def changed_of(options: Namespace, source: type[Options]) -> dict[str, Any]:
    """The options of a class that differ from their defaults on a command line."""
    defaults = source().to_dict()
    return {name: value for name, value in values_of(options, source).items() if value != defaults[name]}


def as_yaml(options: Namespace) -> str:
    """Every option of a command line with its value, as YAML that ``--config`` takes."""
    import yaml

    plain = {name: value for name, value in vars(options).items() if name not in HIDDEN}
    return yaml.safe_dump(plain_values(plain), sort_keys=False)


def show(options: Namespace, value: Any, text: str) -> None:
    """Print a result on stdout: as JSON with --json (undefined numbers as null), else as text."""
    shown = json.dumps(plain_values(value), indent=1, allow_nan=False) if options.json else text
    sys.stdout.write(shown + "\n")


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

    for remedy, command in _OF_PYTHON.items():
        message = message.replace(remedy, command)
    return _ARGUMENT.sub(replace, message)


def _word(value: str) -> str:
    """A Python value as one word of a shell."""
    try:
        literal = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
    if literal is None:
        return "none"
    return shlex.quote(literal if isinstance(literal, str) else json.dumps(literal))


def option_names() -> set[str]:
    """Every name that is an option of the running command, or of an options class."""
    from gears.data.checks._options import ProcessingOptions

    classes: list[type[Options]] = [ProcessingOptions, Options]
    names = set(CommandParser.names)
    for source in classes:
        classes += source.__subclasses__()  # the loop goes on through them
        names |= set(source.commands().values()) if dataclasses.is_dataclass(source) else set()
    return names
