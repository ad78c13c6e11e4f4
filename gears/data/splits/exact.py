"""Draws that the strict splits share: without replacement, exact numbers, no gene left untrained.

A strict draw looks at conditions, not at labels: all spellings of a condition
go together from the start. Genes count as seen where a *training* condition
perturbs them, after validation was taken out too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from gears.conditions import Condition
from gears.data.splits.labels import Labels
from gears.data.splits.registry import Draw

VALIDATION_SHARE = 0.1


@dataclass(frozen=True)
class Conditions:
    """The perturbed conditions of a screen, without regard to spelling, in order of first appearance."""

    labels: Labels
    all: tuple[Condition, ...]

    @classmethod
    def of(cls, labels: Labels) -> Conditions:
        """Conditions behind labels."""
        return cls(labels, tuple(dict.fromkeys(labels.condition[name] for name in labels.perturbed)))

    @property
    def genes(self) -> list[str]:
        """Every perturbed gene, sorted."""
        return genes_of(self.all)

    def spelled(self, chosen: Collection[Condition]) -> list[str]:
        """Every label of the chosen conditions, in the screen's order."""
        wanted = set(chosen)
        return [name for name in self.labels.names if self.labels.condition[name] in wanted]

    def draw(
        self, test: Collection[Condition], val: Collection[Condition], excluded: dict[Condition, str] | None
    ) -> Draw:
        """Parts with everything else, and the control, in train."""
        excluded = excluded or {}
        gone = {*test, *val, *excluded}
        train = [condition for condition in self.all if condition not in gone]
        return Draw(
            parts={
                "train": self.spelled([*train, Condition()]),
                "val": self.spelled(val),
                "test": self.spelled(test),
            },
            excluded={name: excluded[self.labels.condition[name]] for name in self.spelled(excluded)},
        )


def generator(seed: int, *stage: int) -> np.random.Generator:
    """A stream of random numbers of its own for each stage of a draw."""
    return np.random.default_rng([seed, *stage])


def genes_of(conditions: Iterable[Condition]) -> list[str]:
    """Every gene of the conditions, sorted."""
    return sorted({gene for condition in conditions for gene in condition.genes})


def n_of(share: float, total: int) -> int:
    """A share of a number, rounded to the nearest (half up); at least 1 where the share is above 0."""
    return min(max(int(share * total + 0.5), int(share > 0)), total)


def pick(rng: np.random.Generator, candidates: Sequence, n: int) -> list:
    """Exactly n of the candidates, each at most once, in their own order."""
    chosen = np.sort(rng.permutation(len(candidates))[:n])
    return [candidates[i] for i in chosen]


def touched(conditions: Iterable[Condition], genes: Collection[str]) -> list[Condition]:
    """Conditions that perturb at least one of the genes."""
    wanted = set(genes)
    return [condition for condition in conditions if not wanted.isdisjoint(condition.genes)]


def pick_keeping_genes(
    rng: np.random.Generator, candidates: Sequence[Condition], rest: Iterable[Condition], n: int
) -> list[Condition]:
    """Up to n candidates such that each of their genes still occurs among `rest` (which holds the candidates).

    Fewer than n only where no further candidate could go without taking a gene out of training.
    """
    left = Counter(gene for condition in rest for gene in condition.genes)
    chosen: list[Condition] = []
    for i in rng.permutation(len(candidates)):
        condition = candidates[i]
        if len(chosen) == n:
            break
        if all(left[gene] > 1 for gene in condition.genes):
            left.subtract(condition.genes)
            chosen.append(condition)
    wanted = set(chosen)
    return [condition for condition in candidates if condition in wanted]


def without(conditions: Iterable[Condition], *gone: Collection[Condition]) -> list[Condition]:
    """Conditions in none of the collections."""
    left_out = {condition for part in gone for condition in part}
    return [condition for condition in conditions if condition not in left_out]
