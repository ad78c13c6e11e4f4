"""`inspect`, `prepare` and Python read a screen in one way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from gears.cli import main
from gears.cli._screens import inspect_parser, prepare_parser
from gears.cli._train import train_parser
from gears.data import inspect_screen

if TYPE_CHECKING:
    from collections.abc import Callable

    from anndata import AnnData


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
