"""Learning-rate schedules as pure functions of the step."""

import pytest
import torch

from gears.training._schedules import SCHEDULES, Horizon, learning_rate, rising_epochs, scaled_lr
from gears.training.options import TrainOptions


def rates(name: str, horizon: Horizon, **options: float) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate(name, horizon, **options))
    found = []
    for _ in range(horizon.steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_steps_warm_up_and_scaling_by_hand() -> None:
    assert rates("step", Horizon(2, 3)) == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    assert rates("constant", Horizon(4, 1), warmup_steps=3) == [0.25, 0.5, 0.75, 1.0]
    assert [scaled_lr(0.1, name, 4) for name in ("none", "linear", "sqrt")] == [0.1, 0.4, 0.2]
    for factor in SCHEDULES.values():
        assert all(factor(step, Horizon(5, 4), 0.0) >= 0 for step in range(20))


def test_cosine_ends_near_eta_min_and_one_cycle_rises_then_falls() -> None:
    found = rates("cosine", Horizon(10, 10), eta_min=0.1)
    assert found[0] == 1.0
    assert found == sorted(found, reverse=True)
    assert 0.1 < found[-1] < 0.11
    found = rates("one-cycle", Horizon(10, 10))
    assert found[0] == pytest.approx(1 / 25)
    assert found.index(max(found)) == 30
    assert max(found) == pytest.approx(1.0)
    assert found[-1] < 0.01


@pytest.mark.parametrize(
    ("name", "warmup", "expected"),
    [("one-cycle", 0, 3), ("step", 0, 0), ("cosine", 0, 0), ("constant", 0, 0), ("constant", 25, 2), ("cosine", 15, 1)],
)
def test_epochs_in_which_the_rate_still_rises(name: str, warmup: int, expected: int) -> None:
    horizon = Horizon(10, 10)
    assert rising_epochs(learning_rate(name, horizon, warmup_steps=warmup), horizon) == expected


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'cosine'"):
        rates("cosin", Horizon(1, 1))
    with pytest.raises(ValueError, match="lr_scaling"):
        TrainOptions(lr_scaling="cubic")
