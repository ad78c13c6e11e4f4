"""The engine with a model that has nothing to do with GEARS."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from gears.distributed import current_world
from gears.train_distributed import distributed_train_worker, launch_distributed_training
from gears.training import TrainingEngine


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


def settings(batch_size: int, differ: bool = False) -> dict:
    def model() -> nn.Module:
        generator = torch.Generator().manual_seed(current_world().rank if differ else 0)
        layer = nn.Linear(4, 2, dtype=torch.float64)
        for parameter in layer.parameters():
            nn.init.normal_(parameter, generator=generator)
        return layer

    def data() -> TensorDataset:
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(64, 4, generator=generator, dtype=torch.float64)
        return TensorDataset(x, (x[:, 0] > 0).long())

    return {
        "model_fn": model,
        "optimizer_fn": lambda parameters: torch.optim.Adam(parameters, lr=0.05),
        "criterion_fn": nn.CrossEntropyLoss,
        "scheduler_fn": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9),
        "train_dataset": data,
        "val_dataset": data(),
        "batch_size": batch_size,
        "engine_kwargs": {"use_ema": True, "ema_decay": 0.5},
        "train_kwargs": {"num_epochs": 3},
    }


def worker(rank: int, world_size: int, **arguments: Any) -> dict[str, Any]:
    """What two workers leave; models that differ at the start are refused."""
    runs = [run(rank, world_size, batch=12, **options) for options in OPTIONS]
    result = distributed_train_worker(rank, world_size, **arguments)
    with pytest.raises(RuntimeError, match="the workers' models differ in weight, bias"):
        distributed_train_worker(rank, world_size, **settings(8, differ=True))
    return result | {"runs": runs}


def test_two_workers_train_as_one(quick_workers: None) -> None:
    """Around an engine of one's own, and through factories."""
    both = launch_distributed_training(worker, 2, device="cpu", **settings(8))
    for options, two in zip(OPTIONS, both["runs"], strict=True):
        one = run(batch=24, **options)
        assert abs(one["weights"] - two["weights"]).max() < 1e-12
        for left, right in zip(one["history"], two["history"], strict=True):
            assert left == pytest.approx(right, abs=1e-12)
        assert one["history"][-1]["train_loss"] < one["history"][0]["train_loss"]
    one = distributed_train_worker(0, 1, **settings(16))
    assert both["world_size"] == 2
    for key, value in one["weights"].items():
        assert torch.allclose(value, both["weights"][key], atol=1e-12, rtol=0), key
    for left, right in zip(one["history"], both["history"], strict=True):
        assert left["val_loss"] == pytest.approx(right["val_loss"], abs=1e-12)


def test_accumulation_equals_the_large_batch_and_its_tail_is_not_lost() -> None:
    """No batch norm in this model: two micro-batches of 12 are one batch of 24."""
    plain, accumulated = run(batch=24), run(batch=12, accumulation_steps=2)
    assert abs(plain["weights"] - accumulated["weights"]).max() < 1e-12
    model = classifier()
    engine = TrainingEngine(model, accumulation_steps=2)
    engine.train(DataLoader(samples(5), 1), None, torch.optim.SGD(model.parameters()), nn.CrossEntropyLoss(), None, 1)
    assert engine.progress.total_steps == 3


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


def test_best_and_last_are_saved_and_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    run(folder=str(tmp_path))
    assert {file.name for file in tmp_path.iterdir()} == {"best.pt", "last.pt"}
    assert torch.load(tmp_path / "last.pt", weights_only=True)["progress"]["epoch"] == 4
    (tmp_path / "a.pt").write_bytes(b"PK\x03\x04 half a file")
    with pytest.raises(ValueError, match=r"a\.pt cannot be read"):
        TrainingEngine(classifier()).load_checkpoint(tmp_path / "a.pt")
    with pytest.raises(FileNotFoundError, match=r"b\.pt"):
        TrainingEngine(classifier()).load_checkpoint(tmp_path / "b.pt")


class SmallTask:
    """A task without evaluation; the loss is the mean square."""

    metric, lower_is_better = "score", False

    def prepare_window(self, batches, reducer):
        return None

    def loss(self, model, batch, window, position):
        return model(batch[0]).square().mean()

    def evaluate(self, model, loader, reducer):
        return {}


def test_undefined_metric_is_never_best() -> None:
    values = iter([float("nan"), 0.5, float("nan"), 0.4])
    task = SmallTask()
    task.evaluate = lambda *_: {"score": next(values)}  # type: ignore[method-assign]
    model = classifier()
    engine = TrainingEngine(model)
    engine.train(DataLoader(samples(), 48), None, torch.optim.Adam(model.parameters()), num_epochs=4, task=task)
    assert (engine.progress.best_epoch, engine.progress.best_metric) == (2, 0.5)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("bad", ["input", "loss alone", "gradient alone"])
def test_later_steps_change_nothing_after_one_that_is_not_finite(bad: str, fused: bool) -> None:
    """Weights, running statistics and message are those of the first step, whenever it is noticed."""

    class Task(SmallTask):
        def loss(self, model, batch, window, position):
            factor, loss = batch[1], super().loss(model, batch, window, position)
            if bad == "loss alone":
                return loss + factor
            return torch.sqrt(loss * factor) if bad == "gradient alone" else loss

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


def test_best_epoch_and_early_end_are_decided_where_there_is_an_evaluation() -> None:
    """Three epochs without a better one are noticed at the next evaluation."""
    data = DataLoader(samples(), batch_size=48)
    for options, n, evaluated, best in (
        ({"early_stopping": 2}, 3, [1, 2, 3], 1),
        ({"early_stopping": 3, "eval_every": 2}, 6, [2, 4, 6], 2),
        ({"eval_every": 8}, 20, [8, 16, 20], 8),
    ):
        model = classifier()
        engine = TrainingEngine(model, **options)
        frozen = torch.optim.SGD(model.parameters(), lr=0.0)
        history = engine.train(data, data, frozen, nn.CrossEntropyLoss(), num_epochs=20)
        assert len(history) == n
        assert [record["epoch"] for record in history if "val_loss" in record] == evaluated
        assert engine.progress.best_epoch == best
        assert engine.progress.finished == ("early_stopping" in options)


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
