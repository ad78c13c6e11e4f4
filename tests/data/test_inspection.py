"""Reports: everything wrong at once before preparing, what went and why after it; the command line says the same."""

import json
from collections.abc import Callable

import numpy as np
import pytest
from anndata import AnnData
from driving import pert_data_of

from gears.cli import main
from gears.cli._screens import inspect_parser, prepare_parser
from gears.cli._train import train_parser
from gears.data import inspect_screen
from gears.pertdata import PertData


@pytest.fixture
def bad(toy_adata):
    """A screen with a problem of every kind that does not hide another."""
    labels = toy_adata.obs["condition"].astype(str).to_numpy()
    labels[labels == "ctrl"] = "control"
    labels[60:62] = "GX00+"
    toy_adata.obs["condition"] = labels
    names = toy_adata.var["gene_name"].to_numpy().copy()
    names[1], names[29] = "GX00", "GX+3"
    toy_adata.var["gene_name"] = names
    toy_adata.obs["cell_type"] = np.where(np.arange(216) < 100, "cellA", "cellB")
    toy_adata.X.data = np.rint(np.expm1(toy_adata.X.data))
    return toy_adata


def test_all_problems_come_at_once_each_with_number_example_and_remedy(bad):
    named = inspect_screen(bad)
    kinds = {finding.kind: finding for finding in named.findings}
    names = {"unreadable-label", "no-control", "repeated-gene-name", "separator-in-gene-name"}
    assert set(kinds) == names | {"several-cell-types", "counts"}
    assert all(finding.remedy and finding.count >= 1 for finding in named.findings)
    assert not named.ok
    assert (kinds["unreadable-label"].count, kinds["unreadable-label"].example) == (2, "GX00+")
    assert (kinds["repeated-gene-name"].count, kinds["repeated-gene-name"].example) == (1, "GX00")
    text = str(named)
    assert text.count("\n  - ") == 6
    assert "not ready: fix the problems above" in text
    assert json.loads(json.dumps(named.to_dict()))["ok"] is False


def test_a_good_screen(toy_adata, toy_go):
    toy_adata.obs["condition"] = toy_adata.obs["condition"].astype(str).replace({"GX07+ctrl": "FAR+ctrl"})
    report = inspect_screen(toy_adata, is_gene=lambda gene: gene in toy_go, min_cells=13)
    assert not report.ok
    report = inspect_screen(toy_adata, is_gene=lambda gene: gene in toy_go)
    assert report.ok
    facts = report.facts
    assert (facts["cells"], facts["genes"], facts["control_cells"]) == (216, 30, 60)
    assert (facts["conditions"], facts["singles"], facts["pairs"]) == (13, 8, 5)
    assert facts["cells_per_condition"] == "12 to 12, median 12"
    assert facts["not_measured"] == facts["not_annotated"] == ["FAR"]
    assert "ready to be prepared" in str(report)


def test_the_summary_of_a_prepared_screen(toy_adata, toy_go, tmp_path):
    labels = toy_adata.obs["condition"].astype(str).to_numpy()
    toy_adata = toy_adata[np.setdiff1d(np.arange(216), np.flatnonzero(labels == "GX07+ctrl")[3:])].copy()
    data = pert_data_of(tmp_path, toy_adata, gene2go=toy_go, split="simulation", min_cells=5)
    for report in (data.summary(), json.loads(json.dumps(data.summary().to_dict()))):
        facts = report.facts if not isinstance(report, dict) else report["facts"]
        assert (facts["cells"], facts["singles"], facts["pairs"]) == (204, 7, 5)
        assert set(facts["split"]) == {"train", "val", "test"}
    assert "dropped 1 condition, 3 cells: fewer than min_cells=5 cells: GX07+ctrl (3)" in str(data.summary())
    assert repr(data.summary()) == str(data.summary())


def test_genes_in_other_letters_are_pointed_out(toy_adata, tmp_path):
    labels = toy_adata.obs["condition"].astype(str)
    toy_adata.obs["condition"] = labels.replace({"GX07+ctrl": "gx07+ctrl"})
    toy_adata.obs["_index"] = 1
    report = inspect_screen(toy_adata)
    assert report.ok
    assert "1 perturbed gene not measured as spelled, but in other letters: gx07 (GX07)" in str(report)
    data = PertData.from_adata(toy_adata, data_path=tmp_path, gene2go={"GX00": ["a"]}, verbose=False)
    assert "index_" in data.adata.obs


def test_mixed_control_spellings_are_all_named(toy_adata):
    """Advice to pass one of them would make genes of the others."""
    labels = toy_adata.obs["condition"].astype(str)
    for changed, expected in (
        (labels.replace({"ctrl": "control"}), ("no control cells", "ctrl_label=['control', 'ctrl']")),
        (
            labels.where(np.arange(216) >= 30, "NegCtrl0"),
            ("1 token like a control's, which would be taken for a gene (30 cells): label 'NegCtrl0'",
             "ctrl_label=['NegCtrl0', 'ctrl']"),
        ),
    ):  # fmt: skip
        toy_adata.obs["condition"] = changed.to_numpy()
        (told,) = inspect_screen(toy_adata, style="gears").findings
        assert all(words in str(told) for words in expected)
    assert inspect_screen(toy_adata, style="gears", ctrl_label=["NegCtrl0", "ctrl"]).ok


# The command


def test_gears_inspect(toy_adata, tmp_path, capsys):
    toy_adata.obs = toy_adata.obs.rename(columns={"condition": "label"})
    toy_adata.obs["label"] = toy_adata.obs["label"].astype(str).str.replace("ctrl", "nt3", regex=False)
    toy_adata.write_h5ad(tmp_path / "toy.h5ad")
    assert main(["inspect", str(tmp_path / "toy.h5ad")]) == 2
    shown = capsys.readouterr().out
    assert "name the column and the control: --condition-key, --ctrl-label (and --sep" in shown
    options = ["--condition-key", "label", "--unknown-labels", "keep"]
    arguments = ["inspect", str(tmp_path / "toy.h5ad"), *options]
    assert main([*arguments, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["ok"] is True
    assert shown["facts"]["singles"] == 8
    assert shown["labels"]["GX00+nt3"] == "GX00+ctrl"
    assert main([*arguments, "--ctrl-label", "GX99"]) == 2
    assert "--ctrl-label nt3" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "absent.h5ad")]) == 2
    assert "there is no file or folder" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["toy.h5ad"]


def relabelled(change: Callable[[str], str], key: str = "condition") -> Callable[[AnnData], None]:
    def apply(adata: AnnData) -> None:
        adata.obs[key] = [change(label) for label in adata.obs["condition"].astype(str)]
        if key != "condition":
            del adata.obs["condition"]

    return apply


def without(axis: str, column: str) -> Callable[[AnnData], None]:
    def apply(adata: AnnData) -> None:
        del getattr(adata, axis)[column]

    return apply


SCREENS: dict[str, tuple[Callable[[AnnData], None], list[str]]] = {
    "published": (lambda adata: None, []),
    "another control": (relabelled(lambda label: label.replace("ctrl", "NT")), ["--ctrl-label", "NT"]),
    "another control, unnamed": (relabelled(lambda label: label.replace("ctrl", "NT")), []),
    "scperturb": (
        relabelled(
            lambda label: "control" if label == "ctrl" else label.replace("+ctrl", "").replace("+", "_"), "perturbation"
        ),
        [],
    ),
    "control in another style's column": (
        relabelled(lambda label: "mock" if label == "ctrl" else label.replace("+ctrl", ""), "target_gene"),
        ["--ctrl-label", "mock", "--unknown-labels", "keep"],
    ),
    "no cell type": (without("obs", "cell_type"), []),
    "symbols in the index": (lambda adata: setattr(adata, "var", adata.var.set_index("gene_name")), []),
    "pairs by another sign": (relabelled(lambda label: label if "ctrl" in label else label.replace("+", "|")), []),
    "unassigned": (
        relabelled(lambda label: label if label != "GX07+ctrl" else "unassigned"),
        ["--drop-labels", "unassigned"],
    ),
    "no labels": (without("obs", "condition"), []),
}  # fmt: skip


@pytest.mark.parametrize("case", SCREENS)
def test_inspect_and_prepare_give_one_answer(case, toy_adata, tmp_path, capsys):
    change, options = SCREENS[case]
    change(toy_adata)
    toy_adata.write_h5ad(tmp_path / "screen.h5ad")
    inspected = main(["inspect", str(tmp_path / "screen.h5ad"), *options])
    capsys.readouterr()
    prepared = main(["prepare", str(tmp_path / "screen.h5ad"), "--work-dir", str(tmp_path / "work"), *options])
    assert inspected == prepared == (2 if case in ("another control, unnamed", "no labels") else 0)
    assert inspect_screen(toy_adata).ok or inspected or options


def test_an_unknown_layout_names_the_columns_that_look_like_labels(toy_adata):
    labels = toy_adata.obs["condition"].astype(str).replace({"ctrl": "mock"})
    toy_adata.obs = toy_adata.obs.assign(treat=labels, is_control=(labels == "mock").astype(int), n=range(216))
    toy_adata.obs["donor"] = np.where(np.arange(216) % 3, "d1", np.where(np.arange(216) % 2, "d2", "d3"))
    del toy_adata.obs["condition"]
    (found,) = [one for one in inspect_screen(toy_adata).findings if one.severity == "error"]
    assert "these columns look like labels: 'treat' (14 values, cells: 'mock' (60), 'GX00+ctrl' (12)" in str(found)
    assert "'donor' (3 values" in str(found)
    assert "is_control" not in found.remedy


def test_options_of_inspect_are_options_of_prepare_and_train(toy_adata, tmp_path, capsys):
    named = [
        {option for action in parser()._actions for option in action.option_strings}
        for parser in (inspect_parser, prepare_parser, train_parser)
    ]
    assert {"--obo", "--gene2go", "--guides", "--normalize"} <= named[0]
    assert named[0] <= named[1]
    assert named[0] <= named[2]
    toy_adata.write_h5ad(tmp_path / "screen.h5ad")
    (tmp_path / "go.obo").write_text("[Term]\nid: T1\n\n[Term]\nid: T2\nis_a: T1\n")
    (tmp_path / "terms.json").write_text('{"GX00": ["T2"]}')
    options = ["--gene2go", str(tmp_path / "terms.json"), "--obo", str(tmp_path / "go.obo")]
    assert main(["inspect", str(tmp_path / "screen.h5ad"), *options]) == 0
    assert main(["inspect", str(tmp_path / "screen.h5ad"), "--obo", str(tmp_path / "absent.obo")]) == 2
    assert "absent.obo" in capsys.readouterr().err


def test_a_command_without_these_options_names_the_one_that_has_them(toy_adata, tmp_path, capsys, monkeypatch):
    toy_adata.X.data = np.rint(np.expm1(toy_adata.X.data))
    toy_adata.write_h5ad(tmp_path / "screen.h5ad")
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "screen.h5ad"]) == 2
    told = capsys.readouterr().err
    assert "pass --normalize" in told
    assert "run `gears prepare screen.h5ad` with these options" in told


def test_without_annotation_a_note_names_the_genes_that_need_one(toy_adata):
    assert not inspect_screen(toy_adata).findings
    toy_adata.obs["condition"] = toy_adata.obs["condition"].astype(str).replace({"GX07+ctrl": "FAR+ctrl"})
    (note,) = inspect_screen(toy_adata).findings
    assert (note.kind, note.severity, note.example) == ("no-annotation", "note", "FAR")
    assert not inspect_screen(toy_adata, is_gene=lambda name: name == "FAR").findings
