"""Contexts and types of perturbation of a model: names, and the control of each context."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gears.conditions import Condition, NodeSet
from gears.core._messages import unknown_name

ACTIVATION = ("crispra", "activation", "overexpression", "sunact", "oe")
"""Words in the name of a perturbation type that raises expression; its sign is -1 beside types that lower it."""


def type_signs(kinds: Sequence[str]) -> tuple[float, ...]:
    """Sign that the effects of each type of perturbation are expected to have; 1 for a single one."""
    if len(kinds) < 2:
        return (1.0,)
    return tuple(-1.0 if any(word in name.lower() for word in ACTIVATION) else 1.0 for name in kinds)


@dataclass(frozen=True)
class ModelContexts:
    """Contexts and types of a model that has any."""

    # contexts, kinds: names, as the screen has them; empty where it is not divided by them
    contexts: tuple[str, ...]
    kinds: tuple[str, ...]
    control_mean_KG: np.ndarray  # mean of each context's control cells, (K, G), one row without contexts
    is_measured_KG: np.ndarray | None = None  # which genes each context measures, bool; None where all measure all

    @property
    def is_plain(self) -> bool:
        """Whether there is neither a context nor a type to name."""
        return not self.contexts and not self.kinds

    def placed(
        self, conditions: Iterable[Condition], context: str | Sequence[str] | None, kind: str | None
    ) -> tuple[Condition, ...]:
        """Conditions in the requested contexts (all by default) and by the requested type (all by default).

        ValueError for a context or type that the model does not know.
        """
        contexts = self._named("context", context, self.contexts)
        kinds = self._named("perturbation type", kind, self.kinds)
        distinct: dict[Condition, None] = {}
        for condition in conditions:
            where = (condition.context,) if condition.context else contexts
            how = (condition.kind,) if condition.kind else kinds
            self._named("context", where if condition.context else None, self.contexts)
            self._named("perturbation type", how if condition.kind else None, self.kinds)
            distinct |= dict.fromkeys(condition.plain.at(one, by) for one in where for by in how)
        return tuple(distinct)

    @staticmethod
    def _named(what: str, given: str | Sequence[str] | None, known: tuple[str, ...]) -> tuple[str, ...]:
        names = (given,) if isinstance(given, str) else tuple(known if given is None else given)
        for name in names:
            if name not in known:
                raise ValueError(unknown_name(what, str(name), list(known) or ["none: the model has one"]))
        return names or ("",)

    def numbers(self, condition: Condition) -> tuple[int, int]:
        """Numbers of a condition's context and type; ValueError where it names none, or one that is unknown."""
        self._named("context", condition.context or None, self.contexts)
        if self.contexts and not condition.context:
            known = ", ".join(self.contexts)
            msg = f"condition {condition.name!r} does not say in which context; choose one of {known}"
            raise ValueError(msg)
        context = self.contexts.index(condition.context) if self.contexts else 0
        kind = self.kinds.index(condition.kind) if condition.kind in self.kinds else 0
        return context, kind

    def node_sets(self, conditions: Sequence[Condition], nodes: Sequence[Sequence[int]]) -> list[NodeSet]:
        sets = []
        for condition, members in zip(conditions, nodes, strict=True):
            context, kind = self.numbers(condition)
            sets.append(NodeSet(members, context=context, kind=kind))
        return sets

    def control_means(self, conditions: Sequence[Condition]) -> np.ndarray:
        """Control mean of each condition's context, (U, G)."""
        return self.control_mean_KG[[self.numbers(condition)[0] for condition in conditions]]

    def is_measured(self, conditions: Sequence[Condition]) -> np.ndarray | None:
        """Which genes are measured in each condition's context, (U, G) bool; None where all are."""
        if self.is_measured_KG is None:
            return None
        return self.is_measured_KG[[self.numbers(condition)[0] for condition in conditions]]

    def to_dict(self) -> dict[str, Any]:
        """Names as plain values for JSON; the means go into a file of arrays."""
        return {"contexts": list(self.contexts), "kinds": list(self.kinds)}

    @classmethod
    def from_dict(
        cls, names: Mapping[str, Any], control_mean_KG: np.ndarray, is_measured_KG: np.ndarray | None = None
    ) -> ModelContexts:
        return cls(tuple(names["contexts"]), tuple(names["kinds"]), control_mean_KG, is_measured_KG)
