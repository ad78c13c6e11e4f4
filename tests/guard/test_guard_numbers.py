"""Values that are not finite stop a run before they spread; precision, order and a process's defaults do not matter."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from anndata import AnnData
from driving import gears_of, pert_data_of
from readers import GENES
from torch import nn

from gears import GEARS, PertData
from gears.data.screen._cells import CellMatrix
from gears.training import TrainingEngine

GO = {gene: {f"T{i % 7}", f"T{i % 5}"} for i, gene in enumerate(GENES)}


def opened(folder: Path, adata: AnnData, batch_size: int = 32) -> PertData:
    data = pert_data_of(folder, adata, gene2go=GO, split="simulation")
    data.get_dataloader(batch_size=batch_size)
    return data


def network(data: PertData, **settings: Any) -> GEARS:
    return gears_of(data, **settings)


def state(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def trained_condition(data: PertData) -> Any:
    """A perturbed condition of the training part."""
    return next(condition for condition in data.split.conditions("train") if condition.genes)


def assert_stops_and_keeps(model: GEARS, name: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """The condition is named, and weights and running statistics are those before the step that failed."""
    seen: list[dict[str, torch.Tensor]] = []
    step = TrainingEngine._step

    def watched(self: TrainingEngine, *arguments: Any) -> None:
        seen.append(state(self.model))
        step(self, *arguments)

    monkeypatch.setattr(TrainingEngine, "_step", watched)
    with pytest.raises(FloatingPointError) as caught:
        model.train(epochs=3, prior=None, evaluate_test=False, verbose=False, **options)
    assert f"the data of {name} are not finite" in str(caught.value)
    after = state(model.model)
    # a forward pass scales embeddings down to their largest length, as often as it likes
    fixed = [key for key in after if not key.endswith(("_emb.weight", "emb_pos.weight"))]
    assert all(torch.equal(after[key], seen[-1][key]) for key in fixed)
    assert all(torch.isfinite(value).all() for value in after.values() if value.is_floating_point())


def test_a_cell_that_is_not_finite(toy_adata, tmp_path, monkeypatch):
    data = opened(tmp_path, toy_adata)
    condition = trained_condition(data)
    bad, rows = data.screen.cells_of(data.screen.id_of(condition))[0], CellMatrix.rows

    def broken(self: CellMatrix, ids: Any) -> np.ndarray:
        found = rows(self, ids)
        found[np.asarray(ids) == bad, 3] = np.inf
        return found

    monkeypatch.setattr(CellMatrix, "rows", broken)
    assert_stops_and_keeps(network(data), condition.name, monkeypatch, objective="cells")


def test_a_moment_that_is_not_finite(toy_adata, tmp_path, monkeypatch):
    data = opened(tmp_path, toy_adata)
    condition, model = trained_condition(data), network(data)
    mean_CG = np.array(data.screen.statistics.mean)
    mean_CG[data.screen.id_of(condition), 3] = np.nan
    data.screen.__dict__["statistics"] = dataclasses.replace(data.screen.statistics, mean=mean_CG)
    assert_stops_and_keeps(model, condition.name, monkeypatch, objective="moments")


class Steep(nn.Module):
    """A finite value with a gradient that is not, and a batch norm whose statistics would move."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.weight = nn.Parameter(torch.zeros(3))
        self.other = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.norm(x) * self.other + torch.sqrt(self.weight)).mean(dim=1, keepdim=True)


@pytest.mark.parametrize("clip", [None, 1.0], ids=["as it is", "clipped"])
def test_a_gradient_that_is_not_finite(clip):
    model = Steep()
    engine, before = TrainingEngine(model, clip_norm=clip, clip_value=clip), state(model)
    batch = (torch.randn(8, 3, generator=torch.Generator().manual_seed(1)), torch.zeros(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    with pytest.raises(FloatingPointError, match=r"a gradient is not finite \(loss .* in epoch 1, step 1"):
        engine.train([batch], None, optimizer, nn.MSELoss())
    assert all(torch.equal(value, before[name]) for name, value in state(model).items())
    assert not optimizer.state


def test_a_loss_that_is_not_finite_leaves_checkpoints_of_before(toy_adata, tmp_path, monkeypatch):
    """A run that breaks in its third epoch leaves the model and the checkpoint of the second."""
    data = opened(tmp_path / "data", toy_adata)
    options: dict[str, Any] = {"prior": None, "evaluate_test": False, "verbose": False, "objective": "moments"}
    model, place, step, taken = network(data), tmp_path / "run", TrainingEngine._backward, 0

    def breaking(self: TrainingEngine, *arguments: Any) -> torch.Tensor:
        nonlocal taken
        taken += 1
        loss = step(self, *arguments)
        return loss * torch.nan if taken > 2 * steps else loss

    steps = 20
    monkeypatch.setattr(TrainingEngine, "_backward", breaking)
    with pytest.raises(FloatingPointError, match="epoch 3, step 1"):
        model.train(epochs=4, save_path=str(place), **options)
    kept = GEARS.from_pretrained(place, device="cpu").predict([["GX00"]])["GX00"]
    assert np.isfinite(kept).all()
    assert [path.name[:11] for path in sorted((place / "checkpoints").glob("*.pt"))][-1] == "epoch-00002"
    monkeypatch.setattr(TrainingEngine, "_backward", step)
    again = network(data)
    again.train(epochs=4, save_path=str(place), resume=True, **options)
    whole = network(data)
    whole.train(epochs=4, **options)
    np.testing.assert_array_equal(again.predict([["GX00"]])["GX00"], whole.predict([["GX00"]])["GX00"])


def test_single_and_double_precision_stay_together(toy_adata, tmp_path):
    """After 40 steps the predictions of float32 are those of float64 to a hundredth of the largest change."""
    data = opened(tmp_path, toy_adata)
    changes = []
    for dtype in ("float32", "float64"):
        model = network(data)
        model.train(steps=40, lr=1e-3, prior=None, evaluate_test=False, verbose=False, dtype=dtype)
        changes.append(model.predict([["GX00"], ["GX05"], ["GX00", "GX01"]], clip=False).delta_UG)
    assert np.abs(changes[0] - changes[1]).max() < 0.01 * np.abs(changes[1]).max()


@pytest.fixture
def other_default():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def test_a_process_with_another_default_type(toy_adata, tmp_path, other_default):
    """Saved under float32, loaded, trained and predicted under another default: the same values."""
    asked = [["GX00"], ["GX00", "GX01"]]
    torch.set_default_dtype(torch.float32)
    data = opened(tmp_path / "data", toy_adata)
    model = network(data)
    model.train(steps=3, evaluate_test=False, verbose=False)
    model.save_model(tmp_path / "model")
    expected = model.predict(asked).expression_UG
    alone = network(data)
    alone.train(steps=3, prior=None, evaluate_test=False, verbose=False)
    for default in (torch.float64, torch.bfloat16):
        torch.set_default_dtype(default)
        found = GEARS.from_pretrained(tmp_path / "model", device="cpu")
        np.testing.assert_array_equal(found.predict(asked).expression_UG, expected)
        again = network(data)
        again.train(steps=3, prior=None, evaluate_test=False, verbose=False)
        np.testing.assert_array_equal(again.predict(asked).expression_UG, alone.predict(asked).expression_UG)
        assert torch.get_default_dtype() == default


def test_the_order_of_cells_does_not_matter(toy_adata, tmp_path):
    """Cells shuffled within the file: statistics to rounding, and the prior's predictions with them."""
    order = np.random.default_rng(1).permutation(toy_adata.n_obs)
    found = []
    for name, cells in (("as it is", np.arange(toy_adata.n_obs)), ("shuffled", order)):
        data = opened(tmp_path / name, toy_adata[cells].copy())
        rows = [data.screen.id_of(label) for label in ("ctrl", "GX03+ctrl", "GX00+GX01")]
        data.use_split(found[0][2]) if found else None
        model = network(data)
        model.train(steps=1, evaluate_test=False, verbose=False)
        predicted = model.predict([["GX03"], ["GX00", "GX01"]]).expression_UG
        found.append(([data.screen.statistics.mean[rows], data.screen.statistics.m4[rows]], predicted, data.split))
    for one, other in zip(found[0][0], found[1][0], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-5)
