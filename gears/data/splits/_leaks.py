"""Looking for leaks in any split: this package's, a published or a custom one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from gears.conditions import CONTROL_LABEL, SEPARATOR, Condition
from gears.core._findings import Finding, check, errors, refusal
from gears.core._messages import shorten, suggestion
from gears.data.splits._registry import read_split_dict
from gears.data.splits._split import PARTS, Split, Subgroups, subgroup_name

if TYPE_CHECKING:
    from gears.data.screen._prepared import PreparedScreen

SPELLINGS = {"validation": "val", "valid": "val", "dev": "val", "training": "train", "holdout": "test"}


@dataclass(frozen=True)
class SplitReport:
    """What :func:`check_split` found: leaks and untrue labels are errors; warnings and notes do not spoil a result.

    `n_conditions` counts the perturbed conditions of each part.
    """

    findings: tuple[Finding, ...]
    n_conditions: dict[str, int]

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return not errors(self.findings)

    def __str__(self) -> str:
        sizes = ", ".join(f"{part} {n}" for part, n in self.n_conditions.items())
        lines = [f"perturbed conditions: {sizes}", "no leak found" if self.ok else "this split leaks:"]
        return "\n".join([*lines, *(f"  {finding.severity}: {finding}" for finding in self.findings)])

    def __repr__(self) -> str:
        return str(self)

    def raise_if_leaky(self) -> None:
        """Raise one ValueError that lists every error."""
        message = refusal("this split leaks", self.findings)
        if message:
            raise ValueError(message)


def check_split(
    split: Split | Mapping[str, Sequence[str]] | pd.DataFrame | str | Path,
    screen: PreparedScreen | Sequence[str] | None = None,
    *,
    condition_key: str = "condition",
    part_key: str = "split",
    ctrl_label: str = CONTROL_LABEL,
    sep: str = SEPARATOR,
) -> SplitReport:
    """Look for leaks and untrue labels.

    Conditions are compared as sets of genes, so that ``A+B`` in training and
    ``B+A`` in test, ``A+ctrl`` and ``ctrl+A``, or ``A + B`` with blanks are found.

    Parameters
    ----------
    split
        A :class:`Split`; a dict of part -> labels; a table with one row per cell or per label (``adata.obs``) that
        names condition and part; or a file of any of the first two (JSON, or a pickle of plain containers).
    screen
        A prepared screen or its labels: then unknown labels, and labels in no part, are reported too.
    condition_key, part_key
        Columns of a table.
    ctrl_label, sep
        As the split spells them.

    Returns
    -------
    SplitReport
        ``report.ok``, ``print(report)``, ``report.raise_if_leaky()``.

    Examples
    --------
    >>> report = check_split({"train": ["ctrl", "A+B"], "val": ["A+ctrl"], "test": ["B+A"]})
    >>> report.ok, report.findings[0].kind
    (False, 'condition-in-two-parts')
    """
    parts, subgroup, excluded, exact = _as_parts(split, condition_key, part_key)
    parsed, findings = _parsed(parts, ctrl_label, sep)
    findings += _leaks(parsed)
    findings += _control_findings(parsed)
    trained = {gene for condition in parsed.get("train", {}).values() for gene in condition.genes}
    findings += _subgroup_findings(subgroup, parsed, trained, exact)
    if screen is not None:
        labels = list(screen) if isinstance(screen, Sequence) else screen.labels
        findings += _screen_findings(parts, excluded, labels)
    counts = {
        part: len({condition for condition in names.values() if not condition.is_control})
        for part, names in parsed.items()
    }
    for part in [part for part, n in counts.items() if not n]:
        findings += check("empty-part", [part], f"{part!r} has no perturbed condition", severity="warning")
    return SplitReport(tuple(findings), counts)


def _as_parts(
    split: Any, condition_key: str, part_key: str
) -> tuple[dict[str, list[str]], Subgroups | None, list[str], bool]:
    """Labels per part, subgroups, labels said to be excluded, whether subgroups go by training alone."""
    if isinstance(split, (str, Path)):
        split = read_split_dict(split)
    if isinstance(split, Split):
        parts = {part: list(names) for part, names in split.parts.items()}
        return parts, split.subgroup, list(split.excluded), split.exact
    if isinstance(split, pd.DataFrame):
        return _from_table(split, condition_key, part_key), None, [], False
    if isinstance(split, Mapping):
        given = {SPELLINGS.get(str(part).lower(), str(part)): names for part, names in split.items()}
        if all(hasattr(names, "__iter__") and not isinstance(names, str) for names in given.values()):
            return {part: [str(name) for name in names] for part, names in given.items()}, None, [], False
    msg = (
        "check_split takes a Split, a dict {'train': [...], 'val': [...], 'test': [...]}, a table with a row per "
        f"cell or label, or a file; found {type(split).__name__}"
    )
    raise TypeError(msg)


def _from_table(table: pd.DataFrame, condition_key: str, part_key: str) -> dict[str, list[str]]:
    columns = [str(column) for column in table.columns]
    if part_key not in columns and "part" in columns:
        part_key = "part"
    for key in (condition_key, part_key):
        if key not in columns:
            hint = suggestion(key, columns, "columns")
            msg = f"the table has no column {key!r}; {hint}; name it with condition_key= or part_key="
            raise ValueError(msg)
    known = table[[condition_key, part_key]].dropna().astype(str).drop_duplicates()
    parts: dict[str, list[str]] = {}
    for part, names in known.groupby(part_key, sort=False)[condition_key]:
        parts.setdefault(SPELLINGS.get(str(part).lower(), str(part)), []).extend(names.tolist())
    parts.pop("excluded", None)
    return parts


def _parsed(
    parts: Mapping[str, Iterable[str]], ctrl_label: str, sep: str
) -> tuple[dict[str, dict[str, Condition]], list[Finding]]:
    """Condition of each label of each part, and labels that cannot be read."""
    parsed: dict[str, dict[str, Condition]] = {}
    findings: list[Finding] = []
    for part, names in parts.items():
        parsed[part] = {}
        bad = []
        for name in names:
            try:
                parsed[part][name] = Condition.parse(name, ctrl_label=ctrl_label, sep=sep)
            except ValueError:
                bad.append(name)
        what = f"{part!r} has {len(bad)} labels that cannot be read ({shorten(map(repr, bad))})"
        findings += check("unreadable-label", bad, what, f"write genes joined by {sep!r}")
        if part not in PARTS:
            what = f"part {part!r} is none of {', '.join(PARTS)}; compared all the same"
            findings += check("other-part", [part], what, severity="note")
    return parsed, findings


def _leaks(parsed: Mapping[str, Mapping[str, Condition]]) -> list[Finding]:
    """Conditions that are in two parts, under whatever spelling."""
    home: dict[Condition, dict[str, str]] = {}
    for part, names in parsed.items():
        for name, condition in names.items():
            if not condition.is_control:
                home.setdefault(condition, {}).setdefault(part, name)
    findings: list[Finding] = []
    shared: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for places in home.values():
        if len(places) > 1:
            shared.setdefault(tuple(places), []).append(places)
    for where, cases in shared.items():
        shown = [" = ".join(f"{name!r} ({part})" for part, name in places.items()) for places in cases]
        what = f"{len(cases)} conditions are in {' and '.join(map(repr, where))}: {shorten(shown, 5)}"
        remedy = "keep all spellings and all cells of a condition in one part"
        findings += check("condition-in-two-parts", shown, what, remedy)
    return findings


def _control_findings(parsed: Mapping[str, Mapping[str, Condition]]) -> list[Finding]:
    held = [part for part, names in parsed.items() if any(c.is_control for c in names.values())]
    if "train" in parsed and "train" not in held:
        what = f"the control is not in 'train' (it is in {shorten(map(repr, held)) or 'no part'})"
        remedy = "predictions start from control cells: put it there"
        return check("control-not-in-train", [CONTROL_LABEL], what, remedy, "warning")
    if len(held) > 1:
        what = f"control cells are in {' and '.join(map(repr, held))}"
        remedy = "the same control cells then serve as input of training and as reference of the test, as published"
        return check("control-shared", [CONTROL_LABEL], what, remedy, "note", n=len(held))
    return []


def _subgroup_findings(
    subgroup: Subgroups | None, parsed: Mapping[str, Mapping[str, Condition]], trained: set[str], exact: bool
) -> list[Finding]:
    """Labels whose subgroup says more or less than training has seen."""
    findings: list[Finding] = []
    for key, groups in (subgroup or {}).items():
        part = key.removesuffix("_subgroup")
        untrue = [
            f"{name!r} is listed as {group!r}, but is {subgroup_name(condition, trained)!r}"
            for group, names in groups.items()
            for name in names
            if (condition := parsed.get(part, {}).get(name)) is not None and subgroup_name(condition, trained) != group
        ]
        shown = shorten(untrue, 3)
        what = f"{len(untrue)} labels of {part!r} are in a subgroup that training does not bear out: {shown}"
        remedy = "mode='strict' counts genes of training alone as seen; the published kinds count validation's too"
        findings += check("untrue-subgroup", untrue, what, remedy, "error" if exact else "warning")
    return findings


def _screen_findings(
    parts: Mapping[str, Sequence[str]], excluded: Sequence[str], labels: Sequence[str]
) -> list[Finding]:
    named = {name for names in parts.values() for name in names}
    unknown = sorted(named - set(labels))
    what = f"{len(unknown)} labels are not in the screen: {shorten(unknown)}"
    findings = check("unknown-label", unknown, what, "spell them as the screen does")
    lost = [label for label in labels if label not in named and label not in set(excluded)]
    what = f"{len(lost)} labels of the screen are in no part: {shorten(lost)}"
    return findings + check("in-no-part", lost, what, severity="warning")
