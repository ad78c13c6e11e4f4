"""Splits that hold genes out: what a model would meet with genes never perturbed in training.

The draws equal those of the published package for the same labels and seed.
They use numpy's legacy generator, whose streams are frozen, as a local object.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gears.data.splits.labels import Labels, names_from
from gears.data.splits.registry import Draw, SplitArguments, register_split
from gears.data.splits.split import subgroup_name

VALIDATION_SHARE = 0.9
NEEDS = "A share of the perturbed genes is held out for test, and a tenth of the rest for validation"
PAIR_GROUPS = ("combo_seen0", "combo_seen1", "combo_seen2", "unseen_single")


def _seen_genes(
    genes: np.ndarray, share: float, seed: int, test_genes: Sequence[str] | None, only_test_genes: bool
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
    candidates = np.unique(all_seen) if all_seen else np.empty(0, "U1")
    chosen = (
        np.random.RandomState(seed).choice(
            candidates, int(len(candidates) * combination_share), replace=False
        )
        if len(candidates)
        else candidates
    )
    stay += chosen.tolist()
    for name in np.setdiff1d(candidates, chosen).tolist():
        out.setdefault(subgroup_name(labels.condition[name], seen), []).append(name)
    return stay, out


def _parts(labels: Labels, stay: list[str], val: dict[str, list[str]], test: dict[str, list[str]]) -> Draw:
    return Draw(
        parts={
            "train": stay + labels.control,
            "val": [name for group in val.values() for name in group],
            "test": [name for group in test.values() for name in group],
        },
        subgroup={"test_subgroup": test, "val_subgroup": val},
    )


@register_split(
    "simulation",
    "Genes are held out: test has singles of unseen genes, pairs with 0 or 1 seen gene, and a share of the pairs "
    "whose genes are both seen; validation is drawn from the rest in the same way.",
    uses=("train_gene_set_size", "combo_seen2_train_frac", "test_perts", "only_test_set_perts"),
    needs=NEEDS,
)
def draw_simulation(labels: Labels, arguments: SplitArguments) -> Draw:
    """Hold genes out of training; singles and combinations of any number of genes."""
    names = labels.perturbed
    genes = labels.genes(names)
    test_genes = names_from(arguments.test_perts, genes.tolist(), "perturbed gene")
    seen = _seen_genes(
        genes, arguments.train_gene_set_size, arguments.seed, test_genes, arguments.only_test_set_perts
    )
    rest, test = _divide(labels, names, set(seen.tolist()), arguments.combo_seen2_train_frac, arguments.seed)
    seen = _seen_genes(labels.genes(rest), VALIDATION_SHARE, arguments.seed, None, False)
    stay, val = _divide(labels, rest, set(seen.tolist()), VALIDATION_SHARE, arguments.seed)
    return _parts(labels, stay, val, test)


@register_split(
    "simulation_single",
    "As simulation, with singles only: combinations are in no part.",
    uses=("train_gene_set_size", "test_perts", "only_test_set_perts"),
    needs=NEEDS,
)
def draw_simulation_single(labels: Labels, arguments: SplitArguments) -> Draw:
    """Hold genes out of training; combinations are left out."""
    names = labels.singles(labels.perturbed)
    genes = labels.genes(names)
    test_genes = names_from(arguments.test_perts, genes.tolist(), "singly perturbed gene")
    seen = _seen_genes(
        genes, arguments.train_gene_set_size, arguments.seed, test_genes, arguments.only_test_set_perts
    )
    rest, test = _divide(labels, names, set(seen.tolist()), 0.0, arguments.seed)
    seen = _seen_genes(labels.genes(rest), VALIDATION_SHARE, arguments.seed, None, False)
    stay, val = _divide(labels, rest, set(seen.tolist()), 0.0, arguments.seed)
    single = "unseen_single"
    draw = _parts(labels, stay, {single: val[single]}, {single: test[single]})
    left_out = labels.combinations(labels.perturbed)
    draw.excluded = dict.fromkeys(left_out, "a combination; simulation_single takes singles only")
    return draw
