"""Initial weights: deterministic, from a local generator, distributed as published."""

import math

import torch
from model_twin import graph_of, small_network

from gears.model.config import ModelConfig
from gears.model.network import GEARSNetwork

NO_EDGES = (torch.zeros(2, 0, dtype=torch.long), torch.zeros(0))


def test_a_seed_decides_and_the_global_state_does_not_move():
    before = torch.random.get_rng_state()
    one, same, other = small_network(seed=5), small_network(seed=5), small_network(seed=6)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(99)
    again = small_network(seed=5)
    for key, value in one.state_dict().items():
        assert torch.equal(same.state_dict()[key], value)
        assert torch.equal(again.state_dict()[key], value)
    assert not torch.equal(one.indv_w1, other.indv_w1)


def test_distributions_are_the_published_ones():
    n_genes, size = 600, 64
    go, coexpress = graph_of(500, *NO_EDGES), graph_of(n_genes, *NO_EDGES)
    network = GEARSNetwork(go, coexpress, ModelConfig(uncertainty=True), seed=1)
    state = network.state_dict()
    for name in ("gene_emb.weight", "emb_pos.weight", "pert_emb.weight"):
        assert abs(state[name].mean()) < 0.02
        assert abs(state[name].std() - 1) < 0.02
    bound = 1 / math.sqrt(n_genes)
    weight = state["cross_gene_state.network.0.weight"]
    assert 0.99 * bound < weight.abs().max() <= bound
    assert abs(weight.std() - bound / math.sqrt(3)) < 0.01 * bound
    fans = {"indv_w1": n_genes + size, "indv_w2": n_genes * (size + 1) + size + 1}
    for name, fan in (fans | dict.fromkeys(("indv_b1", "indv_b2"), n_genes + 1)).items():
        assert abs(state[name].std() / math.sqrt(2 / fan) - 1) < 0.1
    assert torch.equal(state["bn_emb.weight"], torch.ones(size))
    assert all(torch.isfinite(value).all() for value in state.values())
    assert all(parameter.requires_grad for parameter in network.parameters())
