"""Kinds of splits by name, and what they need to know of a screen's labels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gears.conditions import Condition, conditions_of
from gears.core._messages import unknown_name
from gears.core._options import Check, Options, anything, number, one_of, option, options, switch, text, whole
from gears.core._registry import Registry
from gears.data.screen._prepared import PreparedScreen
from gears.data.splits._split import PARTS, Subgroups
from gears.files._paths import existing_file
from gears.files._untrusted import is_pickle, load_plain
from gears.files.formats import read_json


@dataclass(frozen=True)
class Labels:
    """Distinct labels of a screen as it spells them, in order of first appearance, with what they mean.

    `parsed` holds conditions of labels that were parsed before.
    """

    names: tuple[str, ...]
    parsed: Mapping[str, Condition] = field(default_factory=dict)

    @classmethod
    def of(cls, source: PreparedScreen | Labels | Sequence[str]) -> Labels:
        """Labels of a screen, or a list of them."""
        if isinstance(source, Labels):
            return source
        if isinstance(source, Sequence):
            return cls(tuple(source))
        screen = PreparedScreen.of(source)
        return cls(tuple(screen.labels), screen.condition_of_label)

    @cached_property
    def condition(self) -> dict[str, Condition]:
        return conditions_of(self.names, self.parsed)

    @property
    def control(self) -> list[str]:
        """Labels of the control."""
        return [name for name in self.names if self.condition[name].is_control]

    @property
    def perturbed(self) -> list[str]:
        """All other labels."""
        return [name for name in self.names if not self.condition[name].is_control]

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        """The perturbed conditions, without regard to spelling, in order of first appearance."""
        return tuple(dict.fromkeys(self.condition[name] for name in self.perturbed))

    def spelled(self, chosen: Collection[Condition]) -> list[str]:
        """Every label of the chosen conditions, in the screen's order."""
        wanted = set(chosen)
        return [name for name in self.names if self.condition[name] in wanted]

    def ordered(self, names: Collection[str]) -> list[str]:
        wanted = set(names)
        return [name for name in self.names if name in wanted]

    def singles(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if len(self.condition[name]) == 1]

    def combinations(self, names: Iterable[str]) -> list[str]:
        """Those with two or more perturbed genes."""
        return [name for name in names if len(self.condition[name]) > 1]

    def genes(self, names: Iterable[str]) -> np.ndarray:
        """Perturbed genes of the names, sorted."""
        return np.unique([gene for name in names for gene in self.condition[name].genes] or np.empty(0, "U1"))

    def with_genes(self, names: Iterable[str], genes: Collection[str]) -> list[str]:
        """Those that perturb at least one of the genes."""
        wanted = set(genes)
        return [name for name in names if not wanted.isdisjoint(self.condition[name].genes)]

    def n_in(self, name: str, genes: Collection[str]) -> int:
        """How many of a label's genes are among `genes`."""
        return len(set(self.condition[name].genes).intersection(genes))

    def resolve(self, name: str, kind: str = "condition") -> list[str]:
        """Every label of the condition that `name` spells in any way; ValueError with near matches if there is none."""
        condition = self.condition[name] if name in self.condition else Condition.of(name)
        labels = [label for label in self.names if self.condition[label] == condition]
        if not labels:
            raise ValueError(unknown_name(kind, name, self.names))
        return labels


def names_from(value: str | Sequence[str] | None, valid: Collection[str], kind: str) -> list[str] | None:
    """A list of valid names from a list, one name, or names joined by ``_`` (as published); ValueError for others."""
    if value is None:
        return None
    if isinstance(value, str):
        value = [value] if value in valid else value.split("_")
    names = [name.strip() for name in value]
    if not names:
        msg = f"an empty list of {kind}s was given; leave it out, or name at least one"
        raise ValueError(msg)
    for name in names:
        if name not in valid:
            raise ValueError(unknown_name(kind, name, sorted(valid)))
    return list(dict.fromkeys(names))


_SHARE = number(least=0, most=1)
_SEED = Check("a whole number from 0 to 2**32 - 1", whole(0, 2**32 - 1).valid)


@options
class SplitOptions(Options):
    """How the conditions are divided: options of :meth:`gears.PertData.prepare_split`."""

    kind = "split option"

    # fmt: off
    split: str = option("simulation", text(), help="type of split (see describe_splits)")
    seed: int = option(1, _SEED, help="seed of the draw")
    train_gene_set_size: float = option(0.75, _SHARE,
        help="share of the genes that training may perturb (simulation types)")
    combo_seen2_train_frac: float = option(0.75, _SHARE,
        help="share of the combinations of seen genes that train (simulation)")
    combo_single_split_test_set_fraction: float = option(0.1, _SHARE,
        help="share held out (combo_seen0, combo_seen1, combo_seen2, single)")
    test_perts: str | Sequence[str] | None = option(None, anything(),
        help="genes (simulation types) or combinations (combo_seen2) for the test part: a list, or names joined by _")
    only_test_set_perts: bool = option(False, switch(),
        help="hold out nothing but test_perts (simulation types)")
    test_pert_genes: str | Sequence[str] | None = option(None, anything(),
        help="genes to hold out (combo_seen0, combo_seen1, single, gene_held_out, context_and_gene_held_out)")
    split_dict_path: str | Path | None = option(None, text().or_none(),
        help="JSON file with the parts of a custom split")
    _: KW_ONLY
    split_dict: Mapping[str, Sequence[str]] | None = option(None, anything(), command="",
        help="the parts of a custom split: part -> labels")
    mode: str = option("published", one_of(["published", "strict"]),
        help="""published: the draws of the published package; strict: exact numbers drawn without replacement, and seen
        means perturbed in training after validation was taken out""")
    keep_excluded: bool = option(False, switch(),
        help="put conditions that the split would exclude into the part whose held-out genes they perturb")
    n_folds: int = option(5, whole(2), help="number of folds (cross_validation)")
    fold: int = option(0, whole(0), help="this fold, from 0 (cross_validation)")
    repeat: int = option(0, whole(0), help="the repeat of the fold (cross_validation)")
    fold_by: str = option("condition", one_of(["condition", "gene"]),
        help="what is divided into folds: condition or gene (cross_validation)")
    control_shares: Sequence[float] | None = option(None, anything(),
        help="""shares of the control cells that train, validate and test, such as 0.8, 0.1, 0.1: training then never
        sees the others; by default all control cells serve every part, as published""")
    test_contexts: str | Sequence[str] | None = option(None, anything(),
        help="contexts to hold out (context_held_out, context_and_gene_held_out); one drawn by the seed by default")
    # fmt: on

    def check_together(self) -> None:
        """Raise where options contradict each other; names become lists, and a file's parts `split_dict`."""
        split_kind = SPLITS[self.split]
        if self.split_dict_path is not None:
            if self.split_dict is not None:
                msg = "give split_dict or split_dict_path, not both"
                raise ValueError(msg)
            object.__setattr__(self, "split_dict", read_split_dict(self.split_dict_path))
            object.__setattr__(self, "split_dict_path", None)
        if split_kind.name == "custom":
            check_parts(self.split_dict)
        if self.fold >= self.n_folds:
            msg = f"fold must be from 0 to n_folds - 1 = {self.n_folds - 1}; found {self.fold}"
            raise ValueError(msg)
        object.__setattr__(self, "control_shares", _shares(self.control_shares))
        if isinstance(self.test_contexts, str):
            object.__setattr__(self, "test_contexts", [self.test_contexts])
        for name in ("test_perts", "test_pert_genes", "test_contexts"):
            object.__setattr__(self, name, _plain_list(getattr(self, name)))
        if isinstance(self.split_dict, Mapping):
            plain = {part: _plain_list(names) for part, names in self.split_dict.items()}
            object.__setattr__(self, "split_dict", plain)


def read_split_dict(path: str | Path) -> Any:
    """Parts of a split from JSON or a pickle of plain containers; FileNotFoundError or ValueError."""
    path = existing_file(path)
    content = load_plain(path) if is_pickle(path) else read_json(path)
    # A split saved by this package names its parts one level down.
    return content["parts"] if isinstance(content, dict) and "parts" in content else content


def check_parts(given: Any) -> Mapping[str, Any]:
    """The parts of a custom split, checked without the screen; ValueError unless they are a mapping."""
    if given is None:
        msg = "split='custom' needs split_dict={'train': [...], 'val': [...], 'test': [...]} or split_dict_path="
        raise ValueError(msg)
    if not isinstance(given, Mapping):
        expected = "a dict of lists, {'train': [...], 'val': [...], 'test': [...]}"
        msg = f"a custom split is {expected}; found {type(given).__name__}"
        raise ValueError(msg)
    return given


def _shares(value: Any) -> list[float] | None:
    """Shares of the control cells for train, val and test."""
    if value is None:
        return None
    is_list = isinstance(value, Iterable) and not isinstance(value, str)
    shares = [float(share) for share in value] if is_list else []
    if len(shares) != 3 or min(shares) < 0 or abs(sum(shares) - 1) > 1e-6 or shares[0] == 0:
        msg = f"control_shares are three shares (train, val, test) that add to 1, as 0.8, 0.1, 0.1; found {value!r}"
        raise ValueError(msg)
    return shares


def _plain_list(value: Any) -> Any:
    """Any collection of names as a list (a set in sorted order); text and None unchanged."""
    if value is None or isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        return value
    names = [str(name) for name in value]
    return sorted(names) if isinstance(value, (set, frozenset)) else names


@dataclass
class Draw:
    """What a kind of split drew: labels per part, labels in no part, subgroups if it defines them."""

    parts: dict[str, list[str]]
    excluded: dict[str, str] = field(default_factory=dict)
    subgroup: Subgroups | None = None


DrawFunction = Callable[[Labels, SplitOptions], Draw]


@dataclass(frozen=True)
class SplitKind:
    """A kind of split.

    Attributes
    ----------
    draw : callable
        (labels, arguments) -> Draw.
    description : str
        What can be in the test part, what is held out.
    uses : tuple of str
        Arguments that have an effect.
    parts : tuple of str
        Parts that it must fill.
    needs : str
        What a screen must have for it, said where a part stays empty.
    exact : bool
        Drawn as in strict mode in either mode (a kind that the published package lacks).
    by_setting : bool
        Divides the conditions of each setting; others keep a condition together in all settings.
    holds_out : str
        What is new in the test part: "condition", "gene" (no training condition perturbs the test genes) or "context".
    """

    name: str
    draw: DrawFunction
    description: str
    uses: tuple[str, ...] = ()
    parts: tuple[str, ...] = PARTS
    needs: str = ""
    exact: bool = False
    by_setting: bool = False
    holds_out: str = "condition"

    def draw_by(self, labels: Labels, arguments: SplitOptions) -> Draw:
        """Draw in the mode that the arguments ask for."""
        strict = STRICT.get(self.name) if arguments.mode == "strict" else None
        return (strict or self.draw)(labels, arguments)


SPLITS: Registry[SplitKind] = Registry("split")
STRICT: Registry[DrawFunction] = Registry("strict split")
"""How the kinds are drawn in strict mode, where that differs."""


def register_split(name: str, description: str, **fields: Any) -> Callable[[DrawFunction], DrawFunction]:
    """Decorate a drawing function to add a kind of split; `fields` are further ones of :class:`SplitKind`."""

    def register(draw: DrawFunction) -> DrawFunction:
        SPLITS.add(name, SplitKind(name, draw, description, **fields))
        return draw

    return register
