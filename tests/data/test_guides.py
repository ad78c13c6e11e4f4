"""Tables of guides: names with any sign, several lanes, targets by the full name of a guide."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from scipy import sparse

from gears.cli import main
from gears.data.reading._guides import add_guides
from gears.data.reading._open import open_screen

TARGETS = {
    "AHR_+_17338.23-P1P2": "AHR",
    "KLF1_-_12998.23-P1,P2": "KLF1",
    "SPI1;a|b": "SPI1",
    "non-targeting_0001": "non-targeting",
}
AHR, KLF1, SPI1, CONTROL = TARGETS


def cells(barcodes: list[str], seed: int = 0) -> AnnData:
    counts = np.random.default_rng(seed).poisson(2.0, size=(len(barcodes), 3)).astype(np.float32)
    var = pd.DataFrame({"gene_name": ["AHR", "KLF1", "SPI1"]}, index=["E0", "E1", "E2"])
    return AnnData(sparse.csr_matrix(counts), obs=pd.DataFrame(index=barcodes), var=var)


def labels(adata: AnnData) -> list[str]:
    return adata.obs["condition"].astype(str).tolist()


@pytest.mark.parametrize("sign", ["|", ";", ",", "+"])
def test_names_of_guides_may_hold_any_sign(sign):
    calls = [AHR, f"{AHR}{sign}{KLF1}", CONTROL, f"{KLF1}{sign}{CONTROL}"]
    table = pd.DataFrame({"cell_barcode": list("abcd"), "feature_call": calls})
    assert labels(add_guides(cells(list("abcd")), table, TARGETS)) == [
        "AHR+ctrl",
        "AHR+KLF1",
        "ctrl",
        "KLF1+ctrl",
    ]
    whole = pd.DataFrame({"cell_barcode": ["a"], "feature_call": [SPI1]})
    assert labels(add_guides(cells(["a"]), whole, TARGETS)) == ["SPI1+ctrl"]


@pytest.mark.parametrize("column", ["id", "name", "protospacer", "index"])
def test_targets_are_a_table_by_whichever_name_the_calls_use(column, tmp_path):
    calls = pd.DataFrame({"cell_barcode": ["a", "b"], "feature_call": [f"{AHR}|{KLF1}", CONTROL]})
    table = pd.DataFrame({"target_gene_name": list(TARGETS.values())})
    if column == "index":
        found = add_guides(cells(["a", "b"]), calls, table.set_index(pd.Index(list(TARGETS), name="guide")))
    else:
        table[column] = list(TARGETS)
        table["guide_id"] = ["g1", "g2", "g3", "g4"]
        table.to_csv(tmp_path / "features.csv", index=False)
        found = add_guides(cells(["a", "b"]), calls, tmp_path / "features.csv")
    assert labels(found) == ["AHR+KLF1", "ctrl"]


BARCODES = ["AAA-1", "CCC-1"]
CALLS = {"lane1": [AHR, CONTROL], "lane2": [KLF1, AHR]}


@pytest.fixture
def lanes(tmp_path):
    """Two lanes with the same barcodes and a table of calls each."""
    for number, (name, calls) in enumerate(CALLS.items()):
        cells(BARCODES, number).write_h5ad(tmp_path / f"{name}.h5ad")
        folder = tmp_path / "calls" / name
        folder.mkdir(parents=True)
        table = pd.DataFrame({"cell_barcode": BARCODES, "feature_call": calls})
        table.to_csv(folder / "protospacer_calls_per_cell.csv", index=False)
    return tmp_path


@pytest.mark.parametrize("given", ["folder", "list", "list in another order"])
def test_several_lanes_have_a_table_each(given, lanes):
    adata = open_screen(lanes)
    files: Any = [lanes / "calls" / name / "protospacer_calls_per_cell.csv" for name in CALLS]
    guides = {"folder": lanes / "calls", "list": files}.get(given, files[::-1])
    assert labels(add_guides(adata, guides, TARGETS)) == ["AHR+ctrl", "ctrl", "KLF1+ctrl", "AHR+ctrl"]


def test_lanes_by_the_number_at_the_end_of_barcodes(lanes):
    adata = cells(["AAA-1", "CCC-1", "AAA-2", "CCC-2"])
    assert labels(add_guides(adata, lanes / "calls", TARGETS)) == [
        "AHR+ctrl",
        "ctrl",
        "KLF1+ctrl",
        "AHR+ctrl",
    ]
    with pytest.raises(ValueError, match=r"there are 2 tables of guides .* and 1 lane \(1\)"):
        add_guides(cells(BARCODES), lanes / "calls", TARGETS)


def test_the_command_takes_the_folder_of_lanes(lanes, tmp_path):
    table = pd.DataFrame({"id": list(TARGETS), "target_gene": list(TARGETS.values())})
    table.to_csv(tmp_path / "targets.tsv", sep="\t", index=False)
    screens = tmp_path / "screens"
    screens.mkdir()
    for name in CALLS:
        (lanes / f"{name}.h5ad").rename(screens / f"{name}.h5ad")
    options = ["--guides", str(lanes / "calls"), "--guide-targets", str(tmp_path / "targets.tsv")]
    arguments = [str(screens), *options, "--normalize", "--skip-calc-de"]
    assert main(["inspect", *arguments]) == 0
    assert main(["prepare", *arguments, "--work-dir", str(tmp_path / "work")]) == 0


@pytest.mark.parametrize(("second", "sep"), [("guide2", ","), ("guide_B", ";"), ("second_guide", "\t")])
def test_every_column_of_guides_counts_whatever_separates_them(second, sep, tmp_path):
    table = pd.DataFrame({"cell_barcode": ["a", "b"], "guide": [AHR, CONTROL], second: [KLF1, CONTROL]})
    (tmp_path / "g.csv").write_text("# of a spreadsheet\n" + table.to_csv(index=False, sep=sep))
    assert labels(add_guides(cells(["a", "b"]), tmp_path / "g.csv", TARGETS)) == ["AHR+KLF1", "ctrl"]


def test_a_column_with_names_of_guides_that_is_not_read_is_named(caplog):
    table = pd.DataFrame({"cell_barcode": ["a", "b"], "guide": [AHR, CONTROL], "other": [KLF1, CONTROL]})
    add_guides(cells(["a", "b"]), table, TARGETS)
    assert "column 'other' of the guide table is not read" in caplog.text


@pytest.mark.parametrize("empty", ["", "NA", None, np.nan])
def test_guides_without_a_target_are_controls_by_name_or_an_error(empty):
    table = pd.DataFrame({"cell_barcode": ["a", "b", "c"], "feature_call": [AHR, "NT_1", "safe_2"]})
    targets = pd.DataFrame({"id": [AHR, "NT_1", "safe_2"], "target_gene_name": ["AHR", empty, empty]})
    assert labels(add_guides(cells(list("abc")), table, targets)) == ["AHR+ctrl", "ctrl", "ctrl"]
    strange = table.replace("NT_1", "XY_1"), targets.replace("NT_1", "XY_1")
    with pytest.raises(ValueError, match=r"1 guide without a target: XY_1;.*ctrl_label=\['XY_1'\]"):
        add_guides(cells(list("abc")), *strange)
    series = pd.concat([strange[1], pd.DataFrame({"id": ["XY_2"], "target_gene_name": ["Non-Targeting"]})])
    assert labels(add_guides(cells(list("abc")), strange[0], series)) == ["AHR+ctrl", "ctrl", "ctrl"]
    named = add_guides(cells(list("abc")), *strange, ctrl_label=["XY_1", "safe_2"])
    assert labels(named) == ["AHR+ctrl", "ctrl", "ctrl"]


def test_a_table_separated_by_another_sign_says_so(tmp_path):
    (tmp_path / "g.csv").write_text("cell_barcode|target_gene\nAAA-1|AHR\n")
    with pytest.raises(ValueError, match=r"g\.csv is separated by \|, expected tab, comma or semicolon"):
        add_guides(cells(["AAA-1"]), tmp_path / "g.csv")
