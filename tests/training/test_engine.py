"""The engine with a model that has nothing to do with GEARS."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from gears.distributed import launch
from gears.training import TrainingEngine
from gears.training._batches import windows


def classifier() -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3, generator=generator)
    return model


def samples(n: int = 96) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(x, (x[:, :3]).argmax(dim=1))


def run(rank: int = 0, world_size: int = 1, batch: int = 24, folder: str | None = None, **options) -> dict:
    data = samples()
    sampler = DistributedSampler(data, world_size, rank, seed=3, drop_last=True)
    train = DataLoader(data, batch_size=batch, sampler=sampler, drop_last=True)
    val = [data[list(range(48))[rank::world_size]]]
    model = classifier()
    engine = TrainingEngine(model, distributed=world_size > 1, check_replicas=True, folder=folder, **options)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.8)
    history = engine.train(
        train, val, optimizer, nn.CrossEntropyLoss(), scheduler, 4,
        save_best=folder is not None, save_last=folder is not None,
    )  # fmt: skip
    return {
        "history": [{key: record[key] for key in ("train_loss", "val_loss", "lr")} for record in history],
        "weights": torch.cat([p.flatten() for p in engine.evaluated_model.parameters()]).detach().numpy(),
    }


OPTIONS: list[dict] = [{}, {"accumulation_steps": 2}, {"use_ema": True, "clip_norm": 0.1}]


def worker(rank: int, world_size: int) -> list[dict]:
    return [run(rank, world_size, batch=12, **options) for options in OPTIONS]


def test_two_workers_train_as_one(quick_workers: None) -> None:
    runs = launch(worker, ["cpu"] * 2, backend="gloo")
    for options, two in zip(OPTIONS, runs, strict=True):
        one = run(batch=24, **options)
        assert abs(one["weights"] - two["weights"]).max() < 1e-12
        for left, right in zip(one["history"], two["history"], strict=True):
            assert left == pytest.approx(right, abs=1e-12)
        assert one["history"][-1]["train_loss"] < one["history"][0]["train_loss"]


def test_accumulation_equals_the_large_batch() -> None:
    """No batch norm in this model: two micro-batches of 12 are one batch of 24."""
    plain, accumulated = run(batch=24), run(batch=12, accumulation_steps=2)
    assert abs(plain["weights"] - accumulated["weights"]).max() < 1e-12


def test_tail_of_an_accumulation_window_is_not_lost() -> None:
    assert list(windows(range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert list(windows(range(5), 2, skip=1)) == [[2, 3], [4]]


def test_checkpoint_round_trip(tmp_path: Path) -> None:
    model = classifier()
    engine = TrainingEngine(model, folder=tmp_path)
    data = DataLoader(samples(), batch_size=24)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    engine.train(data, None, optimizer, nn.CrossEntropyLoss(), num_epochs=2)
    engine.save_checkpoint(tmp_path / "a.pt", metadata={"note": "two epochs"})
    engine.train(data, None, optimizer, nn.CrossEntropyLoss(), num_epochs=4)

    other_model = classifier()
    other = TrainingEngine(other_model)
    other.optimizer = torch.optim.Adam(other_model.parameters(), lr=0.5)
    assert other.load_checkpoint(tmp_path / "a.pt") == {"note": "two epochs"}
    other.train(data, None, other.optimizer, nn.CrossEntropyLoss(), num_epochs=4)
    for left, right in zip(model.parameters(), other_model.parameters(), strict=True):
        assert torch.equal(left, right)
    assert [r["train_loss"] for r in other.progress.history] == [r["train_loss"] for r in engine.progress.history]


def test_options_without_effect_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    one_worker = ["check_replicas=True"]  # of `run`
    run(ema_decay=0.5, tf32=True, init_scale=2.0, amp_dtype=torch.float16)
    lines = sorted(record.getMessage().partition(" has no effect")[0] for record in caplog.records)
    assert lines == [
        "amp_dtype='float16'", *one_worker, "ema_decay=0.5", "init_scale=2.0",
        "tf32=True",
    ]  # fmt: skip
    caplog.clear()
    run(use_ema=True, ema_decay=0.5)
    assert [record.getMessage().partition(" has no effect")[0] for record in caplog.records] == one_worker


def test_best_and_last_are_saved(tmp_path: Path) -> None:
    run(folder=str(tmp_path))
    assert {file.name for file in tmp_path.iterdir()} == {"best.pt", "last.pt"}
    content = torch.load(tmp_path / "last.pt", weights_only=True)
    assert content["progress"]["epoch"] == 4


def test_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(b"PK\x03\x04 half a file")
    with pytest.raises(ValueError, match=r"a\.pt cannot be read"):
        TrainingEngine(classifier()).load_checkpoint(tmp_path / "a.pt")
    with pytest.raises(FileNotFoundError, match=r"b\.pt"):
        TrainingEngine(classifier()).load_checkpoint(tmp_path / "b.pt")


def test_undefined_metric_is_never_best() -> None:
    class Task:
        metric, lower_is_better = "score", False
        values = iter([float("nan"), 0.5, float("nan"), 0.4])

        def prepare_window(self, batches, reducer):
            return None

        def loss(self, model, batch, window, position):
            return model(batch[0]).square().mean()

        def evaluate(self, model, loader, reducer):
            return {"score": next(self.values)}

    model = classifier()
    engine = TrainingEngine(model)
    data = DataLoader(samples(), batch_size=48)
    engine.train(data, None, torch.optim.Adam(model.parameters()), num_epochs=4, task=Task())
    assert engine.progress.best_epoch == 2
    assert engine.progress.best_metric == 0.5


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("bad", ["input", "loss alone", "gradient alone"])
def test_later_steps_change_nothing_after_one_that_is_not_finite(bad: str, fused: bool) -> None:
    """Weights, running statistics and message are those of the first step, whenever it is noticed."""

    class Task:
        metric, lower_is_better = "score", False

        def prepare_window(self, batches, reducer):
            return None

        def loss(self, model, batch, window, position):
            value, factor = batch
            loss = model(value).square().mean()
            if bad == "loss alone":
                return loss + factor
            return torch.sqrt(loss * factor) if bad == "gradient alone" else loss

        def evaluate(self, model, loader, reducer):
            return {}

    broken = {"input": (torch.nan, 1.0), "loss alone": (1.0, torch.inf), "gradient alone": (1.0, 0.0)}[bad]
    values = [torch.randn(5, 6, dtype=torch.float64) for _ in range(9)]
    batches = [(value, torch.ones((), dtype=torch.float64)) for value in values]
    batches[6] = (values[6] * broken[0], torch.tensor(broken[1], dtype=torch.float64))
    found = []
    for data in (batches, batches[:6]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).double()
        adam = torch.optim.Adam(model.parameters(), lr=0.1, fused=fused)
        engine = TrainingEngine(model)
        if len(data) == 9:
            with pytest.raises(FloatingPointError, match="epoch 1, step 7; the weights are those of the step before"):
                engine.train(data, None, adam, num_epochs=1, task=Task())
        else:
            engine.train(data, None, adam, num_epochs=1, task=Task())
        found.append(model.state_dict())
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


def test_early_stopping() -> None:
    model = classifier()
    data = DataLoader(samples(), batch_size=48)
    engine = TrainingEngine(model, early_stopping=2)
    frozen = torch.optim.SGD(model.parameters(), lr=0.0)
    history = engine.train(data, data, frozen, nn.CrossEntropyLoss(), num_epochs=10)
    assert len(history) == 3
    assert engine.progress.finished


def test_best_epoch_and_early_end_are_decided_where_there_is_an_evaluation() -> None:
    model = classifier()
    data = DataLoader(samples(), batch_size=48)
    frozen = torch.optim.SGD(model.parameters(), lr=0.0)
    engine = TrainingEngine(model, early_stopping=3, eval_every=2)
    history = engine.train(data, data, frozen, nn.CrossEntropyLoss(), num_epochs=20)
    assert [record["epoch"] for record in history if "val_loss" in record] == [2, 4, 6]
    assert engine.progress.best_epoch == 2
    assert len(history) == 6  # three epochs without a better one are noticed at the next evaluation
    last = TrainingEngine(classifier(), eval_every=4)
    history = last.train(data, data, frozen, nn.CrossEntropyLoss(), num_epochs=5)
    assert [record["epoch"] for record in history if "val_loss" in record] == [4, 5]


def test_a_group_is_set_up_and_ended_on_the_class(meeting_point: None) -> None:
    """As guides write it, around engines of any model."""
    assert TrainingEngine.setup_distributed() == (0, 0, 1), "no launcher: nothing is started"
    with pytest.raises(ValueError, match="give both"):
        TrainingEngine.setup_distributed(0)
    for _ in range(2):
        assert TrainingEngine.setup_distributed(0, 1) == (0, 0, 1)
        assert torch.distributed.is_initialized()
        engine = TrainingEngine(torch.nn.Linear(2, 1), distributed=True, world_size=1)
        assert engine._reduce_tensor(torch.ones(2)).tolist() == [1.0, 1.0]
        TrainingEngine.cleanup_distributed()
        assert not torch.distributed.is_initialized()
    with pytest.raises(RuntimeError, match="the process group has ended"):
        engine.reduce_tensor(torch.ones(1))
    TrainingEngine.cleanup_distributed()
