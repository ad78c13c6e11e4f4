"""Strict splits: exact seen-k, exact numbers, nothing lost; gene-held-out and folds."""

from collections import Counter

import pytest

from gears.conditions import Condition
from gears.data.splits import SPLITS, Split, check_split, folds, make_split

GENES = [f"GX{i:02d}" for i in range(20)]
SINGLES = [f"{gene}+ctrl" for gene in GENES]
PAIRS = [f"{a}+{b}" for i, a in enumerate(GENES[:10]) for b in GENES[i + 1 : 10]]
LARGER = ["GX00+GX01+GX15", "GX03+GX04+GX16", "GX02+GX05+GX08+GX17", "GX06+GX07+GX09+GX18"]
LABELS = ["ctrl", *SINGLES, *PAIRS]
MIRRORED = [*LABELS, *("+".join(reversed(label.split("+"))) for label in LABELS[1:]), *LARGER]
KINDS = [name for name in SPLITS if name not in ("custom", "no_split") and not name.startswith("context_")]


def train_genes(split: Split) -> set[str]:
    return {gene for condition in split.conditions("train") for gene in condition.genes}


@pytest.mark.parametrize("name", KINDS)
def test_strict_splits_are_what_they_say(name):
    for seed in range(4):
        split = make_split(MIRRORED, name, seed=seed, mode="strict")
        assert check_split(split, MIRRORED).findings == ()
        placed = [label for names in split.parts.values() for label in names] + list(split.excluded)
        assert sorted(placed) == sorted(MIRRORED)
        trained = train_genes(split)
        for part in ("val", "test"):
            groups = split.subgroup_of(part)
            perturbed = [label for label in split.parts.get(part, ()) if label != "ctrl"]
            assert sorted(groups) == sorted(perturbed)
            for label in perturbed:
                genes = Condition.parse(label).genes
                seen = sum(gene in trained for gene in genes)
                expected = {1: "seen_single" if seen else "unseen_single", 2: f"combo_seen{seen}"}
                assert groups[label] == expected.get(len(genes), f"combo_seen{seen}_of_{len(genes)}")
        assert make_split(MIRRORED, name, seed=seed, mode="strict").hash == split.hash


@pytest.mark.parametrize("k", [0, 1, 2])
def test_combo_seen_tests_combinations_with_exactly_k_seen_genes(k):
    for seed in range(5):
        split = make_split(LABELS, f"combo_seen{k}", seed=seed, mode="strict")
        trained = train_genes(split)
        for part in ("test", "val"):
            assert split.conditions(part)
            for condition in split.conditions(part):
                assert len(condition) == 2
                assert sum(gene in trained for gene in condition.genes) == k
        if k == 2:
            assert not split.excluded
            assert (len(split.parts["test"]), len(split.parts["val"])) == (5, 4)  # tenths of 45 and 40
        else:
            assert all("genes seen" in reason for reason in split.excluded.values())


def test_exact_counts_without_replacement():
    for seed in range(4):
        shared = {"seed": seed, "mode": "strict"}
        held = make_split(LABELS, "single", **shared, combo_single_split_test_set_fraction=0.3)
        assert len(held.parts["test"]) == 6
        no_test = make_split(LABELS, "no_test", **shared)
        assert len(no_test.parts["val"]) == 7  # of 65, half up
        simulation = make_split(LABELS, "simulation", **shared, train_gene_set_size=0.8)
        test_genes = {g for c in simulation.conditions("test") for g in c.genes} - train_genes(simulation)
        assert len([c for c in simulation.conditions("test") if len(c) == 1]) == 4
        assert len(test_genes) >= 4


def test_nothing_vanishes_with_keep_excluded():
    for mode in ("published", "strict"):
        for name in ("combo_seen0", "single"):
            options = {"seed": 3, "mode": mode, "combo_single_split_test_set_fraction": 0.2}
            dropped = make_split(LABELS, name, **options)
            kept = make_split(LABELS, name, **options, keep_excluded=True)
            assert dropped.excluded
            assert not kept.excluded
            assert kept.parts["train"] == dropped.parts["train"]
            assert check_split(kept, LABELS).ok


def test_named_genes_and_conditions_are_held_out_in_strict_mode():
    split = make_split(LABELS, "simulation", mode="strict", test_perts=["GX00"], only_test_set_perts=True)
    assert "GX00" not in train_genes(split)
    assert {g for c in split.conditions("test") if len(c) == 1 for g in c.genes} == {"GX00"}
    filled = make_split(LABELS, "simulation", mode="strict", test_perts=["GX00"], train_gene_set_size=0.75)
    assert len([c for c in filled.conditions("test") if len(c) == 1]) == 5
    named = make_split(LABELS, "combo_seen2", mode="strict", test_perts=["GX01+GX00"])
    assert named.parts["test"] == ("GX00+GX01",)
    genes = make_split(LABELS, "gene_held_out", test_pert_genes=["GX00", "GX01"])
    conditions = map(Condition.parse, LABELS)
    assert set(genes.conditions("test")) == {c for c in conditions if {"GX00", "GX01"} & set(c.genes)}


def test_gene_held_out_leaves_no_test_gene_in_training():
    for seed in range(4):
        split = make_split(LABELS, "gene_held_out", seed=seed)
        assert not split.excluded
        trained = train_genes(split)
        for part in ("test", "val"):
            assert all(any(gene not in trained for gene in c.genes) for c in split.conditions(part))


@pytest.mark.parametrize("n_folds", [2, 3, 5])
def test_folds_test_every_condition_once_per_repeat(n_folds):
    made = list(folds(MIRRORED, n_folds, repeats=2, seed=5))
    assert len(made) == 2 * n_folds
    for repeat in range(2):
        own = [split for split in made if split.arguments["repeat"] == repeat]
        tested = Counter(condition for split in own for condition in split.conditions("test"))
        assert tested == Counter({Condition.parse(label) for label in MIRRORED[1:]})
        sizes = [Counter(len(c) for c in split.conditions("test")) for split in own]
        for size in (1, 2, 3, 4):
            assert max(s[size] for s in sizes) - min(s[size] for s in sizes) <= 1
        for split in own:
            assert check_split(split, MIRRORED).findings == ()
            assert split.conditions("val")
    assert made[0].parts["test"] != made[n_folds].parts["test"]
    assert [s.hash for s in folds(MIRRORED, n_folds, seed=5)] == [s.hash for s in made[:n_folds]]


def test_folds_over_genes():
    held = Counter()
    for split in folds(LABELS, 4, by="gene"):
        trained = train_genes(split)
        singles = [c for c in split.conditions("test") if len(c) == 1]
        held.update(gene for c in singles for gene in c.genes)
        assert all(gene not in trained for c in singles for gene in c.genes)
    assert held == Counter(GENES)


def test_folds_of_a_screen_and_what_cannot_be_folded(toy_screen):
    assert len(list(folds(toy_screen, 3))) == 3
    for ask, words in (
        (lambda: folds(toy_screen, 40), r"n_folds=40, but the screen has 13 perturbed.* at most 13"),
        (lambda: folds(toy_screen, 1), "n_folds is 1; expected a whole number of at least 2"),
        (lambda: folds(toy_screen, 3, 0), "repeats is 0; expected a whole number"),
        (lambda: folds(toy_screen, 3, by="genes"), r"unknown fold_by 'genes'; did you mean 'gene'"),
        (lambda: make_split(LABELS, "cross_validation", fold=5), "fold must be from 0 to n_folds - 1 = 4; found 5"),
        (lambda: make_split(LABELS, "single", mode="exact"), "unknown mode 'exact'"),
        (lambda: make_split(LABELS, "gene_held_out", test_pert_genes=["GX99"]), "unknown perturbed gene 'GX99'"),
    ):
        with pytest.raises(ValueError, match=words):
            list(ask())
