"""Tables of guides: names with any sign, several lanes, targets by the full name of a guide."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from scipy import sparse

from gears.cli import main
from gears.data import add_guides, open_screen
from gears.pertdata import PertData

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
    assert labels(add_guides(cells(list("abcd")), table, TARGETS)) == ["AHR+ctrl", "AHR+KLF1", "ctrl", "KLF1+ctrl"]
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
    assert labels(add_guides(adata, lanes / "calls", TARGETS)) == ["AHR+ctrl", "ctrl", "KLF1+ctrl", "AHR+ctrl"]
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


# Columns of guides in obs


GENES = ["AHR", "KLF1", "SPI1", "CEBPA", "CEBPB", "HLA-A", "NKX2-5", "JUN", "FOS", "MYC"]
PAIRS = [("AHR", "KLF1"), ("HLA-A", "NKX2-5")]


def in_guides(gene: str, control: str, sign: str = "|", column: str = "guide", **others: str) -> AnnData:
    """A screen of ten genes and two pairs with the guides of each cell in obs; `others` have another gene."""
    cells = [["NTC"]] * 24 + [[name] for name in GENES for _ in range(6)] + [[*pair] for pair in PAIRS * 6]
    forms = [gene if name != "NTC" else control for cell in cells for name in cell]
    names = iter(form.format(g=others.get(n.replace("-", "_"), n), n=1 + i % 3) for i, (form, n) in enumerate(
        zip(forms, (name for cell in cells for name in cell), strict=True)))  # fmt: skip
    labels_N = [sign.join(next(names) for _ in cell) for cell in cells]
    counts = np.random.default_rng(0).poisson(2.0, size=(len(cells), len(GENES))).astype(np.float32)
    obs = pd.DataFrame({column: labels_N}, index=[f"c{i}" for i in range(len(cells))])
    return AnnData(sparse.csr_matrix(np.log1p(counts)), obs=obs, var=pd.DataFrame({"gene_name": GENES}, index=GENES))


def read(adata: AnnData, tmp_path: Any, **options: Any) -> set[str]:
    data = PertData.from_adata(adata, data_path=tmp_path, verbose=False, skip_calc_de=True, **options)
    assert len(data.screen.control_cells) == 24
    return {str(condition) for condition in data.screen.conditions}


EXPECTED = {"ctrl", *(f"{gene}+ctrl" for gene in GENES), "AHR+KLF1", "HLA-A+NKX2-5"}


@pytest.mark.parametrize(
    ("gene", "control", "sign", "column"),
    [
        ("{g}_g{n}", "NTC_{n}", "|", "guide"),
        ("sg{g}-{n}", "sgNT-{n}", "+", "sgRNA"),
        ("{g}-{n}", "NT-{n}", ";", "guide_id"),
        ("{g}_sg{n}", "non-targeting_0012{n}", ",", "condition"),
        ("{g}.{n}", "NTC.{n}", "|", "target_gene"),
        ("{g}g{n}", "control", "_", "perturbation"),
        ("{g}_{n}", "NegCtrl{n}", "_", "guide"),
        ("p_sg{g}_{n}", "p_INTERGENIC39{n}", "|", "guide"),
        ("sgRNA_{g}_47{n}", "sgRNA_NTC_{n}", "|", "guide"),
        ("{g}_+_17338.2{n}-P1P2", "AAVS1_{n}", "|", "feature_call"),
    ],
)
def test_guides_of_known_genes_are_read_as_genes_with_one_warning(gene, control, sign, column, tmp_path, caplog):
    adata = in_guides(gene, control, sign, column)
    assert read(adata, tmp_path) == EXPECTED
    (line,) = [record.getMessage() for record in caplog.records if "names of guides" in record.getMessage()]
    assert f"{gene.format(g='AHR', n=1)} -> AHR" in line
    assert f"guide_key={column!r} confirms this" in line
    caplog.clear()
    assert read(adata, tmp_path / "said", guide_key=column) == EXPECTED
    assert "names of guides" not in caplog.text


@pytest.mark.parametrize("gene", ["HLA-A", "NKX2-5", "MT-CO1", "H2-K1", "AP-1", "RP11-34.1"])
@pytest.mark.parametrize("end", ["", "-{n}", "_g{n}"])
def test_a_gene_never_loses_the_end_of_its_name(gene, end, tmp_path):
    adata = in_guides(f"{{g}}{end}", "NTC_{n}", CEBPB=gene)
    options = {"guide_key": "guide"} if end else {}
    found = read(adata, tmp_path, **options)
    assert f"{gene}+ctrl" in found
    assert not {f"{stem}+ctrl" for stem in ("HLA", "NKX2", "MT", "H2", "AP", "RP11", "RP11-34")} & found


@pytest.mark.parametrize(
    ("gene", "control", "expected"),
    [("{g}_G1", "NTC_G1", "10 names in .*context_key="), ("{g}_24", "NTC_24", "context_key=")],
)
def test_ends_that_may_be_phases_or_times_are_asked_about(gene, control, expected, tmp_path):
    adata = in_guides(gene, control, column="condition")
    with pytest.raises(ValueError, match=expected) as caught:
        read(adata, tmp_path)
    assert "pass guide_key='condition' if they are guides" in str(caught.value)
    assert "as_genes" not in str(caught.value)
    assert read(adata, tmp_path, guide_key="condition") == EXPECTED


def test_some_guides_among_genes_are_asked_about(tmp_path):
    adata = in_guides("{g}", "NTC", column="condition", AHR="AHR-1", KLF1="KLF1-2")
    with pytest.raises(ValueError, match=r"2 names in obs\['condition'\] may be guides of known genes") as caught:
        read(adata, tmp_path)
    assert "AHR-1 -> AHR, KLF1-2 -> KLF1, NTC -> control; pass guide_key='condition' if they are guides" in str(
        caught.value
    )
    assert read(adata, tmp_path, guide_key="condition") == EXPECTED
    assert "AHR-1+ctrl" in read(adata, tmp_path, ctrl_label="NTC", as_genes=["AHR-1", "KLF1-2"])


IDS = {gene: f"x{i}" for i, gene in enumerate(GENES)}


@pytest.mark.parametrize("form", ["dict", "series", "table", "file"])
def test_targets_of_guides_in_obs(form, tmp_path):
    adata = in_guides("{g}.{n}", "q.{n}", **{gene.replace("-", "_"): name for gene, name in IDS.items()})
    with pytest.raises(ValueError, match=r"33 of 33 names .* contain no known gene.*guide_targets= takes a table"):
        read(adata, tmp_path)
    target_of = {f"{name}.{n}": gene for gene, name in IDS.items() for n in (1, 2, 3)}
    given: Any = target_of | {"q.1": "", "q.2": "non-targeting", "q.3": "NTC"}
    table = pd.DataFrame({"guide": list(given), "target_gene": list(given.values())})
    if form == "series":
        given = pd.Series(given)
    elif form != "dict":
        given = table
    if form == "file":
        table.to_csv(tmp_path / "targets.csv", index=False)
        given = tmp_path / "targets.csv"
    assert read(adata, tmp_path, guide_targets=given) == EXPECTED
    with pytest.raises(
        ValueError, match=r"3 of 33 names in .* have no target in guide_targets.* q\.1, q\.2, q\.3; .*ctrl_label="
    ):
        read(adata, tmp_path, guide_targets=target_of)
    assert read(adata, tmp_path, guide_targets=target_of, ctrl_label="q") == EXPECTED
    empty = target_of | {"q.1": "", "q.2": "NA", "q.3": "none"}
    with pytest.raises(ValueError, match=r"3 of 33 names in .* have no target"):
        read(adata, tmp_path, guide_targets=empty)


def test_a_pattern_says_where_the_gene_is(tmp_path):
    adata = in_guides("{g}:crispr:{n}", "neg:{n}", column="what")
    options = {"guide_key": "what", "guide_pattern": r"([\w-]+):.*"}
    assert read(adata, tmp_path, **options) == EXPECTED
    for pattern in ("(.+", "(a)(b)", "abc"):
        with pytest.raises(ValueError, match="expected a regular expression with one group, the gene"):
            read(adata, tmp_path, guide_key="what", guide_pattern=pattern)


def test_the_guides_of_both_halves_are_one(tmp_path):
    """As in the columns of the screen of Norman et al. (2019): KLF1_NegCtrl0__KLF1_NegCtrl0."""
    adata = in_guides("{g}", "NegCtrl0_NegCtrl0", "_", "guide_id")
    halves = adata.obs["guide_id"].where(adata.obs["guide_id"].str.contains("_"), adata.obs["guide_id"] + "_NegCtrl0")
    adata.obs["guide_id"] = halves + "__" + halves
    assert read(adata, tmp_path, guide_key="guide_id") == EXPECTED


def test_the_command_reads_guides(tmp_path, capsys):
    in_guides("{g}:{n}", "NTC:{n}").write_h5ad(tmp_path / "s.h5ad")
    file = str(tmp_path / "s.h5ad")
    main(["inspect", file, "--guide-key", "guide", "--guide-pattern", "(.+):[0-9]"])
    assert "AHR:1 -> AHR" in capsys.readouterr().out
