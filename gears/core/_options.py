"""Options that check themselves.

An options class is a frozen dataclass made with :func:`options`. Each field is an :func:`option` that carries its
check, its help text, what it needs to have an effect, and whether a resumed run may change it. Error messages, the
command line, warnings about options without effect and the comparison on resume are derived from the fields.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar, dataclass_transform

from gears.core._messages import brief, unknown_name
from gears.core._numbers import is_number, is_whole, plain_number

T = TypeVar("T")
S = TypeVar("S")
AnyOptions = TypeVar("AnyOptions", bound="Options")
P = ParamSpec("P")
Bound = float | None


@dataclass(frozen=True)
class Check:
    """The valid values of an option."""

    expected: str  # in words, for messages: "a whole number of at least 1"
    valid: Callable[[Any], bool]  # whether a plain value is one of them
    names: tuple[str, ...] = ()
    """Valid names, where it takes one of several; the message for an unknown one suggests the nearest."""

    def __call__(self, name: str, value: Any) -> None:
        """Raise a ValueError with the value and what is expected, unless the value is valid."""
        if self.valid(value):
            return
        if self.names and isinstance(value, str):
            raise ValueError(unknown_name(name, value, self.names))
        msg = f"{name} is {brief(value)}; expected {self.expected}"
        raise ValueError(msg)

    def or_none(self, meaning: str = "None") -> Check:
        """The same, or None."""
        names = (*self.names, "None") if self.names else ()
        return Check(f"{self.expected}, or {meaning}", lambda value: value is None or self.valid(value), names)


def whole(least: int = 0, most: int | None = None) -> Check:
    """Whole numbers from `least` on, up to `most`."""
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
    return Check(f"a whole number {bounds}", lambda value: is_whole(value, least) and (most is None or value <= most))


def number(*, above: Bound = None, least: Bound = None, below: Bound = None, most: Bound = None) -> Check:
    """Finite numbers within bounds."""
    words = (("above", above), ("of at least", least), ("below", below), ("of at most", most))
    bounds = " and ".join(f"{word} {bound:g}" for word, bound in words if bound is not None)
    if least is not None and most is not None:
        bounds = f"from {least:g} to {most:g}"

    def valid(value: Any) -> bool:
        return (
            is_number(value)
            and (above is None or value > above)
            and (least is None or value >= least)
            and (below is None or value < below)
            and (most is None or value <= most)
        )

    return Check(f"a number {bounds}".rstrip(), valid)


def switch() -> Check:
    return Check("True or False", lambda value: isinstance(value, bool))


def one_of(names: Sequence[str]) -> Check:
    known = tuple(names)
    expected = f"one of {', '.join(map(repr, known))}"
    return Check(expected, lambda value: isinstance(value, str) and value in known, known)


def text() -> Check:
    return Check("a string or a path", lambda value: isinstance(value, str | Path))


def list_of_names() -> Check:
    def valid(value: Any) -> bool:
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        return is_list and all(isinstance(name, str) and name for name in value)

    return Check("a list of names", valid)


def anything() -> Check:
    """Values that are checked elsewhere."""
    return Check("a value", lambda value: True)


@dataclass(frozen=True)
class Needs:
    """What an option needs to have an effect."""

    met: Callable[[Any, Any], bool]  # whether the need is met, from the options and a description of the run
    what: str | Callable[[Any, Any], str]  # in words: "use_amp=True"

    def missing(self, options: Any, run: Any) -> str | None:
        """What is missing, in words; None where nothing is."""
        if self.met(options, run):
            return None
        return self.what if isinstance(self.what, str) else self.what(options, run)


def option(
    default: T,
    check: Check,
    *,
    help: str,
    needs: Needs | None = None,
    fixed: bool = False,
    formerly: str | None = None,
    command: str | None = None,
) -> T:
    """A field of an options class.

    `help`: meaning and units: the text in the class's documentation and in the help of the command line.
    `needs`: what it needs to have an effect; without it, a value other than the default causes a warning.
    `fixed`: whether a resumed run must have the same value.
    `formerly`: its name in earlier releases, which still works, with a DeprecationWarning.
    `command`: its name on the command line, where that is another one; empty where it has none.
    """
    metadata = {"check": check, "help": " ".join(help.split()), "needs": needs, "fixed": fixed}
    metadata |= {"formerly": formerly, "command": command}
    return dataclasses.field(default=default, metadata=metadata)  # type: ignore[return-value]


@dataclass_transform(frozen_default=True)
def options(cls: type[T]) -> type[T]:
    """Make a frozen dataclass of options; its fields are listed in its docstring."""
    options_class = dataclass(frozen=True)(cls)
    lines = [inspect.cleandoc(cls.__doc__ or ""), "", "Attributes", "----------"]
    for field in dataclasses.fields(options_class):  # type: ignore[arg-type]
        lines.append(field.name)
        lines += textwrap.wrap(field.metadata["help"], 110, initial_indent="    ", subsequent_indent="    ")
    options_class.__doc__ = "\n".join(lines)
    options_class.__init__ = _remembering(options_class)  # type: ignore[method-assign]
    return options_class


def _remembering(options_class: Any) -> Callable[..., None]:
    """The class's `__init__`, which takes former names, too, and remembers which options were given."""
    init, fields = options_class.__init__, dataclasses.fields(options_class)
    former = {old: field.name for field in fields if (old := field.metadata["formerly"])}
    first = [field.name for field in fields if not field.kw_only]

    @functools.wraps(init)
    def remembering(self: Any, *args: Any, **values: Any) -> None:
        values = _renamed(values, former)
        init(self, *args, **values)
        object.__setattr__(self, "_given", (*first[: len(args)], *values))

    return remembering


def _renamed(values: dict[str, Any], former: Mapping[str, str]) -> dict[str, Any]:
    """Arguments under their names of today, with a warning where the user called the caller of this function."""
    for old in former.keys() & values.keys():
        # the warning points at the user's line, however many functions of this package are in between
        caller, depth = sys._getframe(2), 3
        while caller.f_back is not None and caller.f_globals.get("__name__", "").startswith("gears."):
            caller, depth = caller.f_back, depth + 1
        msg = f"{old} is called {former[old]} now; the old name will be removed in a later release"
        warnings.warn(msg, DeprecationWarning, stacklevel=depth)
        values[former[old]] = values.pop(old)
    return values


def takes(
    options_class: Callable[P, AnyOptions], *, none_is_omitted: type[Options] | None = None, last: str = ""
) -> Callable[[Callable[[S, AnyOptions], T]], Callable[Concatenate[S, P], T]]:
    """Decorate a method that takes an options object: callers give the options themselves, as arguments.

    Signature and types are those of the class. An unknown name is a ValueError with the nearest one; former names work.
    None in place of an option of the base class `none_is_omitted` is the same as omitting it; `last` is the last of
    those that can be given by position.
    """
    source: Any = options_class
    optional = () if none_is_omitted is None else none_is_omitted.names()

    def decorate(method: Callable[[S, AnyOptions], T]) -> Callable[Concatenate[S, P], T]:
        first = next(iter(inspect.signature(method).parameters.values()))
        parameters = [first]
        for field in sorted(dataclasses.fields(source), key=lambda field: (field.kw_only, field.name == last)):
            default, hint = field.default, str(field.type)
            if field.name in optional:
                default, hint = None, hint if hint.endswith("| None") else f"{hint} | None"
            place = first.KEYWORD_ONLY if field.kw_only else first.POSITIONAL_OR_KEYWORD
            parameters.append(inspect.Parameter(field.name, place, default=default, annotation=hint))
        signature = inspect.signature(method).replace(parameters=parameters)

        @functools.wraps(method)
        def called(owner: S, /, *args: P.args, **values: P.kwargs) -> T:
            source.check_names(values)
            named = {name: value for name, value in values.items() if name in signature.parameters}
            given: Any = values | signature.bind(owner, *args, **named).arguments
            del given[first.name]
            for name in optional:
                if name in given and given[name] is None:
                    del given[name]
            return method(owner, source.from_mapping(given))

        called.__signature__ = signature  # type: ignore[attr-defined]
        return called

    return decorate


def divided(entry: str, values: Mapping[str, Any], *sources: type[Options], beside: Sequence[str] = ()) -> list[Any]:
    """Options of each class, from the values of one mapping; raises for a name that none of them (or `beside`) has."""
    valid = [*dict.fromkeys(name for source in sources for name in source.names()), *beside]
    for name in values:
        if name not in valid:
            raise ValueError(unknown_name(f"entry of {entry}", str(name), valid))
    named = [{name: values[name] for name in source.names() if name in values} for source in sources]
    return [source.from_mapping(of_source) for source, of_source in zip(sources, named, strict=True)]


class Options:
    """Base of options classes (made with :func:`options`)."""

    kind = "option"
    """The noun for one of these options in messages."""
    _given: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def _fields(cls) -> tuple[dataclasses.Field[Any], ...]:
        return dataclasses.fields(cls)  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        for field in self._fields():
            value = plain_number(getattr(self, field.name))
            object.__setattr__(self, field.name, value)
            field.metadata["check"](field.name, value)
        self.check_together()

    def check_together(self) -> None:
        """Raise where options contradict each other."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in cls._fields())

    @classmethod
    def check_names(cls, names: Sequence[str] | Mapping[str, Any]) -> None:
        """Raise for an unknown name, with the nearest one."""
        known = cls.names()
        for name in names:
            if name not in known and all(name != field.metadata["formerly"] for field in cls._fields()):
                raise ValueError(unknown_name(cls.kind, str(name), list(known)))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Options from values by name; raises for an unknown name, with the nearest one."""
        cls.check_names(values)
        return cls(**dict(values))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return dataclasses.asdict(self)  # type: ignore[call-overload]

    @classmethod
    def commands(cls) -> dict[str, str]:
        """Names on the command line by option, without options that it lacks."""
        named = {field.name: field.metadata["command"] for field in cls._fields()}
        return {name: name if command is None else command for name, command in named.items() if command != ""}

    def given(self) -> dict[str, Any]:
        """Options that the caller gave, also those with the default's value."""
        return {name: getattr(self, name) for name in self._given}

    def only(self, base: type[AnyOptions]) -> AnyOptions:
        """The options of a base class; those that were given are given there, too."""
        return base(**{name: value for name, value in self.given().items() if name in base.names()})

    def changed(self) -> dict[str, Any]:
        """Options that differ from their defaults."""
        changed = {}
        for field in self._fields():
            value = getattr(self, field.name)
            # a table or an array in place of None would be compared element by element
            if value is not field.default and (field.default is None or value != field.default):
                changed[field.name] = value
        return changed

    def fixed(self) -> dict[str, Any]:
        """Options that a run keeps from its first to its last step."""
        return {field.name: getattr(self, field.name) for field in self._fields() if field.metadata["fixed"]}

    def without_effect(self, **run: Any) -> list[str]:
        """A sentence for each option that differs from its default and has no effect in a run with these facts."""
        sentences, facts = [], SimpleNamespace(**run)
        for field in self._fields():
            value, needs = getattr(self, field.name), field.metadata["needs"]
            missing = None if needs is None or value == field.default else needs.missing(self, facts)
            if missing is not None:
                sentences.append(f"{field.name}={value!r} has no effect without {missing}")
        return sentences
