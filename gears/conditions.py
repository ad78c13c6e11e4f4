"""Conditions: the genes that are perturbed in a cell, and their nodes in the perturbation graph.

The only module that splits a label. A condition is a *set* of perturbed genes; the empty set is the
control. Screens write one condition in several ways ("A+ctrl", "ctrl+A", " A + ctrl "): all of them
parse to the same :class:`Condition`, whose canonical label is :attr:`Condition.name`. In a screen with
contexts or perturbation types the label has these as well: "A+B [CRISPRa] @ K562".
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gears.core._messages import brief, count

CONTROL_LABEL = "ctrl"
SEPARATOR = "+"
AT = " @ "
"""Separates the context in a label."""
FEWEST_COMBINATIONS = 8
"""Measured combinations that show how far effects add up; with fewer the kind of an unmeasured pair is undetermined."""
OTHER_SIGNS = ("_", ",", ";", "|", "/", "&", ":", " ", "-")
"""Signs that join genes elsewhere."""
_PLACED = re.compile(r"^(?P<genes>.*?)(?: \[(?P<kind>[^\[\]]+)\])?(?: @ (?P<context>.+))?$", re.DOTALL)


@dataclass(frozen=True, order=True)
class Condition:
    """A set of perturbed genes in canonical (sorted, unique) order.

    Parameters
    ----------
    genes
        Perturbed gene symbols; an empty tuple is the control.
    context
        Cell type, donor, ... of a screen with contexts; "" elsewhere.
    kind
        Type of perturbation of a screen that names several; "" elsewhere and for controls.

    Examples
    --------
    >>> Condition.parse("KLF1+AHR")
    Condition('AHR+KLF1')
    >>> Condition.parse("ctrl+AHR") == Condition.parse("AHR+ctrl") == Condition(("AHR",))
    True
    >>> Condition.parse("ctrl").is_control
    True
    >>> Condition.parse("KLF1+ctrl [CRISPRa] @ K562")
    Condition('KLF1+ctrl [CRISPRa] @ K562')
    """

    genes: tuple[str, ...] = ()
    context: str = ""
    kind: str = ""

    def __post_init__(self) -> None:
        genes = tuple(sorted(set(self.genes)))
        for gene in genes:
            if not isinstance(gene, str) or gene != gene.strip() or not gene:
                msg = f"a condition's genes are non-empty strings without outer blanks; found {brief(gene)}"
                raise ValueError(msg)
        object.__setattr__(self, "genes", genes)

    @classmethod
    def parse(cls, label: str, *, ctrl_label: str = CONTROL_LABEL, sep: str = SEPARATOR) -> Condition:
        """Read a label such as ``"A+B"``, ``"A+ctrl"``, ``"ctrl+A"`` or ``"ctrl"``.

        Parameters
        ----------
        label
            The label as written in the screen; blanks around tokens are ignored.
        ctrl_label
            The token (never a substring) that means "not perturbed".
        sep
            Separator of the genes of a condition.

        Raises
        ------
        ValueError
            If the label is empty or has an empty token ("A+").
        """
        if not isinstance(label, str):
            msg = f"a condition label is a string such as 'A+B' or 'A+{ctrl_label}'; found {brief(label)}"
            raise ValueError(msg)
        genes, kind, context = _parts(label)
        tokens = [token.strip() for token in genes.split(sep)]
        if not all(tokens):
            msg = (
                f"condition label {label!r} has an empty gene name; expected genes joined by {sep!r}, "
                f"such as 'A{sep}B' or 'A{sep}{ctrl_label}'"
            )
            raise ValueError(msg)
        return cls(tuple(token for token in tokens if token != ctrl_label), context, kind)

    @classmethod
    def of(cls, value: Condition | str | Iterable[str]) -> Condition:
        """A condition from a Condition, a label, or an iterable of gene names (control tokens allowed)."""
        if isinstance(value, Condition):
            return value
        if isinstance(value, str):
            return cls.parse(value)
        genes = list(value) if isinstance(value, Iterable) else [value]
        if not all(isinstance(gene, str) for gene in genes):
            msg = f"a condition is a label such as 'A+B' or a list of genes such as ['A', 'B']; found {brief(value)}"
            raise TypeError(msg)
        return cls(tuple(gene.strip() for gene in genes if gene.strip() != CONTROL_LABEL))

    @property
    def is_control(self) -> bool:
        """Whether nothing is perturbed."""
        return not self.genes

    @property
    def name(self) -> str:
        """Canonical label: ``"ctrl"``, ``"A+ctrl"`` or ``"A+B"`` (genes sorted), then type and context."""
        genes = self.genes if len(self.genes) > 1 else (*self.genes, CONTROL_LABEL)
        return SEPARATOR.join(genes) + self.suffix

    @property
    def key(self) -> str:
        """Key of predictions in cell-gears: genes joined by ``"_"`` (``"ctrl"`` for the control)."""
        return ("_".join(self.genes) or CONTROL_LABEL) + self.suffix

    @property
    def suffix(self) -> str:
        """End of the label after the genes: ``" [type] @ context"``, or "" without both."""
        return (f" [{self.kind}]" if self.kind else "") + (f"{AT}{self.context}" if self.context else "")

    @property
    def plain(self) -> Condition:
        """The condition without context and type."""
        return Condition(self.genes)

    def at(self, context: str = "", kind: str = "") -> Condition:
        """The same genes in a context and with a perturbation type (none for the control)."""
        return replace(self, context=context, kind=kind if self.genes else "")

    def __len__(self) -> int:
        return len(self.genes)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Condition({self.name!r})"


def conditions_of(labels: Iterable[str], known: Mapping[str, Condition] | None = None) -> dict[str, Condition]:
    """Condition of each label; labels that are `known` already are not parsed again.

    Examples
    --------
    >>> conditions_of(["ctrl", "B+A"], known={"ctrl": Condition()})
    {'ctrl': Condition('ctrl'), 'B+A': Condition('A+B')}
    """
    known = known or {}
    return {label: known[label] if label in known else Condition.parse(label) for label in labels}


def joined_otherwise(name: str, genes: Container[str]) -> Condition | None:
    """The condition that a name means if another sign than "+" joins its genes, all of which must be among `genes`.

    Examples
    --------
    >>> joined_otherwise("KLF1_AHR", {"AHR", "KLF1"}), joined_otherwise("HLA-A", {"AHR", "KLF1"})
    (Condition('AHR+KLF1'), None)
    """
    for sign in OTHER_SIGNS:
        parts = name.split(sign)
        if len(parts) > 1 and all(part.strip() in genes for part in parts):
            return Condition.of(parts)
    return None


def split_label(label: str) -> list[str]:
    """Tokens of a label in the screen's own order, control tokens kept (for published draws over labels).

    Examples
    --------
    >>> split_label("ctrl+AHR")
    ['ctrl', 'AHR']
    """
    return [token.strip() for token in _parts(label)[0].split(SEPARATOR)]


def _parts(label: str) -> tuple[str, str, str]:
    """Genes, type and context of a label; the last two are "" where the label has none."""
    if AT not in label and not label.endswith("]"):
        return label, "", ""
    match = _PLACED.match(label)
    assert match is not None
    return match["genes"], match["kind"] or "", match["context"] or ""


class NodeSet(tuple[int, ...]):
    """Nodes of the perturbation graph with the number of a context and of a perturbation type.

    A plain sequence of nodes means context 0 and type 0, so that code without contexts accepts both.

    Examples
    --------
    >>> one = NodeSet([3, 5], context=1)
    >>> list(one), one.context, one.kind
    ([3, 5], 1, 0)
    """

    context: int
    kind: int

    def __new__(cls, nodes: Iterable[int] = (), *, context: int = 0, kind: int = 0) -> NodeSet:
        node_set = super().__new__(cls, nodes)
        node_set.context, node_set.kind = context, kind
        return node_set

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


def check_one_change(conditions: Sequence[Condition], what: str) -> None:
    """ValueError unless these, in which one query is predicted, are one perturbed condition in one context."""
    condition = conditions[0]
    if condition.is_control:
        msg = f"the control has no change to {what}; give a perturbed condition, such as 'A+ctrl' or 'A+B'"
        raise ValueError(msg)
    if len(conditions) > 1:
        n = count(len(conditions), "context or type", "contexts or types")
        msg = f"{condition.plain.name} is predicted in {n} of perturbation; name one, such as {condition.name!r}"
        raise ValueError(msg)


def show_departures(conditions: Iterable[Sized]) -> bool:
    """Whether enough of the conditions, each a set of genes, are combinations to show how far effects add up."""
    return sum(len(genes) > 1 for genes in conditions) >= FEWEST_COMBINATIONS
