"""`gears suggest`, `hits`, `reverse` and `power`, in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from gears import GEARS
from gears.cli import main
from gears.design import hits, power, reverse, suggest


@pytest.fixture(scope="module")
def model(small_model: Path) -> GEARS:
    return GEARS.from_pretrained(small_model, device="cpu")


def rows(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict]:
    assert main([*map(str, arguments), "--quiet", "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)["rows"]


def same(found: list[dict], table: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(pd.DataFrame(found), table, check_dtype=False)


def test_commands_give_what_the_functions_give(
    small_model: Path, small_data, model: GEARS, tmp_path: Path, capsys
) -> None:
    genes = [gene for gene in model.pert_list if gene not in set(model.parts.fitted_conditions())][:20]
    (tmp_path / "library.txt").write_text("\n".join(genes))
    (tmp_path / "costs.csv").write_text(f"candidate,cost\n{genes[-1]},0.5\n")
    named = [small_model, "--file", tmp_path / "library.txt"]
    found = rows(capsys, "suggest", *named, "--n", 4, "--costs", tmp_path / "costs.csv")
    same(found, suggest(model, genes, 4, costs={genes[-1]: 0.5}))
    found = rows(capsys, "suggest", *named, "--aim", "effect", "--threshold", 0.1, "--n", 3)
    same(found, suggest(model, genes, 3, "effect", threshold=0.1))
    (tmp_path / "signature.tsv").write_text(f"{model.gene_list[0]}\t1\n{model.gene_list[1]}\t-2\n")
    found = rows(capsys, "hits", *named, "--threshold", -0.05, "--signature", tmp_path / "signature.tsv")
    weights = {model.gene_list[0]: 1, model.gene_list[1]: -2}
    same(found, hits(model, genes, threshold=-0.05, readout=weights))
    up, down = model.gene_list[3], model.gene_list[4]
    found = rows(capsys, "reverse", *named, "--up", up, "--down", down, "--n", 5)
    same(found, reverse(model, {up: 1, down: -1}, genes, 5))
    found = rows(capsys, "power", small_data.dataset_path, "--cells", 30)
    expected = power(small_data.screen, cells=30)
    same(found, expected.sort_values("control_mean", ascending=False, ignore_index=True))


def test_all_pairs_are_those_of_the_genes_and_all_rows_are_written(
    small_model, model, tmp_path, quick_workers, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    genes = model.pert_list[:8]
    output = tmp_path / "pairs.csv"
    arguments = ["hits", small_model, *genes, "--all-pairs", "--threshold", 0.1, "--output", output]
    assert main([*map(str, arguments), "--quiet"]) == 0
    assert "... of" in capsys.readouterr().out
    table = pd.read_csv(output)
    assert {tuple(name.split("+")) for name in table["condition"]} <= {(a, b) for a in genes for b in genes}
    assert len(table) > 20
    assert main([*map(str, arguments), "--quiet", "--overwrite", "--n-at-once", "1"]) == 0
    pd.testing.assert_frame_equal(pd.read_csv(output), table, check_exact=True)


def test_excluded_candidates_are_counted_by_reason(small_model: Path, small_data, model: GEARS, capsys) -> None:
    trained = next(one for one in model.parts.fitted_conditions() if len(one) == 1)
    other = next(
        name for name in model.pert_list if name not in {g for o in model.parts.fitted_conditions() for g in o.genes}
    )
    assert main(["suggest", str(small_model), "NOGENE", *trained.genes, other, "--quiet"]) == 0
    out = capsys.readouterr().out
    assert f"1 already measured ({trained.name})" in out
    assert "1 not a gene of the perturbation graph (NOGENE+ctrl)" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["suggest", "MODEL", "--aim", "efect"], "did you mean 'effect'"),
        (["suggest", "MODEL", "--aim", "effect"], "needs --threshold"),
        (["suggest", "MODEL", "--file", "EMPTY"], "empty.txt names no candidate; give one a line"),
        (["reverse", "MODEL", "--up", "A", "--down", "A"], "A cannot rise and fall"),
        (["reverse", "MODEL", "--wanted", "TWICE"], "twice.csv names A twice; give each name one number"),
        (["reverse", "MODEL"], "give --wanted FILE, or genes by --up and --down"),
        (["power", "SCREEN"], "give --effect or --cells"),
        (["power", "SCREEN", "--effect", "1", "--cells", "5"], "give one of them"),
        (["hits", "MODEL", "--threshold", "0.1", "--file", "none.txt"], "there is no file none.txt"),
        (["hits", "MODEL", "--threshold", "0.1", "--output", "hits.txt"], "give a name that ends in .csv"),
        (["hits", "MODEL", "--threshold", "0"], "threshold is 0.0"),
    ],
)
def test_bad_arguments_are_one_line(
    small_model: Path, small_data, tmp_path, capsys, arguments: list[str], message: str
) -> None:
    places = {"MODEL": str(small_model), "SCREEN": str(small_data.dataset_path)}
    places |= {"TWICE": str(tmp_path / "twice.csv"), "EMPTY": str(tmp_path / "empty.txt")}
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "twice.csv").write_text("A,1\nB,1\nA,2\n")
    assert main([places.get(word, word) for word in arguments]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
