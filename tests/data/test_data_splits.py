"""Splits: as published, free of leaks, never empty, cached by all they depend on."""

import json
import pickle

import numpy as np
import pytest

from gears.conditions import Condition
from gears.data.splits import SPLITS, Split, make_split, prepare_split
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
        told = [record for record in caplog.records if "put together" in record.getMessage()]
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


def test_summary_lists_every_label(toy_screen):
    split = prepare_split(toy_screen, "simulation")
    table = split.summary(toy_screen)
    assert list(table.columns) == ["condition", "part", "subgroup", "n_cells", "reason"]
    assert sorted(table["condition"]) == sorted(toy_screen.labels)
    assert table["n_cells"].sum() == 216
    groups = {"combo_seen0", "combo_seen1", "combo_seen2", "unseen_single"}
    assert set(table.loc[table["part"] == "test", "subgroup"]) <= groups


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
