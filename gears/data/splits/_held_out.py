"""Splits that hold out whole genes, contexts or settings, and folds over conditions or genes."""

from __future__ import annotations

from collections.abc import Sequence

from gears.conditions import Condition
from gears.core._messages import unknown_name
from gears.data.splits._registry import Draw, Labels, SplitOptions, names_from, register_split
from gears.data.splits._strict import (
    TEST,
    VAL,
    VALIDATION_SHARE,
    Conditions,
    generator,
    genes_of,
    n_of,
    pick,
    touched,
    without,
)


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
    conditions = Conditions.of(labels)
    genes = conditions.genes
    given = names_from(arguments.test_pert_genes, genes, "perturbed gene")
    n_test = n_of(1 - arguments.train_gene_set_size, len(genes))
    test_genes = given or pick(generator(arguments.seed, TEST), genes, n_test)
    test = touched(conditions.all, test_genes)
    rest = without(conditions.all, test)
    rest_genes = genes_of(rest)
    n_val = n_of(VALIDATION_SHARE, len(rest_genes))
    return conditions.draw(test, touched(rest, pick(generator(arguments.seed, VAL), rest_genes, n_val)), None)


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
    conditions = Conditions.of(labels)
    by_gene = arguments.fold_by == "gene"
    units: Sequence = conditions.genes if by_gene else conditions.all
    if arguments.n_folds > len(units):
        what = "genes" if by_gene else "perturbed conditions"
        msg = f"n_folds={arguments.n_folds}, but the screen has {len(units)} {what}; use at most {len(units)} folds"
        raise ValueError(msg)
    ordered: list = []
    for size in [0] if by_gene else sorted({len(condition) for condition in conditions.all}):
        same = list(units) if by_gene else [unit for unit in units if len(unit) == size]
        rng = generator(arguments.seed, TEST, arguments.repeat, size)
        ordered += [same[i] for i in rng.permutation(len(same))]
    chosen = ordered[arguments.fold :: arguments.n_folds]
    test: list[Condition] = touched(conditions.all, chosen) if by_gene else chosen
    rest = without(conditions.all, test)
    rng = generator(arguments.seed, VAL, arguments.repeat, arguments.fold)
    if by_gene:
        genes = genes_of(rest)
        val = touched(rest, pick(rng, genes, n_of(VALIDATION_SHARE, len(genes))))
    else:
        val = pick(rng, rest, n_of(VALIDATION_SHARE, len(rest)))
    return conditions.draw(test, val, None)


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
    conditions = Conditions.of(labels)
    contexts = sorted({condition.context for condition in conditions.all if condition.context})
    if len(contexts) < 2:
        msg = (
            f"split 'context_held_out' needs a screen with two contexts or more; found {contexts or 'none'}: "
            "prepare the screen with context_key="
        )
        raise ValueError(msg)
    given = arguments.test_contexts
    for name in given or ():
        if name not in contexts:
            raise ValueError(unknown_name("context", name, contexts))
    chosen = set(given or pick(generator(arguments.seed, TEST), contexts, 1))
    test = [condition for condition in conditions.all if condition.context in chosen]
    rest = without(conditions.all, test)
    val = pick(generator(arguments.seed, VAL), rest, n_of(VALIDATION_SHARE, len(rest)))
    return _with_controls(conditions, test, val, chosen)


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
    conditions = Conditions.of(labels)
    n_test = n_of(arguments.combo_single_split_test_set_fraction, len(conditions.all))
    test = pick(generator(arguments.seed, TEST), conditions.all, n_test)
    rest = without(conditions.all, test)
    val = pick(generator(arguments.seed, VAL), rest, n_of(VALIDATION_SHARE, len(rest)))
    return _with_controls(conditions, test, val, set())


def _with_controls(conditions: Conditions, test: Sequence[Condition], val: Sequence[Condition], gone: set[str]) -> Draw:
    """Every control trains but those of held-out contexts, which go with their contexts."""
    controls = [condition for condition in conditions.labels.condition.values() if condition.is_control]
    held = [control for control in controls if control.context in gone]
    train = without(conditions.all, test, val)
    return Draw(
        parts={
            "train": conditions.spelled([*train, *without(controls, held)]),
            "val": conditions.spelled(val),
            "test": conditions.spelled([*test, *held]),
        }
    )
