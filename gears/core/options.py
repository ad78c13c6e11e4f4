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
from typing import Any, ParamSpec, Self, TypeVar, dataclass_transform

from gears.core.messages import brief, unknown_name
from gears.core.numbers import is_number, is_whole, plain_number

T = TypeVar("T")
P = ParamSpec("P")
Bound = float | None


@dataclass(frozen=True)
class Check:
    """The valid values of an option.

    Attributes
    ----------
    expected
        In words, for messages: "a whole number of at least 1".
    valid
        Whether a plain value is one of them.
    names
        Valid names, where it takes one of several; the message for an unknown one suggests the nearest.
    """

    expected: str
    valid: Callable[[Any], bool]
    names: tuple[str, ...] = ()

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
        expected = f"{self.expected}, or {meaning}"
        return dataclasses.replace(
            self,
            expected=expected,
            valid=lambda value: value is None or self.valid(value),
            names=(*self.names, "None") if self.names else (),
        )


def whole(least: int = 0, most: int | None = None) -> Check:
    """Whole numbers from `least` on, up to `most`."""
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
    return Check(
        f"a whole number {bounds}", lambda value: is_whole(value, least) and (most is None or value <= most)
    )


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
    """True or False."""
    return Check("True or False", lambda value: isinstance(value, bool))


def one_of(names: Sequence[str]) -> Check:
    """One of several names."""
    known = tuple(names)
    return Check(
        f"one of {', '.join(map(repr, known))}",
        lambda value: isinstance(value, str) and value in known,
        known,
    )


def text() -> Check:
    """Any string or path."""
    return Check("a string or a path", lambda value: isinstance(value, str | Path))


def list_of_names() -> Check:
    """A list or tuple of names."""
    return Check(
        "a list of names",
        lambda value: (
            isinstance(value, Sequence)
            and not isinstance(value, str)
            and all(isinstance(name, str) and name for name in value)
        ),
    )


def anything() -> Check:
    """Values that are checked elsewhere."""
    return Check("a value", lambda value: True)


@dataclass(frozen=True)
class Needs:
    """What an option needs to have an effect.

    Attributes
    ----------
    met
        Whether the need is met, from the options and a description of the run.
    what
        In words: "use_amp=True".
    """

    met: Callable[[Any, Any], bool]
    what: str | Callable[[Any, Any], str]

    def missing(self, options: Any, run: Any) -> str | None:
        """What is missing, in words; None where nothing is."""
        if self.met(options, run):
            return None
        return self.what if isinstance(self.what, str) else self.what(options, run)


def option(
    *,
    default: T,
    check: Check,
    help: str,
    needs: Needs | None = None,
    fixed: bool = False,
    formerly: str | None = None,
) -> T:
    """A field of an options class.

    Parameters
    ----------
    help
        Meaning and units: the text in the class's documentation and in the help of the command line.
    needs
        What it needs to have an effect; without it, a value other than the default causes a warning.
    fixed
        Whether a resumed run must have the same value.
    formerly
        Its name in earlier releases, which still works, with a DeprecationWarning.
    """
    metadata = {"check": check, "help": " ".join(help.split()), "needs": needs, "fixed": fixed}
    return dataclasses.field(default=default, metadata=metadata | {"formerly": formerly})  # type: ignore[return-value]


@dataclass_transform(frozen_default=True, field_specifiers=(option,))
def options(cls: type[T]) -> type[T]:
    """Make a frozen dataclass of options; its fields are listed in its docstring."""
    options_class = dataclass(frozen=True)(cls)
    lines = [inspect.cleandoc(cls.__doc__ or ""), "", "Attributes", "----------"]
    for field in dataclasses.fields(options_class):  # type: ignore[arg-type]
        lines.append(field.name)
        lines += textwrap.wrap(field.metadata["help"], 110, initial_indent="    ", subsequent_indent="    ")
    options_class.__doc__ = "\n".join(lines)
    if former := _former_names(options_class):
        options_class.__init__ = _with_former_names(options_class.__init__, former)  # type: ignore[method-assign]
    return options_class


def _former_names(options_class: type) -> dict[str, str]:
    """Former name -> name of the option."""
    fields = dataclasses.fields(options_class)
    return {old: field.name for field in fields if (old := field.metadata["formerly"])}


def _with_former_names(init: Callable[..., None], former: Mapping[str, str]) -> Callable[..., None]:
    @functools.wraps(init)
    def renamed(self: Any, *args: Any, **values: Any) -> None:
        init(self, *args, **_renamed(values, former))

    return renamed


def _renamed(values: dict[str, Any], former: Mapping[str, str]) -> dict[str, Any]:
    """Arguments under their names of today, with a warning where the user called the caller of this function."""
    for old in former.keys() & values.keys():
        caller, depth = sys._getframe(2), 3
        while caller.f_back is not None and caller.f_globals.get("__name__", "").startswith("gears."):
            caller, depth = caller.f_back, depth + 1
        msg = f"{old} is called {former[old]} now; the old name will be removed in a later release"
        warnings.warn(msg, DeprecationWarning, stacklevel=depth)
        values[former[old]] = values.pop(old)
    return values


def takes(options_class: type[Options]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function that takes these options as named arguments.

    An unknown name is a ValueError with the nearest one, as it is for the options class itself; former names work.
    """
    former = _former_names(options_class)

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        valid = [name for name in inspect.signature(function).parameters if name != "self"]

        @functools.wraps(function)
        def checked(*args: P.args, **values: P.kwargs) -> T:
            for name in values:
                if name not in valid and name not in former:
                    raise ValueError(unknown_name(options_class.kind, name, valid))
            return function(*args, **_renamed(values, former))  # type: ignore[arg-type]

        return checked

    return decorate


class Options:
    """Base of options classes (made with :func:`options`)."""

    kind = "option"
    """The noun for one of these options in messages."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = plain_number(getattr(self, field.name))
            object.__setattr__(self, field.name, value)
            field.metadata["check"](field.name, value)
        self.check_together()

    def check_together(self) -> None:
        """Raise where options contradict each other."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Names of all options."""
        return tuple(field.name for field in dataclasses.fields(cls))  # type: ignore[arg-type]

    @classmethod
    def check_names(cls, names: Sequence[str] | Mapping[str, Any]) -> None:
        """Raise for an unknown name, with the nearest one."""
        former = {field.metadata["formerly"] for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        for name in names:
            if name not in cls.names() and name not in former:
                raise ValueError(unknown_name(cls.kind, str(name), list(cls.names())))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Options from values by name; raises for an unknown name, with the nearest one."""
        cls.check_names(values)
        return cls(**dict(values))

    @classmethod
    def help(cls) -> dict[str, str]:
        """Text of each option."""
        return {field.name: field.metadata["help"] for field in dataclasses.fields(cls)}  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return dataclasses.asdict(self)  # type: ignore[call-overload]

    def changed(self) -> dict[str, Any]:
        """Options that differ from their defaults."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)  # type: ignore[arg-type]
            if getattr(self, field.name) != field.default
        }

    def fixed(self) -> dict[str, Any]:
        """Options that a run keeps from its first to its last step."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)  # type: ignore[arg-type]
            if field.metadata["fixed"]
        }

    def without_effect(self, **run: Any) -> list[str]:
        """A sentence for each option that differs from its default and has no effect in a run with these facts."""
        sentences, facts = [], SimpleNamespace(**run)
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value, needs = getattr(self, field.name), field.metadata["needs"]
            missing = None if needs is None or value == field.default else needs.missing(self, facts)
            if missing is not None:
                sentences.append(f"{field.name}={value!r} has no effect without {missing}")
        return sentences
