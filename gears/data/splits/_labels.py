"""What the splits need to know of a screen's labels."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from gears.conditions import Condition, conditions_of
from gears.core._messages import unknown_name
from gears.data.screen._prepared import PreparedScreen


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
        return sum(gene in genes for gene in self.condition[name].genes)

    def resolve(self, name: str, kind: str = "condition") -> list[str]:
        """Every label of the condition that `name` spells in any way; ValueError with near matches if there is none."""
        condition = self.condition[name] if name in self.condition else Condition.of(name)
        found = [label for label in self.names if self.condition[label] == condition]
        if not found:
            raise ValueError(unknown_name(kind, name, self.names))
        return found


def names_from(value: str | Sequence[str] | None, valid: Collection[str], kind: str) -> list[str] | None:
    """A list of names from a list, one name, or names joined by ``_`` (as published).

    ValueError if a name is not valid (near matches are named), or the list is empty.
    """
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
