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
    model = PerturbationModel(adata, **keys)
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


def test_guides(screen: AnnData) -> None:
    adata = screen.copy()
    labels = adata.obs.pop("condition")
    guide_of = {"ctrl": "NTC_{}"}
    adata.obs["guide"] = [
        "|".join(guide_of.get(token, token + "_g{}").format(1 + cell % 3) for token in dict.fromkeys(label.split("+")))
        for cell, label in enumerate(labels)
    ]
    model = fitted(adata, guide_key="guide")
    one, two = model.gears.pert_data.screen.perturbed_genes[:2]
    found = model.predict([f"{one}_g2", f"{one}_g1|{two}_g3", f"{two}_g1|NTC_2", "NTC_1"])
    assert found.obs_names.tolist() == [f"{one}+ctrl", f"{one}+{two}", f"{two}+ctrl", "ctrl"]


def test_separator_of_the_screen(screen: AnnData) -> None:
    adata = screen.copy()
    adata.obs["gene"] = [label.replace("+ctrl", "").replace("ctrl", "non-targeting").replace("+", "_") for label in
                         adata.obs.pop("condition")]  # fmt: skip
    model = fitted(adata, condition_key="gene", control="non-targeting", sep="_")
    genes = model.gears.pert_data.screen.perturbed_genes
    named = model.predict([f"{genes[3]}_{genes[1]}", "non-targeting", f"{genes[0]}_non-targeting"])
    assert named.obs_names.tolist() == [f"{genes[1]}+{genes[3]}", "ctrl", f"{genes[0]}+ctrl"]
