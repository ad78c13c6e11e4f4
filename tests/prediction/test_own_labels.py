"""A user's own labels mean at prediction what they meant when the screen was prepared, also in a saved model."""

from pathlib import Path

import pytest
from anndata import AnnData

from gears import GEARS, PerturbationModel
from gears.simulate import simulated_screen


@pytest.fixture(scope="module")
def screen() -> AnnData:
    return simulated_screen(n_genes=50, n_singles=8, n_pairs=5, cells_per_condition=12, n_control=40, seed=2)[0]


def fitted(adata: AnnData, **keys: str) -> PerturbationModel:
    model = PerturbationModel(adata, default_pert_graph=False, **keys)
    model.train(epochs=0, evaluate_test=False, verbose=False)
    return model


def test_own_control(screen: AnnData, tmp_path: Path) -> None:
    adata = screen.copy()
    adata.obs["condition"] = [label.replace("ctrl", "NT") for label in adata.obs["condition"]]
    model = fitted(adata, control="NT")
    one, two = model.gears.pert_data.screen.perturbed_genes[:2]
    for query in (f"{one}+NT", [f"NT+{one}"], [[one, "NT"]], one):
        assert model.predict(query).obs_names.tolist() == [f"{one}+ctrl"]
    assert model.predict(["NT", f"{two}+{one}"]).obs_names.tolist() == ["ctrl", f"{one}+{two}"]
    assert model.top(f"{one}+NT").equals(model.top(one))
    model.plot(f"{one}+NT")
    new = model.suggest(1)["condition"][0].removesuffix("+ctrl")
    assert model.suggest(1, candidates=[f"{new}+NT"], measured=[f"{one}+NT"])["condition"].tolist() == [f"{new}+ctrl"]
    assert model.hits([f"NT+{new}"], readout=one, threshold=0.1)["condition"].tolist() == [f"{new}+ctrl"]
    model.save(tmp_path / "model")
    predictions = GEARS.from_pretrained(tmp_path / "model").predict(f"{one}+NT")
    assert (predictions[f"NT+{one}"] == predictions[one]).all()


def guides_of(label: str, number: int) -> str:
    names = ("NTC_{}" if token == "ctrl" else token + "_g{}" for token in dict.fromkeys(label.split("+")))
    return "|".join(name.format(1 + number % 3) for name in names)


@pytest.mark.parametrize(
    ("written", "keys", "asked"),
    [
        (guides_of, {"guide_key": "own"}, ["{0}_g2", "{0}_g1|{1}_g3", "{1}_g1|NTC_2", "NTC_1"]),
        (
            lambda label, _: label.replace("+ctrl", "").replace("ctrl", "non-targeting").replace("+", "_"),
            {"condition_key": "own", "control": "non-targeting", "sep": "_"},
            ["{0}_non-targeting", "{1}_{0}", "{1}", "non-targeting"],
        ),
    ],
    ids=["guides", "separator"],
)
def test_guides_and_separator(written, keys, asked, screen: AnnData) -> None:
    adata = screen.copy()
    adata.obs["own"] = [written(label, number) for number, label in enumerate(adata.obs.pop("condition"))]
    model = fitted(adata, **keys)
    one, two = model.gears.pert_data.screen.perturbed_genes[:2]
    found = model.predict([label.format(one, two) for label in asked])
    assert found.obs_names.tolist() == [f"{one}+ctrl", f"{one}+{two}", f"{two}+ctrl", "ctrl"]
