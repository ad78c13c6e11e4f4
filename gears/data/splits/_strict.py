"""Exact splits: whole genes, contexts or conditions held out, folds, and the published types in strict mode.

A draw looks at conditions, not at labels: all spellings of a condition go together from the start. Genes count as seen
where a *training* condition perturbs them, after validation was taken out too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from gears.conditions import Condition
from gears.core._messages import unknown_name
from gears.data.splits._as_published import given_combinations
from gears.data.splits._registry import STRICT, Draw, Labels, SplitOptions, names_from, register_split
from gears.data.splits._split import subgroup_names

VALIDATION_SHARE = 0.1

TEST, VAL = 0, 1
"""Stages of a draw: each has a separate stream of random numbers."""


def _parts(
    labels: Labels,
    test: Collection[Condition],
    val: Collection[Condition],
    excluded: Mapping[Condition, str] = {},
) -> Draw:
    """Parts with everything else, and the control, in train."""
    train = without(labels.conditions, test, val, excluded)
    return Draw(
        parts={
            "train": labels.spelled([*train, Condition()]),
            "val": labels.spelled(val),
            "test": labels.spelled(test),
        },
        excluded={name: excluded[labels.condition[name]] for name in labels.spelled(excluded)},
    )


def generator(seed: int, *stage: int) -> np.random.Generator:
    """A separate stream of random numbers for each stage of a draw."""
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


def pick_share(rng: np.random.Generator, candidates: Sequence, share: float = VALIDATION_SHARE) -> list:
    """A share of the candidates, by default that of validation."""
    return pick(rng, candidates, n_of(share, len(candidates)))


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


def _held_out_genes(
    rng: np.random.Generator, genes: Sequence[str], share: float, given: list[str] | None, exactly: bool
) -> list[str]:
    """Genes to hold out: the given ones, filled up to the share unless they are to be all."""
    if given is None:
        return pick_share(rng, genes, share)
    if exactly:
        return given
    others = [gene for gene in genes if gene not in set(given)]
    return given + pick(rng, others, min(max(n_of(share, len(genes)) - len(given), 0), len(others)))


@STRICT.register("simulation")
def strict_simulation(labels: Labels, arguments: SplitOptions) -> Draw:
    """Hold genes out for test and others for validation; hold out combinations of what remains."""
    genes = genes_of(labels.conditions)
    given = names_from(arguments.test_perts, genes, "perturbed gene")
    rng = generator(arguments.seed, TEST)
    share = 1 - arguments.train_gene_set_size
    test_genes = _held_out_genes(rng, genes, share, given, arguments.only_test_set_perts)
    test = touched(labels.conditions, test_genes)
    rest = without(labels.conditions, test)
    test += _seen_combinations(rng, rest, 1 - arguments.combo_seen2_train_frac)
    rest = without(rest, test)
    rng = generator(arguments.seed, VAL)
    val = touched(rest, pick_share(rng, genes_of(rest)))
    val += _seen_combinations(rng, without(rest, val), VALIDATION_SHARE)
    return _parts(labels, test, val)


def _seen_combinations(rng: np.random.Generator, rest: Sequence[Condition], share: float) -> list[Condition]:
    """A share of the combinations, none of which takes a gene out of the rest."""
    combinations = [condition for condition in rest if len(condition) > 1]
    return pick_keeping_genes(rng, combinations, rest, n_of(share, len(combinations)) if combinations else 0)


@STRICT.register("simulation_single")
def strict_simulation_single(labels: Labels, arguments: SplitOptions) -> Draw:
    """Hold genes out; combinations are in no part."""
    singles = [condition for condition in labels.conditions if len(condition) == 1]
    genes = genes_of(singles)
    given = names_from(arguments.test_perts, genes, "singly perturbed gene")
    rng, share = generator(arguments.seed, TEST), 1 - arguments.train_gene_set_size
    test_genes = _held_out_genes(rng, genes, share, given, arguments.only_test_set_perts)
    test = touched(singles, test_genes)
    rest = without(singles, test)
    val = pick_share(generator(arguments.seed, VAL), rest)
    reason = "a combination; simulation_single takes singles only"
    return _parts(labels, test, val, dict.fromkeys(without(labels.conditions, singles), reason))


@STRICT.register("single")
def strict_single(labels: Labels, arguments: SplitOptions) -> Draw:
    """Singles of held-out genes; combinations that hold such a gene are in no part."""
    singles = [condition for condition in labels.conditions if len(condition) == 1]
    given = names_from(arguments.test_pert_genes, genes_of(singles), "singly perturbed gene")
    rng, share = generator(arguments.seed, TEST), arguments.combo_single_split_test_set_fraction
    test = touched(singles, given) if given is not None else pick_share(rng, singles, share)
    rest = without(singles, test)
    val = pick_share(generator(arguments.seed, VAL), rest)
    return _exactly(labels, genes_of(test), genes_of(val), lambda condition, _: len(condition) == 1)


def _strict_combo(seen: int, labels: Labels, arguments: SplitOptions) -> Draw:
    """Combinations of which exactly `seen` genes are perturbed in training."""
    combinations = [condition for condition in labels.conditions if len(condition) > 1]
    exact = [condition for condition in combinations if len(condition) == seen]
    fraction = arguments.combo_single_split_test_set_fraction
    rng_test, rng_val = generator(arguments.seed, TEST), generator(arguments.seed, VAL)
    if exact:
        named = given_combinations(labels, arguments)
        given = None if named is None else list(dict.fromkeys(labels.condition[name] for name in named))
        n = n_of(fraction, len(exact))
        test = pick_keeping_genes(rng_test, exact, labels.conditions, n) if given is None else given
        rest = without(labels.conditions, test)
        left = without(exact, test)
        val = pick_keeping_genes(rng_val, left, rest, n_of(VALIDATION_SHARE, len(left)))
        return _parts(labels, test, val)
    given_genes = names_from(arguments.test_pert_genes, genes_of(labels.conditions), "perturbed gene")
    n_test = n_of(fraction, len(genes_of(labels.conditions)))
    test_genes = given_genes or _genes_of_combinations(rng_test, combinations, n_test, seen)
    rest = without(labels.conditions, touched(labels.conditions, test_genes))
    left = [condition for condition in rest if len(condition) > 1]
    val_genes = _genes_of_combinations(rng_val, left, n_of(VALIDATION_SHARE, len(genes_of(rest))), seen)

    def fits(condition: Condition, trained: set[str]) -> bool:
        return len(condition) > 1 and sum(gene in trained for gene in condition.genes) == seen

    return _exactly(labels, test_genes, val_genes, fits)


for _seen in (0, 1, 2):
    STRICT.add(f"combo_seen{_seen}", partial(_strict_combo, _seen))


def _genes_of_combinations(rng: np.random.Generator, combinations: Sequence[Condition], n: int, seen: int) -> list[str]:
    """At least n genes to hold out, so that some combinations keep exactly `seen` of theirs."""
    chosen: dict[str, None] = {}
    kept: set[str] = set()
    for i in rng.permutation(len(combinations)):
        genes = [str(gene) for gene in rng.permutation(combinations[i].genes)]
        keep, hold = genes[:seen], genes[seen:]
        if len(chosen) >= n:
            break
        if kept.isdisjoint(hold) and not any(gene in chosen for gene in keep):
            kept.update(keep)
            chosen.update(dict.fromkeys(hold))
    return list(chosen)


def _exactly(
    labels: Labels,
    test_genes: Collection[str],
    val_genes: Collection[str],
    fits: Callable[[Condition, set[str]], bool],
) -> Draw:
    """Test and validation of the held-out genes' conditions that fit; the others of them in no part."""
    in_test = touched(labels.conditions, test_genes)
    in_val = without(touched(labels.conditions, val_genes), in_test)
    trained = set(genes_of(without(labels.conditions, in_test, in_val)))
    excluded: dict[Condition, str] = {}
    chosen: dict[str, list[Condition]] = {"test": [], "val": []}
    for part, candidates in (("test", in_test), ("val", in_val)):
        for condition in candidates:
            if fits(condition, trained):
                chosen[part].append(condition)
            else:
                n_seen = sum(gene in trained for gene in condition.genes)
                excluded[condition] = (
                    f"holds a {'validation' if part == 'val' else part} gene, with {n_seen} of "
                    f"{len(condition)} genes seen; not what this split tests"
                )
    return _parts(labels, chosen["test"], chosen["val"], excluded)


@STRICT.register("no_test")
def strict_no_test(labels: Labels, arguments: SplitOptions) -> Draw:
    """Train and validate only."""
    draw = _parts(labels, [], pick_share(generator(arguments.seed, VAL), labels.conditions))
    del draw.parts["test"]
    return draw


@register_split(
    "gene_held_out",
    "Genes are held out with every condition that perturbs them, alone or with others; nothing is excluded.",
    uses=("train_gene_set_size", "test_pert_genes"),
    needs="A share of the perturbed genes is held out for test, a tenth of the rest for validation: 3 are the least",
    exact=True,
    holds_out="gene",
)
def draw_gene_held_out(labels: Labels, arguments: SplitOptions) -> Draw:
    """Every condition of the test genes is test, every other one of the validation genes validation."""
    genes = genes_of(labels.conditions)
    given = names_from(arguments.test_pert_genes, genes, "perturbed gene")
    test_genes = given or pick_share(generator(arguments.seed, TEST), genes, 1 - arguments.train_gene_set_size)
    test = touched(labels.conditions, test_genes)
    rest = without(labels.conditions, test)
    return _parts(labels, test, touched(rest, pick_share(generator(arguments.seed, VAL), genes_of(rest))))


@register_split(
    "cross_validation",
    "Fold `fold` of `n_folds`: over the folds of a `repeat` every condition (or gene, with fold_by='gene') is tested "
    "once; a tenth of the rest validates.",
    uses=("n_folds", "fold", "repeat", "fold_by"),
    needs="Each fold needs a condition to test, and one to validate and one to train beside it",
    exact=True,
)
def draw_fold(labels: Labels, arguments: SplitOptions) -> Draw:
    """One fold; conditions of one, two, ... genes are spread evenly over the folds."""
    by_gene = arguments.fold_by == "gene"
    units: Sequence = genes_of(labels.conditions) if by_gene else labels.conditions
    if arguments.n_folds > len(units):
        what = "genes" if by_gene else "perturbed conditions"
        msg = f"n_folds={arguments.n_folds}, but the screen has {len(units)} {what}; use at most {len(units)} folds"
        raise ValueError(msg)
    ordered: list = []
    for size in [0] if by_gene else sorted({len(condition) for condition in labels.conditions}):
        same = list(units) if by_gene else [unit for unit in units if len(unit) == size]
        rng = generator(arguments.seed, TEST, arguments.repeat, size)
        ordered += [same[i] for i in rng.permutation(len(same))]
    fold_units = ordered[arguments.fold :: arguments.n_folds]
    test: list[Condition] = touched(labels.conditions, fold_units) if by_gene else fold_units
    rest = without(labels.conditions, test)
    rng = generator(arguments.seed, VAL, arguments.repeat, arguments.fold)
    val = touched(rest, pick_share(rng, genes_of(rest))) if by_gene else pick_share(rng, rest)
    return _parts(labels, test, val)


@register_split(
    "context_held_out",
    "Whole contexts (cell lines, donors) are held out with every condition in them; a tenth of the rest validates.",
    uses=("test_contexts",),
    needs="The screen needs two contexts or more (context_key=), and two conditions in those that train",
    exact=True,
    by_setting=True,
    holds_out="context",
)
def draw_context(labels: Labels, arguments: SplitOptions) -> Draw:
    """Test: the given contexts, or one that the seed chooses. Their controls do not train either."""
    held_out = _held_out_contexts(labels, arguments)
    test = [condition for condition in labels.conditions if condition.context in held_out]
    rest = without(labels.conditions, test)
    val = pick_share(generator(arguments.seed, VAL), rest)
    return _with_controls(labels, test, val, held_out)


def _held_out_contexts(labels: Labels, arguments: SplitOptions) -> set[str]:
    """The given contexts, or one that the seed chooses."""
    contexts = sorted({condition.context for condition in labels.conditions if condition.context})
    if len(contexts) < 2:
        msg = (
            f"split {arguments.split!r} needs a screen with two contexts or more; found {contexts or 'none'}: "
            "prepare the screen with context_key="
        )
        raise ValueError(msg)
    given = arguments.test_contexts
    for name in given or ():
        if name not in contexts:
            raise ValueError(unknown_name("context", name, contexts))
    return set(given or pick(generator(arguments.seed, TEST), contexts, 1))


@register_split(
    "context_and_gene_held_out",
    "Whole contexts and, in the others, genes are held out: new genes, new contexts, and both new at once.",
    uses=("test_contexts", "train_gene_set_size", "test_pert_genes"),
    needs="The screen needs two contexts or more, and a gene to test beside those that validate and train",
    exact=True,
    by_setting=True,
)
def draw_context_and_gene(labels: Labels, arguments: SplitOptions) -> Draw:
    """Test: everything in the held-out contexts, and the held-out genes in the others.

    Validation holds out single conditions whose genes train in another condition, as long as there are such.
    """
    held_out = _held_out_contexts(labels, arguments)
    genes = genes_of(labels.conditions)
    given = names_from(arguments.test_pert_genes, genes, "perturbed gene")
    test_genes = given or pick_share(generator(arguments.seed, TEST, 1), genes, 1 - arguments.train_gene_set_size)
    new_genes = set(touched(labels.conditions, test_genes))
    test = [one for one in labels.conditions if one.context in held_out or one in new_genes]
    rest, rng = without(labels.conditions, test), generator(arguments.seed, VAL)
    val = pick_keeping_genes(rng, rest, rest, n_of(VALIDATION_SHARE, len(rest))) or pick_share(rng, rest)
    draw = _with_controls(labels, test, val, held_out)
    groups: dict[str, list[str]] = {}
    names = subgroup_names(test, without(rest, val))
    for condition, name in zip(test, names, strict=True):
        groups.setdefault(name, []).extend(labels.spelled([condition]))
    return replace(draw, subgroup={"test_subgroup": groups})


@register_split(
    "unit_held_out",
    "Single conditions of single contexts are held out; the condition may train in other contexts.",
    uses=("combo_single_split_test_set_fraction",),
    needs="A share of all conditions in all contexts is tested, a tenth of the rest validates: 3 are the least",
    exact=True,
    by_setting=True,
)
def draw_in_contexts(labels: Labels, arguments: SplitOptions) -> Draw:
    """Test: a share of all conditions, each context by itself."""
    test = pick_share(
        generator(arguments.seed, TEST), labels.conditions, arguments.combo_single_split_test_set_fraction
    )
    rest = without(labels.conditions, test)
    val = pick_share(generator(arguments.seed, VAL), rest)
    return _with_controls(labels, test, val, set())


def _with_controls(labels: Labels, test: Sequence[Condition], val: Sequence[Condition], gone: set[str]) -> Draw:
    """Every control trains but those of held-out contexts, which go with their contexts."""
    controls = [condition for condition in labels.condition.values() if condition.is_control]
    held = [control for control in controls if control.context in gone]
    train = without(labels.conditions, test, val)
    return Draw(
        parts={
            "train": labels.spelled([*train, *without(controls, held)]),
            "val": labels.spelled(val),
            "test": labels.spelled([*test, *held]),
        }
    )
