"""The published direction term over moments (all pairs, cell by cell: tests/training/test_moments_task.py)."""

import numpy as np
import torch

from gears.data.screen._statistics import ConditionStatistics
from gears.model._losses import PairMoments, moment_loss
from gears.model.config import ModelConfig

U, G, N_Y, N_X = 3, 5, 6, 7


def central(values: torch.Tensor) -> np.ndarray:
    """Mean and central moments 2 to 4, (4, G)."""
    deviation = values - values.mean(0)
    return torch.stack([values.mean(0), *(deviation.pow(k).mean(0) for k in (2, 3, 4))]).numpy()


def screen() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    y = torch.rand(U, N_Y, G, generator=generator, dtype=torch.float64).pow(3) * 3
    x = torch.rand(N_X, G, generator=generator, dtype=torch.float64).pow(2) * 2
    delta = torch.randn(U, G, generator=generator, dtype=torch.float64) * 0.3
    mask = torch.rand(U, G, generator=generator) > 0.3
    mask[0] = True
    return y, x, delta, mask


def moments_of(y: torch.Tensor, x: torch.Tensor, mu: torch.Tensor, mask: torch.Tensor) -> PairMoments:
    sign = torch.sign(y - mu).unsqueeze(2).expand(-1, -1, N_X, -1)  # all pairs
    weight = torch.full((U,), 1 / U, dtype=torch.float64)
    tables = np.stack([central(cells) for cells in (x, *y)], axis=1)
    statistics = ConditionStatistics(np.ones(U + 1), *tables, *[tables[0]] * 3, np.zeros(U + 1, dtype=np.int64))
    pairs = map(torch.from_numpy, statistics.pair_moments(np.arange(1, U + 1)))
    return PairMoments(*pairs, sign.mean((1, 2)), sign.square().mean((1, 2)), mask, weight)


def test_sign_compares_with_the_mean_prediction_and_has_no_gradient():
    y, x, delta, mask = screen()
    mu = x.mean(0)
    moments = moments_of(y, x, mu, mask)
    losses, gradients = [], []
    for weight in (0.0, 1.0):
        d = delta.clone().requires_grad_()
        loss = moment_loss(d, None, moments, ModelConfig(direction="sign", direction_lambda=weight))
        loss.backward()
        losses.append(loss)
        gradients.append(d.grad)
    per_cell = (torch.sign(y - mu) - torch.sign(delta).unsqueeze(1)).square().mean(1)
    expected = torch.stack([per_cell[u][mask[u]].mean() for u in range(U)]).mean()
    torch.testing.assert_close(losses[1] - losses[0], expected, rtol=0, atol=1e-12)
    assert torch.equal(*gradients)
