"""A split: which conditions train, validate and test a model, and which control cells each part uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gears.conditions import CONTROL_LABEL, Condition, conditions_of
from gears.core._messages import count, html_of, shorten, unknown_name
from gears.files._paths import check_output, reading, user_path
from gears.files.formats import content_hash, read_json, write_json

if TYPE_CHECKING:
    import pandas as pd

    from gears.data.screen._prepared import PreparedScreen

PARTS = ("train", "val", "test")
PART_NAMES = {"train": "training", "val": "validation", "test": "test"}
FORMAT_VERSION = 1
FIELDS = ("name", "seed", "arguments", "parts", "subgroup", "excluded")
"""What a file says, beside `exact`."""
EXACT_BEFORE = ("gene_held_out", "cross_validation", "context_held_out", "unit_held_out")
"""Exact split types, for split files without that entry."""
Subgroups = dict[str, dict[str, list[str]]]
STREAM = 7
"""Part of the seed of the draw of control cells, so that it shares nothing with the split's own."""


@dataclass(frozen=True)
class Split:
    """Parts of a screen by condition; no condition is in two parts.

    Attributes
    ----------
    name : str
        Kind of split, such as ``"simulation"``.
    seed : int
    arguments : dict
        What else decided the draw.
    parts : dict of str to tuple of str
        "train", "val", "test" (some of them for no_test and no_split) -> labels
        as the screen spells them, in its order.
    subgroup : dict or None
        ``{"test_subgroup": {name: labels}, "val_subgroup": ...}``.
    excluded : dict of str to str
        Labels in no part, with the reason.
    exact : bool
        Whether subgroups are counted from the training part alone (strict mode, and split types that
        cell-gears lacks).
    parsed : mapping of str to Condition, optional
        Conditions of labels that were parsed before; not kept.
    """

    name: str
    seed: int
    arguments: dict[str, Any]
    parts: dict[str, tuple[str, ...]]
    subgroup: Subgroups | None = None
    excluded: dict[str, str] = field(default_factory=dict)
    exact: bool = False
    parsed: InitVar[Mapping[str, Condition] | None] = None
    _conditions: dict[str, dict[str, Condition]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self, parsed: Mapping[str, Condition] | None) -> None:
        object.__setattr__(self, "parts", {part: tuple(labels) for part, labels in self.parts.items()})
        home: dict[Condition, str] = {}
        for part, labels in self.parts.items():
            if part not in PARTS:
                raise ValueError(unknown_name("part of a split", part, PARTS))
            self._conditions[part] = conditions_of(labels, parsed)
            for condition in self._conditions[part].values():
                other = home.setdefault(condition, part)
                if other != part:
                    msg = f"condition {condition.name!r} is in both {other!r} and {part!r} of the split"
                    raise ValueError(msg)

    def __eq__(self, other: object) -> bool:
        """Equal to a split that says the same, and (as published, where a split is its name) to its name."""
        if isinstance(other, str):
            return self.name == other
        return isinstance(other, Split) and vars(self) == vars(other)

    def __str__(self) -> str:
        return self.name

    def conditions(self, part: str) -> list[Condition]:
        """Distinct conditions of a part, in its order; the control only if it is in the part."""
        if part not in self.parts:
            raise ValueError(unknown_name("part of this split", part, list(self.parts)))
        return list(dict.fromkeys(self._conditions[part].values()))

    def sizes(self) -> str:
        """Perturbed conditions of each part, in words."""
        counts = [f"{len(perturbed_in(self, part))} {PART_NAMES[part]}" for part in self.parts]
        return f"{', '.join(counts)} conditions"

    def check_labels(self, labels: Iterable[str]) -> None:
        """Raise ValueError where the split names labels that a screen lacks: it was made for another one."""
        known = set(labels)
        if unknown := [
            label for names in (*self.parts.values(), self.excluded) for label in names if label not in known
        ]:
            labels = count(len(unknown), "label")
            msg = (
                f"the split {self.name!r} names {labels} that the screen lacks ({shorten(unknown)}); "
                "it was made for another screen: draw it again, or give its parts with split='custom'"
            )
            raise ValueError(msg)

    def subgroup_of(self, part: str) -> dict[str, str]:
        """Subgroup of each label of a part ("" where it has none)."""
        groups = (self.subgroup or {}).get(f"{part}_subgroup", {})
        return {label: name for name, labels in groups.items() for label in labels}

    def subgroup_by_condition(self, part: str) -> dict[Condition, str]:
        """Subgroup of each condition of a part that has one."""
        groups = self.subgroup_of(part)
        conditions = conditions_of(groups, self._conditions.get(part))
        return {conditions[label]: name for label, name in groups.items()}

    @property
    def hash(self) -> str:
        """Hash of everything that the split says; `exact` follows from the rest."""
        content = self.to_dict()
        del content["exact"]
        return content_hash(content)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        plain = {name: deepcopy(getattr(self, name)) for name in (*FIELDS, "exact")}
        plain["parts"] = {part: list(labels) for part, labels in self.parts.items()}
        return plain | {"format_version": FORMAT_VERSION}

    @classmethod
    def from_dict(cls, plain: dict[str, Any], parsed: Mapping[str, Condition] | None = None) -> Split:
        """The reverse of :meth:`to_dict`; labels that were `parsed` before are not parsed again.

        ValueError if it is no split of this format version.
        """
        if not isinstance(plain, dict) or plain.get("format_version") != FORMAT_VERSION:
            version = plain.get("format_version") if isinstance(plain, dict) else type(plain).__name__
            msg = f"expected a split of format version {FORMAT_VERSION}, found {version}; prepare it again"
            raise ValueError(msg)
        missing = [name for name in FIELDS if name not in plain]
        if missing:
            msg = f"a split needs {', '.join(FIELDS)}; missing: {', '.join(missing)}"
            raise ValueError(msg)
        strict = isinstance(plain["arguments"], dict) and plain["arguments"].get("mode") == "strict"
        exact = plain.get("exact", strict or plain["name"] in EXACT_BEFORE)
        return cls(**{name: plain[name] for name in FIELDS}, exact=bool(exact), parsed=parsed)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the split as JSON with its hash; a file that is there is replaced only with `overwrite`."""
        check_output(path, overwrite)
        return write_json(path, self.to_dict() | {"hash": self.hash})

    @classmethod
    def load(cls, path: str | Path, parsed: Mapping[str, Condition] | None = None) -> Split:
        """Read a split written by :meth:`save`; labels that were `parsed` before are not parsed again.

        Raises
        ------
        FileNotFoundError, ValueError
            If there is none, or the file was changed since it was written.
        """
        plain = read_json(path)
        with reading(user_path(path), "a split", "it may be damaged: draw the split again"):
            split = cls.from_dict(plain, parsed)
        if plain.get("hash", split.hash) != split.hash:
            msg = (
                f"{path} was changed after it was written (its hash does not fit); draw the split again, or give the "
                "parts with split='custom' and split_dict_path="
            )
            raise ValueError(msg)
        return split

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(labels)} {part}" for part, labels in self.parts.items())
        return f"Split({self.name!r}, seed {self.seed}: {sizes}, {len(self.excluded)} excluded)"

    def _repr_html_(self) -> str:
        import pandas as pd

        rows: list[tuple[str, str, int]] = []
        for part, labels in self.parts.items():
            groups = self.subgroup_of(part)
            counts = Counter(groups.get(label, "") for label in labels)
            rows += [(part, group, n) for group, n in counts.items()]
        return html_of(self, pd.DataFrame(rows, columns=["part", "subgroup", "conditions"]))

    def summary(self, screen: PreparedScreen) -> pd.DataFrame:
        """One row per label: condition, part, subgroup, n_cells, reason (for excluded labels)."""
        import pandas as pd

        n_cells = dict(zip(screen.labels, screen.label_cells.tolist(), strict=True))
        rows = []
        for part, labels in self.parts.items():
            groups = self.subgroup_of(part)
            rows += [(label, part, groups.get(label, ""), n_cells[label], "") for label in labels]
        rows += [(label, "excluded", "", n_cells[label], reason) for label, reason in self.excluded.items()]
        return pd.DataFrame(rows, columns=["condition", "part", "subgroup", "n_cells", "reason"])


def subgroup_name(condition: Condition, seen_genes: Collection[str]) -> str:
    """Name of how many genes of a condition were seen; the one function that names subgroups.

    Examples
    --------
    >>> subgroup_name(Condition.parse("A+B"), {"A"})
    'combo_seen1'
    >>> subgroup_name(Condition.parse("A+B+C"), {"A", "C"})
    'combo_seen2_of_3'
    >>> subgroup_name(Condition.parse("A+ctrl"), {"B"})
    'unseen_single'
    """
    if condition.is_control:
        return CONTROL_LABEL
    seen = sum(gene in seen_genes for gene in condition.genes)
    if len(condition) == 1:
        return "seen_single" if seen else "unseen_single"
    if len(condition) == 2:
        return f"combo_seen{seen}"
    return f"combo_seen{seen}_of_{len(condition)}"


def subgroup_names(conditions: Sequence[Condition], fitted: Iterable[Condition]) -> list[str]:
    """Subgroup of each condition, counted from the genes of the conditions that a model was fitted to.

    Where some of them are in contexts that it was fitted to and others are not, the subgroups are the situations
    "unseen_gene", "unseen_context" and "unseen_gene_and_context" ("seen": neither is new).

    Examples
    --------
    >>> conditions = [Condition((gene,), line) for line in ("L1", "L2") for gene in ("A", "B")]
    >>> subgroup_names(conditions, conditions[:1])
    ['seen', 'unseen_gene', 'unseen_context', 'unseen_gene_and_context']
    """
    known = list(fitted)
    seen, contexts = {gene for condition in known for gene in condition.genes}, {one.context for one in known}
    is_new = [one.context not in contexts for one in conditions if not one.is_control]
    if all(is_new) or not any(is_new):
        return [subgroup_name(condition, seen) for condition in conditions]
    return [CONTROL_LABEL if one.is_control else _situation(one, seen, contexts) for one in conditions]


def _situation(condition: Condition, seen_genes: Collection[str], seen_contexts: Collection[str]) -> str:
    is_new = (not set(condition.genes) <= set(seen_genes), condition.context not in seen_contexts)
    new = [name for name, unseen in zip(("gene", "context"), is_new, strict=True) if unseen]
    return f"unseen_{'_and_'.join(new)}" if new else "seen"


def perturbed_in(split: Split | None, part: str) -> list[Condition]:
    """Perturbed conditions of a part of a split; none where it has no such part."""
    if split is None or part not in split.parts:
        return []
    return [condition for condition in split.conditions(part) if not condition.is_control]


def held_out_by(split: Split) -> str:
    """Type of a split; of a custom one the type that holds out what its test conditions are.

    ``context_held_out`` where no condition of their contexts trains, ``unit_held_out`` where at least half of the
    others train in another context.
    """
    test, train = (perturbed_in(split, part) for part in ("test", "train"))
    if split.name != "custom" or not test:
        return split.name
    contexts, genes = {one.context for one in train}, {one.genes for one in train}
    here = [one for one in test if one.context in contexts]
    if not here:
        return "context_held_out"
    return "unit_held_out" if 2 * sum(one.genes in genes for one in here) >= len(here) else split.name


def control_parts(screen: PreparedScreen, split: Split) -> dict[str, np.ndarray]:
    """Control cells of each part, where the split divides them (``control_shares``); {} where it does not.

    The control cells of every experimental batch that controls are matched by are divided by the same shares. Cell
    numbers of `screen` ascend; no cell is in two parts. ValueError if there are too few control cells for 2 in each
    part (of each batch).
    """
    shares = split.arguments.get("control_shares")
    if shares is None:
        return {}
    cells, key = screen.control_cells, [split.seed, STREAM]
    if len(screen.batches) == 1:
        return _dealt(cells, shares, key)
    cell_batch = screen.cell_batch[cells]
    dealt = [
        _dealt(cells[cell_batch == batch], shares, [*key, batch], f" of {screen.batches[batch]}")
        for batch in np.unique(cell_batch).tolist()
    ]
    return {part: np.sort(np.concatenate([own[part] for own in dealt])) for part in dealt[0]}


def _dealt(cells: np.ndarray, shares: Sequence[float], key: Sequence[int], where: str = "") -> dict[str, np.ndarray]:
    """Some control cells by part, drawn by a key."""
    order = np.random.default_rng(key).permutation(len(cells))
    wanted = {part: share for part, share in zip(("train", "val", "test"), shares, strict=True) if share > 0}
    bounds = np.concatenate(([0], np.rint(np.cumsum(list(wanted.values())) * len(cells)))).astype(int)
    parts = {part: np.sort(cells[order[bounds[i] : bounds[i + 1]]]) for i, part in enumerate(wanted)}
    small = [f"{part} {len(own)}" for part, own in parts.items() if len(own) < 2]
    if small:
        msg = (
            f"control_shares={list(shares)} of {len(cells)} control cells{where} leaves too few in a part "
            f"({', '.join(small)}; 2 are the least); give that part more, or 0 to use the training controls there"
        )
        raise ValueError(msg)
    return parts


def part_screens(screen: PreparedScreen, split: Split) -> dict[str, PreparedScreen]:
    """The screen as each part sees it, where the split divides the control cells; {} where it does not."""
    return {part: screen.with_controls(cells) for part, cells in control_parts(screen, split).items()}


def screens_of(screen: PreparedScreen, split: Split, part: str) -> tuple[PreparedScreen, PreparedScreen]:
    """The screen as training and as a part of a split see it, whatever control cells it shows."""
    if split.arguments.get("control_shares") is None:
        return screen, screen
    whole = screen.with_controls(None)
    parts = part_screens(whole, split)
    train = parts.get("train", whole)
    return train, parts.get(part, train)
