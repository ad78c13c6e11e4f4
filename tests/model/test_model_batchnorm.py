"""Weighted batch norm against torch's own on repeated rows."""

import pytest
import torch
from torch import nn

from gears.model._batchnorm import WeightedBatchNorm

H = 5


def norms(seed: int = 0) -> tuple[WeightedBatchNorm, nn.BatchNorm1d]:
    ours, torchs = WeightedBatchNorm(H).double(), nn.BatchNorm1d(H).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        torchs.weight.uniform_(0.5, 2, generator=generator)
        torchs.bias.normal_(generator=generator)
        torchs.running_mean.normal_(generator=generator)
    ours.load_state_dict(torchs.state_dict())
    return ours, torchs


def rows(*shape: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64) * 2 + 3


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("n_genes", [1, 7])
def test_weights_equal_repeated_rows(n_genes, relu):
    ours, torchs = norms()
    weight = torch.tensor([1, 3, 2, 4])
    distinct = rows(n_genes, 4, H).requires_grad_()
    target = rows(n_genes, 4, H, seed=2)
    out = ours(distinct.reshape(-1, H), weight.double().repeat(n_genes), relu=relu).reshape(distinct.shape)
    repeated = distinct.detach().repeat_interleave(weight, dim=1).requires_grad_()
    plain = torchs(repeated.reshape(-1, H)).reshape(repeated.shape)
    plain = plain.relu() if relu else plain
    torch.testing.assert_close(out.repeat_interleave(weight, dim=1), plain, rtol=0, atol=1e-12)

    ((out - target).square() * weight[:, None]).sum().backward()
    (plain - target.repeat_interleave(weight, dim=1)).square().sum().backward()
    row_of = torch.arange(4).repeat_interleave(weight)
    gradient = torch.zeros_like(distinct).index_add(1, row_of, repeated.grad)
    torch.testing.assert_close(distinct.grad, gradient, rtol=0, atol=1e-11)
    for a, b in zip(ours.parameters(), torchs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=1e-11)
    for name, value in torchs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("n_rows", [0, 3])
def test_no_weight_at_all_leaves_running_statistics(n_rows):
    norm = norms()[0]
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    x = rows(n_rows, H).requires_grad_()
    out = norm(x, torch.zeros(n_rows))
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert torch.isfinite(x.grad).all()
    for name, value in norm.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


def test_statistics_stay_single_precision_under_autocast():
    norm = WeightedBatchNorm(H)
    x = (rows(1200, H) + 30).to(torch.bfloat16)
    weight = torch.tensor([1.0, 2.0, 3.0]).repeat(400)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = norm(x, weight)
    assert out.dtype == torch.bfloat16
    reference = norms()[0]
    reference.load_state_dict({**WeightedBatchNorm(H).state_dict()})
    reference(x.double(), weight.double())
    torch.testing.assert_close(norm.running_mean.double(), reference.running_mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(norm.running_var.double(), reference.running_var, rtol=1e-4, atol=1e-6)
