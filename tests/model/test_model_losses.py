"""The objective over cells against loops over conditions, cells and genes."""

import pytest
import torch

from gears.model._losses import cell_loss
from gears.model.config import ModelConfig

G = 7
SETTINGS = {
    "smooth": ModelConfig(),
    "sign": ModelConfig(direction="sign", direction_lambda=0.3),
    "nll": ModelConfig(uncertainty=True, uncertainty_reg=0.7),
    "gears": ModelConfig(uncertainty=True, uncertainty_kind="gears", uncertainty_reg=0.7, direction="sign"),
}


def batch(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    row_B = torch.tensor([0, 2, 2, 1, 0, 2])
    counts = torch.bincount(row_B)
    mask = draw(3, G) > -0.5
    mask[1] = True
    return {
        "delta_UG": draw(3, G).mul(0.2).requires_grad_(), "logvar_UG": draw(3, G).requires_grad_(), "row_B": row_B,
        "x_BG": draw(6, G).relu(), "y_BG": draw(6, G).relu(), "mask_UG": mask, "mu_G": draw(G).abs(),
        "cell_weight_B": 1 / (counts[row_B] * 3.0).double(),
    }  # fmt: skip


def by_loops(values: dict[str, torch.Tensor], config: ModelConfig) -> torch.Tensor:
    """Mean over conditions of the mean over their cells of the mean over their genes."""
    conditions = []
    for u in range(values["delta_UG"].shape[0]):
        cells = []
        for i in (values["row_B"] == u).nonzero().flatten().tolist():
            terms = []
            for g in values["mask_UG"][u].nonzero().flatten().tolist():
                delta, y, mu = values["delta_UG"][u, g], values["y_BG"][i, g], values["mu_G"][g]
                x = values["x_BG"][i, g]
                prediction = x + delta
                error = prediction - y
                term = error**2 if config.loss == "evidence" else error**4
                if config.uncertainty:
                    s = values["logvar_UG"][u, g]
                    if config.uncertainty_kind == "gears":
                        term = term * (1 + config.uncertainty_reg * torch.exp(-s))
                    else:
                        term = term + config.uncertainty_reg * (torch.exp(-s) * error**2 + s)
                smooth = config.direction == "smooth"
                t = torch.tanh(delta / config.tau) if smooth else torch.sign(prediction - mu).detach()
                observed = torch.sign(y - mu) - (torch.sign(x - mu) if smooth else 0)
                if config.loss != "evidence":
                    term = term + config.direction_lambda * (observed - t) ** 2
                terms.append(values["mask_UG"][u, g] * term)
            cells.append(torch.stack(terms).mean())
        conditions.append(torch.stack(cells).mean())
    return torch.stack(conditions).mean()


@pytest.mark.parametrize("name", SETTINGS)
def test_equals_loops(name):
    config, ours, plain = SETTINGS[name], batch(), batch()
    loss, expected = cell_loss(**ours, config=config), by_loops(plain, config)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours["delta_UG"].grad, plain["delta_UG"].grad, rtol=0, atol=1e-12)
    if config.uncertainty:
        torch.testing.assert_close(ours["logvar_UG"].grad, plain["logvar_UG"].grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("direction", "moves"), [("smooth", True), ("sign", False)])
def test_only_the_smooth_direction_has_a_gradient(direction, moves):
    gradients = []
    for weight in (0.0, 5.0):
        values = batch()
        cell_loss(**values, config=ModelConfig(direction=direction, direction_lambda=weight)).backward()
        gradients.append(values["delta_UG"].grad)
    assert torch.equal(*gradients) != moves


def test_the_likelihood_has_a_finite_minimiser_that_grows_with_noise():
    config = ModelConfig(uncertainty=True, direction_lambda=0.0)
    generator = torch.Generator().manual_seed(4)
    scale = torch.tensor([0.1, 0.5, 2.0], dtype=torch.float64)
    y = torch.randn(400, 3, generator=generator, dtype=torch.float64) * scale
    zeros = torch.zeros_like(y)
    logvar = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([logvar], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        row_B, mask_UG = torch.zeros(400, dtype=torch.long), torch.ones(1, 3, dtype=torch.bool)
        weight_B = torch.full((400,), 1 / 400, dtype=torch.float64)
        loss = cell_loss(zeros[:1], logvar, row_B, zeros, y, mask_UG, zeros[0], weight_B, config)
        loss.backward()
        return loss

    optimiser.step(closure)
    torch.testing.assert_close(logvar[0], y.square().mean(0).log(), rtol=1e-4, atol=1e-4)
