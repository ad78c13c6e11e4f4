"""The block-wise layers over genes and conditions against the same written as whole tensors."""

import copy

import pytest
import torch
from model_twin import GENES, small_network

from gears.model import _blockwise as blockwise
from gears.model._batchnorm import Weights
from gears.model.network import GEARSNetwork

ROWS = torch.tensor([0, 0, 1, 2, 3]), torch.tensor([1, 4, 2, 7, 1])
WEIGHT = torch.tensor([3.0, 1.0, 0.0, 2.0, 4.0], dtype=torch.float64)  # the last is a control


class WholeTensors(GEARSNetwork):
    """Every hidden value of every gene and condition at once, differentiated by torch."""

    def _block_by_block(self, base_GH, effect_UH, weights, notes, division):
        base_GH, effect_UH = self.bn_pert_base.outer_terms(base_GH, effect_UH, weights)
        state_RH = (base_GH[:, None] + effect_UH).relu().flatten(0, 1)  # rows of genes and conditions
        weights = Weights(weights.share_U.repeat(GENES) / GENES, weights.n_cells * GENES)
        genes_GUH = self.recovery_w(state_RH, weights).unflatten(0, (GENES, -1))
        own_GU = (genes_GUH * self.indv_w1.transpose(1, 2)).sum(dim=2)
        if not self.config.uncertainty:
            return own_GU, None
        return own_GU, self.uncertainty_w(state_RH, weights).reshape(GENES, -1)


def step(network: GEARSNetwork) -> dict[str, torch.Tensor]:
    """Outputs, gradients and running statistics of a training step."""
    network.train().zero_grad()
    delta_UG, logvar_UG = network(*ROWS, WEIGHT)
    loss = (delta_UG.pow(4) * torch.arange(1, GENES + 1)).sum()
    more = {}
    if logvar_UG is not None:
        loss = loss + (logvar_UG.pow(3) * (delta_UG + torch.arange(GENES))).sum()
        more["logvar"] = logvar_UG.detach()
    loss.backward()
    gradients = {f"grad {name}": p.grad.clone() for name, p in network.named_parameters()}
    running = {k: v.clone() for k, v in network.named_buffers() if "running" in k}
    return {"delta": delta_UG.detach(), **more, **gradients, **running}


def close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-11, msg=lambda m, name=name: f"{name}: {m}")


def whole_of(network: GEARSNetwork) -> GEARSNetwork:
    whole = copy.deepcopy(network)
    whole.__class__ = WholeTensors
    return whole


@pytest.mark.parametrize(("block_rows", "most_kept"), [(5, None), (17, 0), (4096, None)])
@pytest.mark.parametrize("uncertainty", [False, True])
def test_equal_to_whole_tensors(block_rows, most_kept, uncertainty, monkeypatch):
    monkeypatch.setitem(blockwise.BLOCK_ROWS, "cpu", block_rows)
    network = small_network(uncertainty=uncertainty)
    expected = step(whole_of(network))
    network.most_kept = most_kept
    close(step(network), expected)


def test_buffers_are_used_again_but_not_while_they_are_needed():
    network = small_network()
    whole = whole_of(network)
    step(network)
    first = {flat.data_ptr() for flat in network.pool._free}
    step(network)
    assert {flat.data_ptr() for flat in network.pool._free} == first
    # two forwards share one backward; the second of two backwards finds nothing kept any more
    results = []
    for net in (network, whole):
        net.zero_grad()
        one = net(*ROWS, WEIGHT)[0].pow(2).sum()
        two = net(ROWS[0], ROWS[1].flip(0), WEIGHT)[0].pow(3).sum()
        (one * two).backward(retain_graph=True)
        (one + two).backward()
        results.append({name: p.grad.clone() for name, p in net.named_parameters()})
    # the running statistics of both have moved alike, but the second step started from other ones
    close(*results)


@pytest.mark.parametrize(("most_kept", "uncertainty"), [(None, False), (0, True)])
def test_mixed_precision_is_that_of_whole_tensors(most_kept, uncertainty, monkeypatch):
    """Products of matrices in bfloat16, everything else exact: as near to float64 as whole tensors are, or nearer."""
    monkeypatch.setitem(blockwise.BLOCK_ROWS, "cpu", 17)
    exact = step(small_network(uncertainty=uncertainty))
    network = small_network(uncertainty=uncertainty).float()
    network.most_kept = most_kept
    whole = whole_of(network)
    monkeypatch.setattr(f"{__name__}.WEIGHT", WEIGHT.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, plain = step(network), step(whole)
    assert found["delta"].dtype == torch.float32
    some = {name: value for name, value in exact.items() if value.norm() > 1e-6}  # shifts' gradients are 0
    ours, theirs = (
        max(float((part[name].double() - value).norm() / value.norm()) for name, value in some.items())
        for part in (found, plain)
    )
    assert ours <= theirs
    # products were made in bfloat16
    assert (found["delta"].double() - exact["delta"]).abs().max() > 1e-5


@pytest.mark.parametrize("autocast", [False, True])
def test_nothing_of_all_genes_and_conditions_is_made_beyond_the_limit(autocast):
    """With uncertainty and in mixed precision, too, no tensor of genes x conditions x hidden values is kept."""
    network = small_network(uncertainty=True).float().train()
    network.most_kept = 0
    kept: list[int] = []
    with (
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast),
        torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t.numel()), t)[1], lambda t: t),
    ):
        delta_UG, logvar_UG = network(*ROWS, WEIGHT.float())
    assert max(kept) < GENES * len(WEIGHT) * network.config.hidden_size
    assert not network.pool._free
    (delta_UG.square() + logvar_UG.exp()).sum().backward()
    assert not network.pool._free
