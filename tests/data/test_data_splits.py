"""Splits: as published, free of leaks, never empty, cached by all they depend on."""

import json
import pickle
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from gears.conditions import Condition
from gears.data.splits import SPLITS, Split, check_split, folds, make_split
from gears.data.splits._registry import read_split_dict
from gears.data.splits._split import control_parts

GENES = [f"GX{i:02d}" for i in range(20)]
SINGLES = [f"{gene}+ctrl" for gene in GENES]
PAIRS = [f"{a}+{b}" for i, a in enumerate(GENES[:10]) for b in GENES[i + 1 : 10]]
LABELS = ["ctrl", *SINGLES, *PAIRS]
TRIPLES = ["GX00+GX01+GX15", "GX03+GX04+GX16", "GX05+GX06+GX07"]
CUSTOM = {"train": ["ctrl", "GX00+ctrl"], "val": ["GX01+ctrl"], "test": ["GX02+ctrl"]}


def assert_no_leak(split: Split) -> None:
    homes: dict[frozenset[str], set[str]] = {}
    for part, labels in split.parts.items():
        for label in labels:
            genes = frozenset(label.split("+")) - {"ctrl"}
            homes.setdefault(genes, set()).add(part)
    assert all(len(parts) == 1 for parts in homes.values())


@pytest.mark.shared
def test_all_published_splits_come_out(shared, caplog):
    reference = json.loads((shared / "reference" / "norman_splits.json").read_text())
    assert len(reference["splits"]) == 18
    for key, expected in reference["splits"].items():
        name, seed = key.split("/")
        caplog.clear()
        split = make_split(reference["conditions"], name, seed=int(seed))
        found = {part: sorted(labels) for part, labels in split.parts.items()}
        assert found == {part: sorted(labels) for part, labels in expected["sets_leak_free"].items()}, key
        unassigned = expected["unassigned"]
        assert len(split.excluded) == (unassigned if isinstance(unassigned, int) else len(unassigned))
        if "test_subgroup" in expected:
            groups = split.subgroup["test_subgroup"]
            published = expected["test_subgroup"].items()
            assert {g: sorted(names) for g, names in groups.items()} == {g: sorted(names) for g, names in published}
        moved = expected["twins_moved"]
        n_moved = moved if isinstance(moved, int) else len(moved)
        told = [record for record in caplog.records if "moved to one" in record.getMessage()]
        assert bool(told) == bool(n_moved)
        if told:
            assert told[0].getMessage().startswith(f"{n_moved} label")


@pytest.mark.parametrize(
    "name", [name for name in SPLITS if name not in ("custom", "no_split") and not name.startswith("context_")]
)
@pytest.mark.parametrize("seed", range(2))
def test_mirrored_spellings_never_leak(name, seed):
    mirrored = [*LABELS, *("+".join(reversed(label.split("+"))) for label in LABELS[1:]), *TRIPLES]
    split = make_split(mirrored, name, seed=seed)
    assert_no_leak(split)
    placed = [label for labels in split.parts.values() for label in labels] + list(split.excluded)
    assert sorted(placed) == sorted(mirrored)
    for part, labels in split.parts.items():
        assert any(not Condition.parse(label).is_control for label in labels), part
        assert list(labels) == [label for label in mirrored if label in set(labels)]  # the screen's order
    if name == "simulation":
        unseen = {Condition.parse(label).genes[0] for label in split.subgroup["test_subgroup"]["unseen_single"]}
        assert all(unseen.isdisjoint(one.genes) for part in ("train", "val") for one in split.conditions(part))


@pytest.mark.parametrize("name", ["single", "combo_seen0", "combo_seen1", "combo_seen2", "no_test"])
def test_an_empty_part_is_an_error_with_counts_and_a_way_out(name):
    labels = ["ctrl", *SINGLES[:8]]
    with pytest.raises(ValueError, match=r"8 singles and 0 combinations.*'simulation") as caught:
        make_split(labels, name)
    assert "test" in str(caught.value) or "val" in str(caught.value)


@pytest.mark.parametrize("spelling", [["GX03", "GX11"], "GX03_GX11", {"GX11", "GX03"}])
def test_test_genes_by_list_set_or_joined_name(spelling):
    split = make_split(LABELS, "simulation", test_perts=spelling, only_test_set_perts=True)
    for condition in split.conditions("train") + split.conditions("val"):
        assert {"GX03", "GX11"}.isdisjoint(condition.genes)
    unseen = {"GX03+ctrl", "GX11+ctrl"}
    assert set(split.subgroup["test_subgroup"]["unseen_single"]) == unseen


def test_subgroups_of_every_split_count_genes_seen_in_training():
    split = make_split(LABELS, "combo_seen1", seed=2)
    seen = {g for part in ("train", "val") for c in split.conditions(part) for g in c.genes}
    for group, names in split.subgroup["test_subgroup"].items():
        for name in names:
            genes = Condition.parse(name).genes
            known = sum(gene in seen for gene in genes)
            single = ("unseen_single", "seen_single", "")[known]
            assert group == (single if len(genes) == 1 else f"combo_seen{known}")


def test_named_conditions_and_genes_are_the_test_part(caplog):
    split = make_split(LABELS, "combo_seen2", test_perts=["GX01+GX00", "GX02+GX03"], train_gene_set_size=0.5)
    assert set(split.parts["test"]) == {"GX00+GX01", "GX02+GX03"}
    assert "makes no use of train_gene_set_size" in caplog.text
    split = make_split(LABELS, "single", test_pert_genes=["GX04", "GX15"])
    assert set(split.parts["test"]) == {"GX04+ctrl", "GX15+ctrl"}
    assert all("GX04" in label.split("+") or "validation" in why for label, why in split.excluded.items())


REFUSED = [
    ("simulaton", {}, r"unknown split 'simulaton'.*'simulation'"),
    ("simulation", {"test_perts": ["GX0"]}, "unknown perturbed gene 'GX0'"),
    ("simulation", {"test_perts": GENES[:16]}, "leave 4 for training"),
    ("simulation", {"train_gene_set_size": 75}, "expected a number from 0 to 1"),
    ("simulation", {"seed": -1}, "seed is -1"),
    ("combo_seen2", {"test_perts": ["GX01+ctrl"]}, "no combination"),
    ("custom", {}, "needs split_dict"),
    ("custom", {"split_dict": ["ctrl"]}, "dict of lists"),
    ("custom", {"test": ["GX00+ctrl"]}, r"shares 1 conditions.*'GX00\+ctrl'"),
    ("custom", {"test": ["ctrl+GX00"]}, r"shares 1 conditions"),
    ("custom", {"test": ["GX2+ctrl"]}, r"lacks: 'GX2\+ctrl' \(did you mean 'GX"),
    ("custom", {"test": None}, r"key 'test' is missing"),
    ("custom", {"tests": ["GX02+ctrl"]}, r"key 'tests' is unknown; did you mean 'test'"),
    ("custom", {"test": "GX02+ctrl"}, r"must be a list"),
    ("custom", {"test": []}, r"leaves test without"),
    ("custom", {"val": ["ctrl"], "train": ["GX00+ctrl"]}, r"leaves val without"),
]


@pytest.mark.parametrize(("name", "options", "words"), REFUSED)
def test_wrong_splits_are_refused_in_words(name, options, words):
    if {"train", "val", "test", "tests"} & set(options):
        options = {"split_dict": {key: value for key, value in (CUSTOM | options).items() if value is not None}}
    with pytest.raises(ValueError, match=words):
        make_split(LABELS, name, **options)
    for parts, why in (({"train": ("A+B",), "test": ("B+A",)}, "in both"), ({"trian": ("A+B",)}, "unknown part")):
        with pytest.raises(ValueError, match=why):
            Split("custom", 1, {}, parts)


# Custom splits


def test_custom_resolves_other_spellings_and_keeps_twins_together():
    labels = ["ctrl", "GX00+ctrl", "ctrl+GX00", "GX01+ctrl", "GX02+GX03", "GX04+ctrl"]
    given = {"train": ["ctrl", "GX00+ctrl"], "val": ["ctrl+GX01"], "test": ("GX03+GX02",)}
    split = make_split(labels, "custom", split_dict=given)
    train = ("ctrl", "GX00+ctrl", "ctrl+GX00")
    assert split.parts == {"train": train, "val": ("GX01+ctrl",), "test": ("GX02+GX03",)}
    assert split.excluded == {"GX04+ctrl": "not named in the split"}


def test_custom_files(tmp_path):
    (tmp_path / "split.json").write_text(json.dumps(CUSTOM))
    (tmp_path / "split.pkl").write_bytes(pickle.dumps(CUSTOM))
    make_split(LABELS, "custom", split_dict=CUSTOM).save(tmp_path / "saved.json")
    assert read_split_dict(tmp_path / "split.json") == CUSTOM
    assert read_split_dict(tmp_path / "split.pkl") == CUSTOM
    saved = read_split_dict(tmp_path / "saved.json")
    assert make_split(LABELS, "custom", split_dict=saved).parts["val"] == ("GX01+ctrl",)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_split_dict(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ValueError, match="not valid JSON"):
        read_split_dict(tmp_path / "bad.json")


# The split object and its cache


SHARES = (0.6, 0.2, 0.2)


def test_control_cells_are_divided_too(toy_data):
    toy_data.prepare_split("simulation", control_shares=SHARES)
    parts = control_parts(toy_data.whole_screen, toy_data.split)
    assert {part: len(cells) for part, cells in parts.items()} == {"train": 36, "val": 12, "test": 12}
    assert sorted(np.concatenate(list(parts.values()))) == toy_data.whole_screen.control_cells.tolist()
    expression = toy_data.whole_screen.cells.csr().toarray()
    own = {part: {row.tobytes() for row in expression[cells]} for part, cells in parts.items()}
    for name, loader in toy_data.get_dataloader(8).items():
        part = name.removesuffix("_loader")
        loader.set_epoch(3)
        for batch in loader:
            assert {row.tobytes() for row in batch.x_BG.numpy()} <= own[part], name
    controls = toy_data.screen.statistics.mean[toy_data.screen.control_id]
    np.testing.assert_allclose(controls, expression[parts["train"]].mean(axis=0), rtol=1e-6)
    assert toy_data.adata.n_obs == 216
    toy_data.prepare_split("simulation")
    assert len(toy_data.screen.control_cells) == 60


def test_impossible_shares_are_named(toy_data):
    for wrong in ((0.5, 0.5), (0.9, 0.2, 0.1), (0, 0.5, 0.5), (1.2, -0.1, -0.1), "a"):
        with pytest.raises(ValueError, match="control_shares are three shares"):
            toy_data.prepare_split("simulation", control_shares=wrong)
    with pytest.raises(ValueError, match=r"of 60 control cells leaves too few in a part \(val 1, test 1; 2"):
        toy_data.prepare_split("simulation", control_shares=(0.97, 0.015, 0.015))
    toy_data.prepare_split("simulation", control_shares=(0.8, 0, 0.2))
    assert len(toy_data.screen_of("val").control_cells) == len(toy_data.screen.control_cells) == 48
    labels = toy_data.screen.labels
    hashes = {make_split(labels, "simulation", control_shares=shares).hash for shares in (None, SHARES)}
    assert len(hashes) == 2


LARGER = ["GX00+GX01+GX15", "GX03+GX04+GX16", "GX02+GX05+GX08+GX17", "GX06+GX07+GX09+GX18"]
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


CLEAN = {"train": ["ctrl", "A+ctrl", "B+ctrl"], "val": ["C+ctrl"], "test": ["A+B"]}


def kinds(report) -> list[str]:
    return [finding.kind for finding in report.findings]


def test_a_clean_split_is_clean():
    report = check_split(CLEAN, ["ctrl", "A+ctrl", "B+ctrl", "C+ctrl", "A+B"])
    assert report.ok
    assert kinds(report) == []
    assert report.n_conditions == {"train": 2, "val": 1, "test": 1}
    assert "no leak found" in str(report)
    report.raise_if_leaky()


@pytest.mark.parametrize(
    ("train", "test"),
    [("A+B", "B+A"), ("A+ctrl", "ctrl+A"), ("A+B", " A + B "), ("A+B+C", "C+A+B"), ("A+B", "A+B+ctrl")],
)
def test_twin_spellings_are_leaks(train, test):
    report = check_split({"train": ["ctrl", train], "val": ["D+ctrl"], "test": [test]})
    assert kinds(report) == ["condition-in-two-parts"]
    finding = report.findings[0]
    assert finding.count == 1
    assert repr(train) in finding.example
    assert repr(test) in finding.example
    with pytest.raises(ValueError, match=r"this split leaks:\n  - "):
        report.raise_if_leaky()


def test_a_split_by_cell_leaks():
    parts = ["train", "train", "test", "valid"]
    obs = pd.DataFrame({"condition": ["ctrl", "A+B", "A+B", "C+ctrl"] * 3, "split": parts * 3})
    report = check_split(obs)
    assert kinds(report) == ["condition-in-two-parts"]
    assert report.findings[0].count == 1
    with pytest.raises(ValueError, match=r"no column 'perturbation'; columns: condition, split; name"):
        check_split(obs, condition_key="perturbation")


def test_own_spellings_of_control_and_separator():
    parts = {"train": ["non-targeting", "A_B"], "validation": ["C"], "test": ["B_A"]}
    report = check_split(parts, ctrl_label="non-targeting", sep="_")
    assert kinds(report) == ["condition-in-two-parts"]
    assert list(report.n_conditions) == ["train", "val", "test"]


def test_missing_control_empty_parts_unknown_and_lost_labels():
    parts = {"train": ["A+ctrl"], "val": ["ctrl"], "test": ["Z+ctrl", "A+"]}
    report = check_split(parts, ["ctrl", "A+ctrl", "B+ctrl"])
    expected = {"unreadable-label", "control-not-in-train", "unknown-label", "in-no-part", "empty-part"}
    assert set(kinds(report)) == expected
    text = str(report)
    assert "2 labels are not in the screen: A+, Z+ctrl" in text
    assert "'val' has no perturbed condition" in text
    with pytest.raises(TypeError, match="check_split takes"):
        check_split({"train": "A+ctrl"})


def test_untrue_subgroups_are_found():
    """Published simulation counts validation genes as seen: with these seeds some seen-2 pairs are not."""
    untrue = 0
    for seed in range(1, 6):
        report = check_split(make_split(LABELS, "simulation", seed=seed))
        assert report.ok
        untrue += sum(f.count for f in report.findings if f.kind == "untrue-subgroup")
        assert check_split(make_split(LABELS, "simulation", seed=seed, mode="strict")).findings == ()
    assert untrue > 3
    lie = Split("own", 1, {"mode": "strict"}, CLEAN, {"test_subgroup": {"combo_seen0": ["A+B"]}}, exact=True)
    report = check_split(lie)
    assert not report.ok
    assert "'A+B' is listed as 'combo_seen0', but is 'combo_seen2'" in str(report)


def test_files_of_splits(tmp_path):
    leaky = {"train": ["ctrl", "A+B"], "val": ["C+ctrl"], "test": ["B+A"]}
    (tmp_path / "own.json").write_text(json.dumps(leaky))
    (tmp_path / "published.pkl").write_bytes(pickle.dumps(leaky))
    for name in ("own.json", "published.pkl"):
        assert kinds(check_split(tmp_path / name)) == ["condition-in-two-parts"]
    make_split(LABELS, "simulation").save(tmp_path / "saved.json")
    assert check_split(tmp_path / "saved.json", LABELS).ok
