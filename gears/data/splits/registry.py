"""Kinds of splits by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from gears.core.messages import unknown_name
from gears.core.numbers import is_number, is_whole, plain_numbers
from gears.core.registry import Registry
from gears.data.splits.labels import Labels
from gears.data.splits.split import PARTS, Subgroups

MODES = ("published", "strict")
FOLDED = ("condition", "gene")


@dataclass(frozen=True)
class SplitArguments:
    """Arguments of a split, as :meth:`gears.PertData.prepare_split` documents them."""

    seed: int = 1
    train_gene_set_size: float = 0.75
    combo_seen2_train_frac: float = 0.75
    combo_single_split_test_set_fraction: float = 0.1
    test_perts: Any = None
    only_test_set_perts: bool = False
    test_pert_genes: Any = None
    split_dict: Any = None
    mode: str = "published"
    keep_excluded: bool = False
    n_folds: int = 5
    fold: int = 0
    repeat: int = 0
    fold_by: str = "condition"
    control_shares: Any = None
    test_contexts: Any = None

    def __post_init__(self) -> None:
        plain_numbers(self)
        for name, valid in (("mode", MODES), ("fold_by", FOLDED)):
            if getattr(self, name) not in valid:
                raise ValueError(unknown_name(name, str(getattr(self, name)), valid))
        self._check_fold()
        object.__setattr__(self, "control_shares", _shares(self.control_shares))
        if not is_whole(self.seed, 0) or self.seed >= 2**32:
            msg = f"seed must be a whole number from 0 to 2**32 - 1; found {self.seed!r}"
            raise ValueError(msg)
        for name in ("train_gene_set_size", "combo_seen2_train_frac", "combo_single_split_test_set_fraction"):
            value = getattr(self, name)
            if not is_number(value) or not 0 <= value <= 1:
                msg = f"{name} is a share between 0 and 1; found {value!r}"
                raise ValueError(msg)

        if isinstance(self.test_contexts, str):
            object.__setattr__(self, "test_contexts", [self.test_contexts])
        for name in ("test_perts", "test_pert_genes", "test_contexts"):
            object.__setattr__(self, name, _plain_list(getattr(self, name)))
        if isinstance(self.split_dict, Mapping):
            plain = {part: _plain_list(names) for part, names in self.split_dict.items()}
            object.__setattr__(self, "split_dict", plain)

    def _check_fold(self) -> None:
        for name, least in (("n_folds", 2), ("fold", 0), ("repeat", 0)):
            value = getattr(self, name)
            if not is_whole(value, least):
                msg = f"{name} must be a whole number of at least {least}; found {value!r}"
                raise ValueError(msg)
        if self.fold >= self.n_folds:
            msg = f"fold must be from 0 to n_folds - 1 = {self.n_folds - 1}; found {self.fold}"
            raise ValueError(msg)

    def changed(self) -> list[str]:
        """Names of the arguments that differ from their defaults (seed aside)."""
        return [f.name for f in fields(self) if f.name != "seed" and getattr(self, f.name) != f.default]


def _shares(value: Any) -> list[float] | None:
    """Shares of the control cells for train, val and test."""
    if value is None:
        return None
    shares = (
        [float(share) for share in value]
        if isinstance(value, Iterable) and not isinstance(value, str)
        else []
    )
    if len(shares) != 3 or min(shares) < 0 or abs(sum(shares) - 1) > 1e-6 or shares[0] == 0:
        msg = f"control_shares are three shares (train, val, test) that add to 1, as 0.8, 0.1, 0.1; found {value!r}"
        raise ValueError(msg)
    return shares


def _plain_list(value: Any) -> Any:
    """Any collection of names as a list (a set in sorted order); text and None as they are."""
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


DrawFunction = Callable[[Labels, SplitArguments], Draw]


@dataclass(frozen=True)
class SplitKind:
    """A kind of split.

    Attributes
    ----------
    name : str
    draw : callable
        (labels, arguments) -> Draw.
    description : str
        What can be in the test part, what is held out.
    uses : frozenset of str
        Arguments that have an effect.
    parts : tuple of str
        Parts that it must fill.
    needs : str
        What a screen must have for it, said where a part stays empty.
    exact : bool
        Drawn as in strict mode in either mode (a kind that the published package lacks).
    """

    name: str
    draw: DrawFunction
    description: str
    uses: frozenset[str] = frozenset()
    parts: tuple[str, ...] = PARTS
    needs: str = ""
    exact: bool = False

    def draw_by(self, labels: Labels, arguments: SplitArguments) -> Draw:
        """Draw in the mode that the arguments ask for."""
        strict = STRICT.get(self.name) if arguments.mode == "strict" else None
        return (strict or self.draw)(labels, arguments)


SPLITS: Registry[SplitKind] = Registry("split")
STRICT: Registry[DrawFunction] = Registry("strict split")
"""How the kinds are drawn in strict mode, where that differs."""


def register_split(
    name: str,
    description: str,
    *,
    uses: tuple[str, ...] = (),
    parts: tuple[str, ...] = PARTS,
    needs: str = "",
    exact: bool = False,
) -> Callable[[DrawFunction], DrawFunction]:
    """Decorate a drawing function to add a kind of split."""

    def register(draw: DrawFunction) -> DrawFunction:
        SPLITS.add(name, SplitKind(name, draw, description, frozenset(uses), parts, needs, exact))
        return draw

    return register


def register_strict(name: str) -> Callable[[DrawFunction], DrawFunction]:
    """Decorate the function that draws a kind of split in strict mode."""

    def register(draw: DrawFunction) -> DrawFunction:
        return STRICT.add(name, draw)

    return register


def split_kind(name: str) -> SplitKind:
    """Look a kind of split up.

    Raises
    ------
    ValueError
        If there is none of that name; the nearest is named.
    """
    return SPLITS[name]
