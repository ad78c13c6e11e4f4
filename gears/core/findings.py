"""What a check found: how bad, how often, an example, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One thing that a check found.

    Attributes
    ----------
    kind : str
        Short name of the kind, such as ``"missing-column"``; stable, for programs.
    what : str
        What was found, with its number and examples.
    remedy : str
        What to do about it ("" for a note).
    count : int
        Cells, genes, labels or conditions concerned.
    example : str
        One of them.
    severity : str
        "error" (the screen or split cannot be used), "warning", "note".
    """

    kind: str
    what: str
    remedy: str = ""
    count: int = 1
    example: str = ""
    severity: str = "error"

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            msg = f"severity is one of {', '.join(SEVERITIES)}; found {self.severity!r}"
            raise ValueError(msg)

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}" if self.remedy else self.what

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """Those that stop the work."""
    return [finding for finding in findings if finding.severity == "error"]


def refusal(head: str, findings: Iterable[Finding]) -> str | None:
    """A message that lists every error, or None where there is none."""
    found = errors(findings)
    if not found:
        return None
    lines = "\n".join(f"  - {finding}" for finding in found)
    return f"{head} ({len(found)} problem{'s' * (len(found) > 1)}):\n{lines}"
