"""A condition as network and prior see it: perturbed nodes, and where and how they are perturbed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np


class NodeSet(tuple[int, ...]):
    """Nodes of the perturbation graph with the number of a context and of a perturbation type.

    A plain sequence of nodes stands for context 0 and type 0, so that code that knows of
    neither takes both.

    Examples
    --------
    >>> one = NodeSet([3, 5], context=1)
    >>> list(one), one.context, one.kind
    ([3, 5], 1, 0)
    """

    context: int
    kind: int

    def __new__(cls, nodes: Iterable[int] = (), *, context: int = 0, kind: int = 0) -> NodeSet:
        made = super().__new__(cls, nodes)
        made.context, made.kind = context, kind
        return made

    def __getnewargs_ex__(self) -> tuple[tuple[list[int]], dict[str, int]]:  # type: ignore[override]
        return (list(self),), {"context": self.context, "kind": self.kind}

    def __repr__(self) -> str:
        return f"NodeSet({list(self)}, context={self.context}, kind={self.kind})"


def contexts_of(sets: Sequence[Any]) -> np.ndarray:
    """Number of each set's context, (U,) int64; 0 for plain sequences."""
    return np.array([getattr(nodes, "context", 0) for nodes in sets], dtype=np.int64)


def kinds_of(sets: Sequence[Any]) -> np.ndarray:
    """Number of each set's perturbation type, (U,) int64; 0 for plain sequences."""
    return np.array([getattr(nodes, "kind", 0) for nodes in sets], dtype=np.int64)
