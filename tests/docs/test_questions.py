"""The answers on the page of users' questions: their code runs, and does what the text says."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_models import trained_on

pytestmark = pytest.mark.slow
PAGE = (
    (Path(__file__).resolve().parents[2] / "docs" / "questions.md")
    .read_text(encoding="utf-8")
    .partition("## Predictions")[2]
)


def screen(**options: Any) -> Any:
    """A simulated screen in which AHR and KLF1 are perturbed."""
    from gears import simulated_screen

    names = ["AHR", "KLF1", "TP53", *(f"G{i}" for i in range(37))]
    options = {"gene_names": names, "n_singles": 10, "n_pairs": 8, **options}
    return simulated_screen(cells_per_condition=12, n_control=40, seed=1, **options)[0]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the names of the page hold after its code has run from top to bottom."""
    from gears import PertData

    folder = tmp_path_factory.mktemp("questions")
    adata = screen()
    adata.obs["guide_type"] = ["CRISPRi", "CRISPRa"] * (adata.n_obs // 2)
    other = screen()
    other.X = other.layers.pop("counts")
    other.obs["gene_target"] = other.obs.pop("condition").str.replace("+ctrl", "").replace("ctrl", "NT")
    pert_data = PertData(folder, default_pert_graph=False)
    pert_data.new_data_process("screen", adata)
    pert_data.prepare_split("simulation", seed=1)
    model = trained_on(pert_data)
    names: dict[str, Any] = {"PertData": PertData, "folder": folder, "model": model, "adata": adata}
    names["mdata"] = {"rna": other}
    names["fly_adata"] = screen(gene_names=["dpp", "tkv", *(f"CG{i}" for i in range(38))])
    for code in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(compile(code, "questions.md", "exec"), names)
    return names


def test_predictions_are_what_the_page_says(answers: dict[str, Any]) -> None:
    predictions, predicted = answers["predictions"], answers["predictions"].to_adata()
    assert tuple(answers["frame"].columns) == predictions.gene_names
    assert predictions["AHR_KLF1"].shape == (len(predictions.gene_names),)
    expected = predicted.var["control_mean"].to_numpy() + predicted.layers["delta"]
    np.testing.assert_allclose(predicted.X, np.maximum(expected, 0), atol=1e-5)
    np.testing.assert_allclose(answers["unclipped"].to_frame().to_numpy(), expected[:1], atol=1e-5)
    assert answers["sd"].shape == answers["adata_sd"].shape == predicted.shape
    assert answers["triple"].to_frame().shape[0] == 1
    shift = answers["moved"].to_numpy() - answers["control"].to_df().to_numpy()
    np.testing.assert_allclose(shift, np.tile(predictions.delta("AHR+KLF1"), (40, 1)), atol=1e-5)


def test_screens_are_read_as_the_page_says(answers: dict[str, Any]) -> None:
    assert "TP53" in answers["wider"].pert_names
    assert set(answers["parts"]["part"]) >= {"train", "val", "test"}
    assert {c.kind for c in answers["types"].screen.conditions} == {"", "CRISPRi", "CRISPRa"}
    assert "dpp" in answers["fly"].pert_names
    assert "AHR" in {gene for c in answers["papalexi"].screen.conditions for gene in c.genes}
    assert answers["means"].columns.tolist() == ["pearson", "pearson_delta", "pearson_delta_ref"]


def test_what_the_page_calls_an_error_is_one(answers: dict[str, Any]) -> None:
    from gears import PertData

    adata, folder = answers["adata"], answers["folder"]
    data = PertData(folder, default_pert_graph=False)
    with pytest.raises(ValueError, match="no perturbed condition"):
        data.new_data_process("control", adata[adata.obs["condition"] == "ctrl"].copy())
    two = adata[adata.obs["condition"].isin(["ctrl", "AHR+ctrl", "KLF1+ctrl"])].copy()
    data.new_data_process("two", two)
    with pytest.raises(ValueError, match="without a perturbed condition"):
        data.prepare_split("simulation", seed=1)
    with pytest.raises(ValueError, match=r"not among the .* of the perturbation graph"):
        answers["model"].predict(["VEGFR3"])
    single = np.flatnonzero(adata.obs["condition"] == "AHR+ctrl")[1:]
    fewer = adata[np.setdiff1d(np.arange(adata.n_obs), single)].copy()
    with pytest.raises(ValueError, match="min_cells"):
        data.new_data_process("single", fewer)
