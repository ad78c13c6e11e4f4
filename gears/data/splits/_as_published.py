"""The published types of split: genes held out, a share of the conditions, or parts that the user gives.

The draws equal those of the published package for the same labels and seed, oddities included: test genes and
conditions are drawn with replacement, test genes are drawn even where they decide nothing, and the test part of
combo_seen0 and combo_seen1 also has the singles of the test genes. They use numpy's legacy generator, whose streams
are frozen, as a local object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gears.conditions import Condition
from gears.core._messages import count, nearest, shorten, suggestion
from gears.data.splits._registry import Draw, Labels, SplitOptions, check_parts, names_from, register_split
from gears.data.splits._split import PARTS, subgroup_name

VALIDATION_SHARE = 0.9
NEEDS = "A share of the perturbed genes is held out for test, and a tenth of the rest for validation"
PAIR_GROUPS = ("combo_seen0", "combo_seen1", "combo_seen2", "unseen_single")

VALIDATION_FRACTION = 0.1
GENES_NEEDED = (
    "Test genes are as many as a tenth (or combo_single_split_test_set_fraction) of the singles, rounded down, and "
    "validation genes a tenth of what remains: 10 singles in each round are the least"
)
COMBINATIONS_NEEDED = (
    "A tenth (or combo_single_split_test_set_fraction) of the combinations, rounded down, is tested, and a tenth of "
    "what remains validates: 10 combinations in each round are the least"
)
HELD_OUT = "holds a {part} gene beside a training gene; this split leaves it out"


def _seen_genes(
    genes: np.ndarray, share: float, seed: int, test_genes: Sequence[str] | None = None, only_test_genes: bool = False
) -> np.ndarray:
    """Genes that training may perturb."""
    if test_genes is not None and only_test_genes:
        return np.setdiff1d(genes, test_genes)
    draw = np.random.RandomState(seed)
    seen = draw.choice(genes, int(len(genes) * share), replace=False)
    if test_genes is None:
        return seen
    # Test genes among the drawn ones are exchanged for others that were not drawn.
    n_exchanged = int(np.isin(seen, test_genes).sum())
    seen = seen[~np.isin(seen, test_genes)]
    spare = np.setdiff1d(genes, np.union1d(seen, test_genes))
    if n_exchanged > len(spare):
        msg = (
            f"{len(test_genes)} test genes of {len(genes)} leave {len(genes) - len(test_genes)} for training, "
            f"but train_gene_set_size={share} asks for {int(len(genes) * share)}; name fewer test_perts, "
            "lower train_gene_set_size, or set only_test_set_perts=True"
        )
        raise ValueError(msg)
    return np.concatenate((seen, draw.choice(spare, n_exchanged, replace=False)))


def _divide(
    labels: Labels, names: list[str], seen: set[str], combination_share: float, seed: int
) -> tuple[list[str], dict[str, list[str]]]:
    """Labels that stay, and the others by how many of their genes are seen."""
    stay: list[str] = []
    out: dict[str, list[str]] = {group: [] for group in PAIR_GROUPS}
    all_seen: list[str] = []
    for name in names:
        condition = labels.condition[name]
        if labels.n_in(name, seen) < len(condition):
            out.setdefault(subgroup_name(condition, seen), []).append(name)
        elif len(condition) == 1:
            stay.append(name)
        else:
            all_seen.append(name)
    # sorted first, as published: the draw then does not depend on the order of the labels
    chosen = candidates = np.unique(all_seen) if all_seen else np.empty(0, "U1")
    if len(candidates):
        n = int(len(candidates) * combination_share)
        chosen = np.random.RandomState(seed).choice(candidates, n, replace=False)
    stay += chosen.tolist()
    for name in np.setdiff1d(candidates, chosen).tolist():
        out.setdefault(subgroup_name(labels.condition[name], seen), []).append(name)
    return stay, out


def _simulate(labels: Labels, arguments: SplitOptions, *, singles_only: bool = False) -> Draw:
    """Hold genes out for test, then others of what remains for validation; of any number of genes, or of singles."""
    names, gene_type = labels.perturbed, "perturbed gene"
    if singles_only:
        names, gene_type = labels.singles(names), "singly perturbed gene"
    genes, seed, test_share = labels.genes(names), arguments.seed, arguments.combo_seen2_train_frac
    test_genes = names_from(arguments.test_perts, genes.tolist(), gene_type)
    seen = _seen_genes(genes, arguments.train_gene_set_size, seed, test_genes, arguments.only_test_set_perts)
    rest, test = _divide(labels, names, set(seen.tolist()), test_share, seed)
    seen = _seen_genes(labels.genes(rest), VALIDATION_SHARE, seed)  # the same seed again, as published
    train, val = _divide(labels, rest, set(seen.tolist()), VALIDATION_SHARE, seed)
    return Draw(
        parts={
            "train": train + labels.control,
            "val": [name for group in val.values() for name in group],
            "test": [name for group in test.values() for name in group],
        },
        subgroup={"test_subgroup": test, "val_subgroup": val},
    )


register_split(
    "simulation",
    "Genes are held out: test has singles of unseen genes, pairs with 0 or 1 seen gene, and a share of the pairs "
    "whose genes are both seen; validation is drawn from the rest in the same way.",
    uses=("train_gene_set_size", "combo_seen2_train_frac", "test_perts", "only_test_set_perts"),
    needs=NEEDS,
    holds_out="gene",
)(_simulate)


@register_split(
    "simulation_single",
    "As simulation, with singles only: combinations are in no part.",
    uses=("train_gene_set_size", "test_perts", "only_test_set_perts"),
    needs=NEEDS,
    holds_out="gene",
)
def draw_simulation_single(labels: Labels, arguments: SplitOptions) -> Draw:
    """Hold genes out of training; combinations are excluded."""
    draw = _simulate(labels, arguments, singles_only=True)
    single = "unseen_single"
    draw.subgroup = {part: {single: groups[single]} for part, groups in (draw.subgroup or {}).items()}
    why = "a combination; simulation_single takes singles only"
    draw.excluded = dict.fromkeys(labels.combinations(labels.perturbed), why)
    return draw


def _drawn(rng: np.random.RandomState, candidates: np.ndarray | list[str], n: int) -> list[str]:
    """Draw n with replacement, as published."""
    return np.unique(rng.choice(candidates, n)).tolist() if n and len(candidates) else []


def _drawn_genes(rng: np.random.RandomState, labels: Labels, names: list[str], fraction: float) -> list[str]:
    """Genes to hold out: as many as a share of the singles."""
    return _drawn(rng, labels.genes(names), int(len(labels.singles(names)) * fraction))


Held = tuple[list[str], list[str]]
"""Labels that are held out, and labels that fit neither side."""


def _two_rounds(
    labels: Labels, arguments: SplitOptions, hold_out: Callable[[list[str], float, SplitOptions | None], Held]
) -> Draw:
    """Hold a share out for test, where the caller may name what, then one of what remains for validation."""
    names = labels.perturbed
    test, out_of_test = hold_out(names, arguments.combo_single_split_test_set_fraction, arguments)
    gone = {*test, *out_of_test}
    val, out_of_val = hold_out([name for name in names if name not in gone], VALIDATION_FRACTION, None)
    gone |= {*val, *out_of_val}
    return Draw(
        parts={"train": [name for name in labels.names if name not in gone], "val": val, "test": test},
        excluded={name: HELD_OUT.format(part="test") for name in out_of_test}
        | {name: HELD_OUT.format(part="validation") for name in out_of_val},
    )


def _draw_combo(seen: int, labels: Labels, arguments: SplitOptions) -> Draw:
    """Combinations of which at most `seen` genes are seen, with singles of the test genes (2: combinations alone)."""
    rng, valid = np.random.RandomState(arguments.seed), labels.genes(labels.perturbed).tolist()

    def hold_out(names: list[str], fraction: float, named: SplitOptions | None) -> Held:
        given = names_from(named.test_pert_genes, valid, "perturbed gene") if named else None
        genes = set(_drawn_genes(rng, labels, names, fraction) if given is None else given)
        combinations = labels.combinations(names)
        if seen == 2:
            if named and (given_labels := given_combinations(labels, named)) is not None:
                return given_labels, []
            return _drawn(rng, combinations, int(len(combinations) * fraction)), []
        touched = labels.with_genes(combinations, genes)
        too_seen = [name for name in touched if len(labels.condition[name]) - labels.n_in(name, genes) > seen]
        held = labels.with_genes(labels.singles(names), genes)
        return held + [name for name in touched if name not in set(too_seen)], too_seen

    return _two_rounds(labels, arguments, hold_out)


def given_combinations(labels: Labels, arguments: SplitOptions) -> list[str] | None:
    """Labels of the combinations that the caller names for the test part; None where there are none named."""
    value, among = arguments.test_perts, labels.combinations(labels.perturbed)
    if value is None:
        return None
    if isinstance(value, str):
        value = [value] if value in among else value.split("_")
    labels_of_test: list[str] = []
    for name in value:
        matches = [label for label in labels.resolve(name, "combination") if label in among]
        if not matches:
            msg = (
                f"{name!r} is no combination of this screen, and only a combination can be named in test_perts of this "
                "split"
            )
            raise ValueError(msg)
        labels_of_test += matches
    return list(dict.fromkeys(labels_of_test))


_COMBO_USES = ("combo_single_split_test_set_fraction", "test_pert_genes")
register_split(
    "combo_seen0",
    "Test genes are drawn; test has their singles and the pairs of two test genes. Pairs of a test gene and "
    "another gene are excluded.",
    uses=_COMBO_USES,
    needs=GENES_NEEDED,
)(partial(_draw_combo, 0))
register_split(
    "combo_seen1",
    "Test genes are drawn; test has their singles and every pair with at least one of them.",
    uses=_COMBO_USES,
    needs=GENES_NEEDED,
)(partial(_draw_combo, 1))
register_split(
    "combo_seen2",
    "Combinations are drawn whatever their genes; singles all train.",
    uses=(*_COMBO_USES, "test_perts"),
    needs=COMBINATIONS_NEEDED,
)(partial(_draw_combo, 2))


@register_split(
    "single",
    "Test genes are drawn; test has their singles, and combinations that hold them are excluded.",
    uses=("combo_single_split_test_set_fraction", "test_pert_genes"),
    needs=GENES_NEEDED,
    holds_out="gene",
)
def draw_single(labels: Labels, arguments: SplitOptions) -> Draw:
    """Singles of genes that training never perturbs."""
    rng, valid = np.random.RandomState(arguments.seed), labels.genes(labels.singles(labels.perturbed)).tolist()

    def hold_out(names: list[str], fraction: float, named: SplitOptions | None) -> Held:
        given = names_from(named.test_pert_genes, valid, "singly perturbed gene") if named else None
        genes = _drawn_genes(rng, labels, names, fraction) if given is None else given
        held = labels.with_genes(labels.singles(names), genes)
        return held, labels.with_genes(labels.combinations(names), genes)

    return _two_rounds(labels, arguments, hold_out)


@register_split(
    "no_test",
    "A tenth of the conditions validates, the rest trains; there is no test part.",
    parts=("train", "val"),
    needs="A tenth of the conditions, rounded down, validates: 10 are the least",
)
def draw_no_test(labels: Labels, arguments: SplitOptions) -> Draw:
    """Train and validate only."""
    rng, names = np.random.RandomState(arguments.seed), labels.perturbed
    _drawn_genes(rng, labels, names, VALIDATION_FRACTION)  # decides nothing, but moves the published stream on
    val = set(_drawn(rng, names, int(len(names) * VALIDATION_FRACTION)))
    train = [name for name in labels.names if name not in val]
    return Draw(parts={"train": train, "val": labels.ordered(val)})


@register_split("no_split", "Every condition is in the test part; nothing trains.", parts=("test",))
def draw_no_split(labels: Labels, arguments: SplitOptions) -> Draw:
    """Everything is tested."""
    return Draw(parts={"test": list(labels.names)})


@register_split(
    "custom",
    "The parts are given as a dict or a file.",
    uses=("split_dict",),
    needs="Name at least one perturbed condition in each part",
)
def draw_custom(labels: Labels, arguments: SplitOptions) -> Draw:
    """Check the given parts: keys, unknown labels, overlap by genes, empty parts."""
    given = check_parts(arguments.split_dict)
    problems = [f"key {part!r} is missing" for part in PARTS if part not in given]
    unknown = [key for key in given if key not in PARTS]
    problems += [f"key {key!r} is unknown; {suggestion(str(key), PARTS, 'keys')}" for key in unknown]
    parts: dict[str, list[str]] = {}
    home: dict[Condition, tuple[str, str]] = {}
    for part in (part for part in PARTS if part in given):
        labels_of_part, more_problems = _part(labels, part, given[part], home)
        parts[part] = labels_of_part
        problems += more_problems
    if problems:
        lines = "\n".join(f"  - {problem}" for problem in problems)
        msg = f"the custom split does not fit this screen:\n{lines}"
        raise ValueError(msg)
    used = {name for names in parts.values() for name in names}
    excluded = {name: "not named in the split" for name in labels.names if name not in used}
    return Draw(parts=parts, excluded=excluded)


def _part(labels: Labels, part: str, names: Any, home: dict[Condition, tuple[str, str]]) -> tuple[list[str], list[str]]:
    if isinstance(names, (str, bytes)) or not hasattr(names, "__iter__"):
        return [], [f"{part!r} must be a list of condition labels; found {names!r}"]
    chosen: list[str] = []
    unknown: list[str] = []
    twice: list[str] = []
    for name in names:
        try:
            same_condition = labels.resolve(str(name))
        except ValueError:
            near = nearest(str(name), labels.names, 1)
            unknown.append(f"{name!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
            continue
        other, spelling = home.setdefault(labels.condition[same_condition[0]], (part, str(name)))
        if other != part:
            twice.append(f"{str(name)!r} ({spelling!r} in {other!r})")
        chosen += same_condition
    problems = []
    if unknown:
        problems.append(f"{part!r} names {count(len(unknown), 'condition')} that the screen lacks: {shorten(unknown)}")
    if twice:
        problems.append(f"{part!r} shares {len(twice)} conditions with another part: {shorten(twice)}")
    return labels.ordered(chosen), problems
