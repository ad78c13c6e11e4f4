"""Splits of screens with contexts."""

import pytest

from gears.conditions import Condition
from gears.data.splits import SPLITS, Draw, make_split, register_split

GENES = ["A", "B", "C", "D", "E", "F", "G", "H"]
PLAIN = ["ctrl", *(f"{gene}+ctrl" for gene in GENES), "A+B", "C+D", "A+B+C", "D+E", "E+F"]
LINES = ("L1", "L2", "L3")
LABELS = [f"{label} @ {line}" for line in LINES for label in PLAIN if (label, line) != ("H+ctrl", "L2")]


def contexts(split, part: str) -> set[str]:
    return {condition.context for condition in split.conditions(part) if not condition.is_control}


def test_other_kinds_hold_conditions_out_of_all_contexts():
    for name in ("simulation", "cross_validation", "gene_held_out", "combo_seen2"):
        units = make_split(LABELS, name, seed=2, mode="strict")
        plain = make_split(PLAIN, name, seed=2, mode="strict")
        for part, labels in plain.parts.items():
            want = {f"{label} @ {line}" for label in labels for line in LINES} & set(LABELS)
            assert set(units.parts[part]) == want
        if plain.subgroup:
            found = units.subgroup["test_subgroup"].items()
            groups = {name: {one.split(" @ ")[0] for one in own} for name, own in found}
            assert groups == {name: set(own) for name, own in plain.subgroup["test_subgroup"].items()}


def test_a_context_is_held_out_with_its_control():
    split = make_split(LABELS, "context_held_out", seed=1, test_contexts="L2")
    assert contexts(split, "test") == {"L2"}
    assert contexts(split, "train") == {"L1", "L3"}
    assert "L2" not in contexts(split, "val")
    controls = {part: {c.context for c in split.conditions(part) if c.is_control} for part in split.parts}
    assert controls == {"train": {"L1", "L3"}, "val": set(), "test": {"L2"}}
    assert sum(map(len, split.parts.values())) == len(LABELS)
    drawn = {next(iter(contexts(make_split(LABELS, "context_held_out", seed=s), "test"))) for s in range(12)}
    assert drawn == set(LINES)
    with pytest.raises(ValueError, match="did you mean 'L2'"):
        make_split(LABELS, "context_held_out", test_contexts=["L22"])
    with pytest.raises(ValueError, match="context_key="):
        make_split(PLAIN, "context_held_out")


def test_contexts_and_genes_are_held_out_at_once():
    split = make_split(LABELS, "context_and_gene_held_out", test_contexts="L2", test_pert_genes=["B", "H"])
    trained = [one for one in split.conditions("train") if not one.is_control]
    assert {one.context for one in trained} == contexts(split, "val") == {"L1", "L3"}
    seen = {gene for one in trained for gene in one.genes}
    assert seen == set(GENES) - {"B", "H"}
    groups = split.subgroup["test_subgroup"]
    assert set(groups["unseen_gene"]) == {
        f"{name} @ {line}" for name in ("B+ctrl", "H+ctrl", "A+B", "A+B+C") for line in ("L1", "L3")
    }
    assert set(groups["unseen_gene_and_context"]) == {f"{name} @ L2" for name in ("B+ctrl", "A+B", "A+B+C")}
    assert {Condition.parse(label).context for label in groups["unseen_context"]} == {"L2"}
    assert sum(map(len, groups.values())) == sum(not one.is_control for one in split.conditions("test"))
    drawn = make_split(LABELS, "context_and_gene_held_out", seed=3, train_gene_set_size=0.5)
    assert len(drawn.subgroup["test_subgroup"]) == 3
    assert {one.context for one in drawn.conditions("train") if one.is_control} == contexts(drawn, "train")


def test_units_are_held_out_one_by_one():
    split = make_split(LABELS, "unit_held_out", seed=1, combo_single_split_test_set_fraction=0.25)
    test = split.conditions("test")
    n_units = sum(not Condition.parse(label).is_control for label in LABELS)
    assert len(test) == round(0.25 * n_units)
    trained = {unit.genes for unit in split.conditions("train")}
    assert any(unit.genes in trained for unit in test)
    assert {c.context for c in split.conditions("train") if c.is_control} == set(LINES)


def test_a_new_kind_divides_each_context_where_it_says_so():
    def draw(labels, arguments):
        return Draw({"train": list(labels.names[2:]), "val": [labels.names[1]], "test": [labels.names[0]]})

    labels = [label for label in LABELS if not label.startswith("ctrl")]
    for by_setting, n_test in ((True, 1), (False, len(LINES))):
        register_split("mine", "The first condition is tested.", by_setting=by_setting)(draw)
        try:
            assert len(make_split(labels, "mine").parts["test"]) == n_test
        finally:
            del SPLITS["mine"]


def test_custom_parts_name_units_or_conditions():
    parts = {"train": ["A+ctrl", "B+ctrl", "ctrl"], "val": ["C+ctrl"], "test": ["D+ctrl"]}
    split = make_split(LABELS, "custom", split_dict=parts)
    assert set(split.parts["test"]) == {f"D+ctrl @ {line}" for line in LINES}
    parts = {"train": ["A+ctrl @ L1", "ctrl @ L1"], "val": ["C+ctrl @ L1"], "test": ["ctrl+A @ L2"]}
    split = make_split(LABELS, "custom", split_dict=parts)
    assert split.parts["test"] == ("A+ctrl @ L2",)
