"""Models that cell-gears saved: the same predictions (that nothing in their pickles can run: tests/guard)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gears import GEARS, PertData
from gears.published import load_cell_gears_model
from gears.utils import loss_fct, uncertainty_loss_fct

FOLDER = Path(__file__).with_name("published")
GENES = [f"G{i:02d}" for i in range(12)]
PERTS = ["G00", "G01", "G03", "G05", "P0", "P1", "P2"]


def loaded(name: str, **more: Any) -> GEARS:
    given = {"gene_names": GENES, "pert_names": PERTS, "control_mean": np.linspace(0, 2, 12)}
    return load_cell_gears_model(FOLDER / name, **{**given, **more}, device="cpu")


@pytest.mark.parametrize("name", ["plain", "uncertain"])
def test_predictions_are_those_of_cell_gears_but_for_the_first_cell_of_a_batch(name):
    model = loaded(name)
    with np.load(FOLDER / name / "expected.npz") as archive:
        expected = {key: archive[key] for key in archive.files}
    asked = [key.removeprefix("pred/") for key in expected if key.startswith("pred/")]
    assert asked == ["G00", "P1", "G03+P2"]
    predictions = model.predict(asked, clip=False)
    for label in asked:
        change_NG = expected[f"pred/{label}"] - expected[f"x/{label}"]
        assert len(change_NG) == 6
        np.testing.assert_allclose(change_NG[1:], np.tile(predictions.delta(label), (5, 1)), rtol=0, atol=2e-6)
        assert np.abs(change_NG[0] - predictions.delta(label)).max() > 1e-3  # the co-expression messages
        if name == "uncertain":
            logvar_G = 2 * np.log(predictions.cell_sd[asked.index(label)])
            np.testing.assert_allclose(expected[f"logvar/{label}"][1:], np.tile(logvar_G, (5, 1)), rtol=0, atol=2e-6)
    np.testing.assert_allclose(predictions["G00"], np.linspace(0, 2, 12) + predictions.delta("G00"), atol=1e-12)


def test_a_converted_model_needs_no_names_any_more(tmp_path):
    model = loaded("uncertain")
    model.save_model(tmp_path / "converted")
    again = GEARS.from_pretrained(tmp_path / "converted", device="cpu")
    assert again.config == model.config
    assert again.config["uncertainty_kind"] == "gears"
    np.testing.assert_array_equal(again.predict(["P0"], clip=False)["P0"], model.predict(["P0"], clip=False)["P0"])


def test_names_are_needed_and_their_numbers_checked(tmp_path):
    with pytest.raises(ValueError, match=r"holds no names: give pert_data, or also gene_names, control_mean"):
        load_cell_gears_model(FOLDER / "plain", pert_names=PERTS)
    with pytest.raises(ValueError, match=r"has 12 measured genes, gene_names holds 11"):
        loaded("plain", gene_names=GENES[1:])
    with pytest.raises(ValueError, match=r"has 7 perturbable genes, pert_names holds 8; .*load_cell_gears_folder"):
        loaded("plain", pert_names=[*PERTS, "P3"])
    with pytest.raises(ValueError, match=r"has 12 measured genes, control_mean holds 3"):
        loaded("plain", control_mean=np.zeros(3))
    with pytest.raises(ValueError, match=r"load_cell_gears_model\(path, \.\.\.\)"):
        GEARS.from_pretrained(FOLDER / "plain")
    with pytest.raises(FileNotFoundError, match=r"has no config\.pkl"):
        load_cell_gears_model(tmp_path, gene_names=GENES)


def test_a_model_loads_for_the_screen_it_was_trained_on(tmp_path, toy_adata):
    """As published: ``GEARS(pert_data).load_pretrained(folder)``; the screen must be that of the model."""
    adata = toy_adata[:, :12].copy()
    adata.var["gene_name"] = GENES
    adata.obs["condition"] = ["ctrl"] * 60 + ["G00+ctrl"] * 60 + ["G03+P2"] * 96
    (tmp_path / "genes.txt").write_text("\n".join(PERTS))
    data = PertData(tmp_path, gene_set_path=tmp_path / "genes.txt")
    data.new_data_process("toy", adata)
    with pytest.raises(ValueError, match="give either it or"):
        load_cell_gears_model(FOLDER / "plain", data, gene_names=GENES)
    assert load_cell_gears_model(FOLDER / "plain", data, device="cpu").pert_data is None
    data.prepare_split("no_split")
    model = GEARS(data, device="cpu")
    model.load_pretrained(FOLDER / "plain")
    np.testing.assert_allclose(
        model.predict(["P1"], clip=False).delta("P1"), loaded("plain").predict(["P1"], clip=False).delta("P1")
    )
    assert load_cell_gears_model(FOLDER / "plain", data, device="cpu").pert_data is data


LOSS_PERTS = ["A+ctrl", "ctrl", "A+B", "A+ctrl", "A+B", "A+ctrl"]
FILTER = {"A+ctrl": np.array([0, 2, 3]), "A+B": np.array([1, 4])}


@pytest.fixture
def drawn():
    """Prediction, observation, log-variance, (6, 5), and control mean, (5,)."""
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(*shape, generator=generator) for shape in ((6, 5), (6, 5), (6, 5), (5,))]


def test_they_give_the_values_of_cell_gears(drawn):
    """Recorded with cell-gears 0.1.2 and these numbers."""
    pred, y, logvar, ctrl = drawn
    loss = loss_fct(pred, y, LOSS_PERTS, ctrl=ctrl, direction_lambda=0.1, dict_filter=FILTER)
    assert loss.item() == pytest.approx(0.2764715254306793, rel=1e-6)
    loss = uncertainty_loss_fct(pred, logvar, y, LOSS_PERTS, 0.3, ctrl, 0.1, FILTER)
    assert loss.item() == pytest.approx(0.28714635968208313, rel=1e-6)


def test_without_a_filter_every_gene_counts_and_directions_are_from_0(drawn):
    pred, y, _, _ = drawn
    pred = (pred - 0.5).requires_grad_()
    loss = loss_fct(pred, y, LOSS_PERTS, direction_lambda=0.2)
    of_label = []
    for label in set(LOSS_PERTS):
        rows = [row for row, one in enumerate(LOSS_PERTS) if one == label]
        error, signs = pred[rows] - y[rows], y[rows].sign() - pred[rows].detach().sign()
        of_label.append((error**4 + 0.2 * signs**2).mean())
    assert loss.item() == pytest.approx(torch.stack(of_label).mean().item(), rel=1e-6)
    loss.backward()
    assert (pred.grad != 0).all()
