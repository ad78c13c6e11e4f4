"""Findings of a check: severity, number, an example, and the remedy."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One thing that a check found."""

    kind: str  # short stable name for programs, such as ``"missing-column"``
    what: str  # what was found, with its number and examples
    remedy: str = ""  # what to do about it ("" for a note)
    count: int = 1  # cells, genes, labels or conditions concerned
    example: str = ""  # one of the cells, genes, labels or conditions
    severity: str = "error"  # "error" (the screen, split or machine cannot be used), "warning", "note"

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}" if self.remedy else self.what

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def check(
    kind: str, cases: Collection[object], what: str, remedy: str = "", severity: str = "error", *, n: int | None = None
) -> list[Finding]:
    """The finding about some cases (cells, genes, labels, conditions); none where there is no case.

    Its example is the first of them, its number how many there are, or another number `n`.

    Examples
    --------
    >>> odd = [name for name in ("A", "B?") if not name.isalnum()]
    >>> check("odd-name", odd, f"{len(odd)} odd names", "rename them")[0]
    Finding(kind='odd-name', what='1 odd names', remedy='rename them', count=1, example='B?', severity='error')
    """
    if not len(cases):
        return []
    return [Finding(kind, what, remedy, len(cases) if n is None else n, str(next(iter(cases))), severity)]


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """Findings with severity error."""
    return [finding for finding in findings if finding.severity == "error"]


def refusal(head: str, findings: Iterable[Finding]) -> str | None:
    """A message that lists every error, or None where there is none."""
    problems = errors(findings)
    if not problems:
        return None
    lines = "\n".join(f"  - {finding}" for finding in problems)
    number = f" ({len(problems)} problems)" if len(problems) > 1 else ""
    return f"{head}{number}:\n{lines}"
