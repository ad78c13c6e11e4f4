"""How the labels of a screen were written, so that a user's own spelling is understood where conditions are named."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gears.conditions import SEPARATOR, Condition

SIGNS = ("|", ";", ",", "_", "-")
"""Signs that join guides in columns of screens whose separator is not said."""


@dataclass(frozen=True)
class Spelling:
    """Names of the control, the separator, and labels that mean something else than they say, of one screen.

    Examples
    --------
    >>> spelling = Spelling(("NT",), "|", {"STAT1_g2": "STAT1+ctrl"})
    >>> [spelling.condition(label).name for label in ("A|NT", "NT", "STAT1_g2+B", ("A", "NT"))]
    ['A+ctrl', 'ctrl', 'B+STAT1', 'A+ctrl']
    """

    controls: tuple[str, ...] = ()
    sep: str | None = SEPARATOR
    labels: Mapping[str, str] = field(default_factory=dict)
    """Published label of each own label (a guide, say) that does not follow from controls and separator."""

    @classmethod
    def of(cls, controls: Iterable[str], sep: str | None, published: Mapping[str, str]) -> Spelling:
        """Of a screen, from the published form of each of its own labels.

        Another sign than `sep` that joins its combinations takes the place of `sep`.
        """
        labels: dict[str, str] = {}
        conditions = {own.strip(): Condition.parse(label) for own, label in published.items()}
        several = {own: set(condition.genes) for own, condition in conditions.items() if len(condition) > 1}
        for sign, (own, genes) in itertools.product((sep, *SIGNS), several.items()):
            if set(own.split(sign)) == genes:
                sep = sign
                break
        spelling = cls(tuple(controls), sep, labels)
        for *_, own in sorted(zip(map(len, conditions.values()), map(len, conditions), conditions, strict=True)):
            condition = conditions[own]
            if spelling._read(own) != condition:
                labels[own] = condition.name
        return spelling

    def condition(self, entry: Condition | str | Iterable[str], genes: Container[str] = ()) -> Condition:
        """The condition that a label, a list of genes or a Condition means; names in `genes` are not divided."""
        if isinstance(entry, Condition):
            return entry
        if isinstance(entry, str):
            if (label := self.labels.get(entry.strip())) is not None:
                return Condition.parse(label)
            condition = Condition.parse(entry)
            parts = self._divided(condition.genes[0], genes) if len(condition) == 1 else condition.genes
        else:
            condition = Condition.of(entry)
            parts = condition.genes
        known = [gene for gene in parts if gene not in self.controls]
        of_known = [Condition.parse(self.labels[gene]).genes if gene in self.labels else (gene,) for gene in known]
        return replace(condition, genes=tuple(gene for parts in of_known for gene in parts))

    def _divided(self, whole: str, genes: Container[str]) -> tuple[str, ...]:
        """Tokens that the screen's separator joins, or another sign tokens of which the screen knows each one."""
        if self._is_own(whole) or whole in genes:
            return (whole,)
        for sign in SIGNS:
            parts = tuple(part.strip() for part in whole.split(sign))
            if len(parts) > 1 and all(map(self._is_own, parts)):
                return parts
        return Condition.parse(whole, sep=self.sep).genes if self.sep and self.sep in whole else (whole,)

    def _is_own(self, token: str) -> bool:
        return token in self.controls or token in self.labels

    def _read(self, own: str) -> Condition | None:
        try:
            return self.condition(own)
        except ValueError:
            return None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"controls": list(self.controls), "sep": self.sep, "labels": dict(self.labels)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any] | None) -> Spelling:
        """Inverse of :meth:`to_dict`; of None the published spelling."""
        values = values or {}
        return cls(tuple(values.get("controls", ())), values.get("sep", SEPARATOR), dict(values.get("labels", {})))
