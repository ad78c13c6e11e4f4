"""Effects of another screen and further similarities through every way to train: the same prior in all of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from driving import gears_of, trained_gears

from gears import GEARS, PertData, PerturbationModel, simulated_screen, train_multi_gpu
from gears.cli import main
from gears.graphs import read_effects

SPLIT = {"split": "simulation", "seed": 1}
EFFECTS, VECTORS = "effects in k562", "vectors"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a screen, another one of the same effects, and vectors of the genes."""
    folder = tmp_path_factory.mktemp("two_lines")
    for name, n_cells in (("rpe1", 20), ("k562", 16)):
        adata, _ = simulated_screen(
            n_genes=60, n_singles=24, n_pairs=0, cells_per_condition=n_cells, n_control=60, effect_size=1.2, seed=2,
            go_strength=0.0,
        )  # fmt: skip
        adata.write_h5ad(folder / f"{name}.h5ad")
    genes = sorted({label.partition("+")[0] for label in adata.obs["condition"]} - {"ctrl"})
    rng = np.random.default_rng(0)
    lines = [f"{gene},{','.join(f'{value:.4f}' for value in rng.normal(size=4))}" for gene in genes]
    (folder / "vectors.csv").write_text("\n".join(["gene,a,b,c,d", *lines]) + "\n")
    return folder


@pytest.fixture(scope="module")
def table(place: Path) -> Path:
    """What `gears effects` writes of the other screen."""
    assert main(["effects", str(place / "k562.h5ad"), str(place / "k562.npz"), "--quiet"]) == 0
    return place / "k562.npz"


def of(path: Path) -> tuple[dict[str, float], dict[str, str]]:
    """Weights of the prior of a saved model, and the hashes of its sources."""
    parts = GEARS.from_pretrained(path, device="cpu").parts
    assert parts.prior is not None
    return parts.prior.report["weights"], parts.provenance["sources"]


@pytest.fixture(scope="module")
def sources(place: Path, table: Path) -> dict[str, Any]:
    return {"effects_of": str(table), "similarities": {VECTORS: str(place / "vectors.csv")}}


@pytest.fixture(scope="module")
def expected(place: Path, sources: dict[str, Any]) -> tuple[dict[str, float], dict[str, str], PertData]:
    """Of :meth:`GEARS.train`."""
    data = PertData(place / "data", default_pert_graph=False)
    data.load(data_path=place / "rpe1.h5ad")
    data.prepare_split(**SPLIT)
    trained_gears(data, epochs=0, save_path=str(place / "gears"), **sources)
    return *of(place / "gears"), data


def test_the_evidence_weighs_the_other_screen_and_not_random_vectors(expected: Any, table: Path) -> None:
    weights, hashes, _ = expected
    assert weights[EFFECTS] > 0.3 * (weights["own"] + weights["GO"] + weights[EFFECTS])
    assert weights[VECTORS] < 0.01 * weights[EFFECTS]
    assert set(hashes) == {EFFECTS, VECTORS}
    assert hashes[EFFECTS] == read_effects(table).content_hash


def test_from_anndata_by_the_constructor_or_by_train(place: Path, sources: dict[str, Any], expected: Any) -> None:
    import anndata

    screen, other = (anndata.read_h5ad(place / f"{name}.h5ad") for name in ("rpe1", "k562"))
    options: dict[str, Any] = {"verbose": False, "default_pert_graph": False, "device": "cpu"}
    model = PerturbationModel(screen, folder=place / "made", **SPLIT, **sources, **options)
    model.train(epochs=0, verbose=False, evaluate_test=False)
    report = model.gears.parts.prior.report
    assert report["weights"] == expected[0]
    model.train(epochs=0, effects_of={"cells": other}, verbose=False, evaluate_test=False)
    weights = model.gears.parts.prior.report["weights"]
    assert weights["effects in cells"] == pytest.approx(expected[0][EFFECTS], rel=0.02)
    assert weights[VECTORS] == pytest.approx(expected[0][VECTORS], rel=0.02)
    with pytest.raises(FileNotFoundError, match="effects_of: there is no file or folder"):
        PerturbationModel(screen, effects_of="nowhere.npz", **options)


def test_the_command_takes_options_and_a_file_of_them(
    place: Path, sources: dict[str, Any], expected: Any, quick_workers: None
) -> None:
    config = place / "options.yaml"
    config.write_text(yaml.safe_dump({"similarities": sources["similarities"], "split": "simulation", "seed": 1}))
    words = ["--config", str(config), "--effects-of", sources["effects_of"], "--save-path", str(place / "one")]
    words += ["--epochs", "0", "--no-default-pert-graph", "--quiet", "--work-dir", str(place / "work")]
    words += ["--device", "cpu", "--hidden-size", "8"]
    assert main(["train", str(place / "rpe1.h5ad"), *words]) == 0
    assert of(place / "one") == expected[:2]
    kept = yaml.safe_load((place / "one" / "run.yaml").read_text())
    assert (kept["effects_of"], kept["similarities"]) == (sources["effects_of"], sources["similarities"])


def test_the_command_says_what_is_wrong_in_a_line(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = ["train", str(place / "rpe1.h5ad"), "--save-path", str(place / "no"), "--quiet"]
    assert main([*train, "--effects-of", str(place / "missing.npz")]) == 2
    assert main([*train, "--similarities", str(place / "vectors.csv")]) == 2
    assert main(["effects", str(place / "rpe1.h5ad"), str(place / "out.xlsx"), "--quiet"]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 3
    assert "there is no file or folder" in lines[0]
    assert "effects are written as .npz" in lines[2]


def test_two_workers_train_with_the_objects_of_the_caller(
    place: Path, sources: dict[str, Any], expected: Any, quick_workers: None
) -> None:
    """The other screen is an object: the workers get a file of it, and find the prior in the cache."""
    other = PertData(place / "data", default_pert_graph=False)
    other.load(data_path=place / "k562.h5ad")
    args = {
        "save_path": str(place / "workers"), "model_config": {"hidden_size": 8}, "epochs": 0, "verbose": False,
        "effects_of": {"k562": other}, "similarities": sources["similarities"], "evaluate_test": False,
    }  # fmt: skip
    data = expected[2]
    folder = Path(data.dataset_path) / "priors"
    before = set(folder.glob("prior-*.npz"))
    train_multi_gpu(
        place / "data", data.dataset_name, SPLIT, args, n_gpus=2, device="cpu",
        data_config={"default_pert_graph": False},
    )  # fmt: skip
    weights, hashes = of(place / "workers")
    assert hashes[EFFECTS] == other.effects().content_hash
    assert hashes[VECTORS] == expected[1][VECTORS]
    assert weights[EFFECTS] == pytest.approx(expected[0][EFFECTS], rel=0.02)
    manifest = json.loads((place / "workers" / "config.json").read_text())
    assert "effects in k562" in json.dumps(manifest)
    tables = list((Path(data.dataset_path) / "graphs").glob("custom-*.npz"))
    assert len(tables) == 2
    made = set(folder.glob("prior-*.npz")) - before
    assert len(made) == 2, "before and after the refit; the workers made none"


def test_cross_validation_and_folds_hold_the_sources(place: Path, sources: dict[str, Any], expected: Any) -> None:
    data = expected[2]
    model = gears_of(data)
    found = model.cross_validate(3, epochs=0, verbose=False, **sources, baselines=["train_mean"]).table
    plain = model.cross_validate(3, epochs=0, verbose=False, baselines=["train_mean"]).table
    score = [
        table[(table["method"] == "gears") & (table["metric"] == "pearson_delta_ref")]["value"].mean()
        for table in (found, plain)
    ]
    assert score[0] > score[1] + 0.2
