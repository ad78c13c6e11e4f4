"""check_split: leaks in any split, whoever made it."""

import json
import pickle

import pandas as pd
import pytest

from gears.data.splits import Split, check_split, make_split

GENES = [f"GX{i:02d}" for i in range(20)]
PAIRS = [f"{a}+{b}" for i, a in enumerate(GENES[:10]) for b in GENES[i + 1 : 10]]
LABELS = ["ctrl", *(f"{gene}+ctrl" for gene in GENES), *PAIRS]
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
    assert "'A+B' is said to be 'combo_seen0', but is 'combo_seen2'" in str(report)


def test_files_of_splits(tmp_path):
    leaky = {"train": ["ctrl", "A+B"], "val": ["C+ctrl"], "test": ["B+A"]}
    (tmp_path / "own.json").write_text(json.dumps(leaky))
    (tmp_path / "published.pkl").write_bytes(pickle.dumps(leaky))
    for name in ("own.json", "published.pkl"):
        assert kinds(check_split(tmp_path / name)) == ["condition-in-two-parts"]
    make_split(LABELS, "simulation").save(tmp_path / "saved.json")
    assert check_split(tmp_path / "saved.json", LABELS).ok
