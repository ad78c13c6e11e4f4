"""The network: against its plain twin, and properties that users met broken elsewhere."""

import math

import numpy as np
import pytest
import torch
from model_twin import GENES, HIDDEN, collapse, graph_of, small_network, twin_of

from gears.model.config import ModelConfig
from gears.model.layers import Fallback
from gears.model.network import GEARSNetwork

PERTS = [[3], [], [1, 4], [3], [2], [4, 1], [], [], [0, 5, 7], [2], [3], [1]]
VARIANTS = {
    "published": {},
    "two layers": {"num_go_gnn_layers": 2, "num_gene_gnn_layers": 3},
    "uncertainty": {"uncertainty": True, "num_gene_gnn_layers": 2},
}


def run(network: GEARSNetwork, perts: list[list[int]]) -> torch.Tensor:
    row, node, weight, row_B = collapse(perts)
    return network(row, node, weight)[0][row_B]


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


@pytest.mark.parametrize("variant", VARIANTS)
def test_conditions_once_equal_cells_one_by_one(variant):
    network = small_network(**VARIANTS[variant])
    twin = twin_of(network)
    row, node, weight, row_B = collapse(PERTS)
    assert len(weight) < len(PERTS)
    y = torch.randn(len(PERTS), GENES, generator=torch.Generator().manual_seed(5), dtype=torch.float64)

    def loss(delta: torch.Tensor, logvar: torch.Tensor | None) -> torch.Tensor:
        value = (delta - y).pow(4).mean()
        return value if logvar is None else value + (torch.exp(-logvar) * (delta - y).square() + logvar).mean()

    for _ in range(2):  # twice: running statistics move from values that are not the initial ones
        delta, logvar = network(row, node, weight)
        cells, cells_logvar = twin(PERTS)
        close(delta[row_B], cells)
        if logvar is not None:
            close(logvar[row_B], cells_logvar)
    loss(delta[row_B], None if logvar is None else logvar[row_B]).backward()
    loss(cells, cells_logvar).backward()
    gradients = {name: parameter.grad for name, parameter in twin.named_parameters()}
    assert set(gradients) == {name for name, _ in network.named_parameters()}
    for name, parameter in network.named_parameters():
        close(parameter.grad, gradients[name], 1e-9)
    for name, value in twin.state_dict().items():
        close(network.state_dict()[name], value)
    close(network.eval()(row, node, weight)[0][row_B], twin.eval()(PERTS)[0])


@pytest.mark.parametrize("training", [True, False])
def test_permuting_cells_permutes_outputs_and_the_coexpression_graph_reaches_every_cell(training):
    order = torch.randperm(len(PERTS), generator=torch.Generator().manual_seed(1)).tolist()
    outputs = run(small_network().train(training), PERTS)
    permuted = run(small_network().train(training), [PERTS[i] for i in order])
    close(permuted, outputs[order], 1e-12)
    other = run(small_network(coexpress_seed=9).train(training), PERTS)
    assert ((outputs - other).abs().amax(dim=1) > 1e-6).all()


def test_both_genes_of_a_pair_count():
    network = small_network().eval()
    weight = torch.ones(1)
    row, nodes = torch.zeros(2, dtype=torch.long), torch.tensor([1, 4])
    pair = network(row, nodes, weight)[0]
    torch.testing.assert_close(network(row, nodes.flip(0), weight)[0], pair, rtol=0, atol=0)
    singles = [network(row[:1], nodes[i : i + 1], weight)[0] for i in (0, 1)]
    assert all((pair - single).abs().max() > 1e-4 for single in singles)
    run(network.train(), [[1, 4], [2], []]).square().sum().backward()
    assert (network.pert_emb.weight.grad[[1, 4]].abs().amax(dim=1) > 0).all()


@pytest.mark.parametrize("perts", [[[], [], []], [[3], [], []], [[3]], [[]]])
def test_batches_without_or_with_one_perturbed_cell(perts):
    network = small_network()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    run(network, perts).square().sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in network.parameters())
    after = network.state_dict()
    fused = [name for name in after if name.startswith("pert_fuse") and "running_mean" in name]
    untouched = not any(perts)
    assert all(torch.equal(after[name], before[name]) == untouched for name in fused)
    assert not torch.equal(after["bn_emb.running_mean"], before["bn_emb.running_mean"])
    assert all(torch.isfinite(value).all() for value in after.values())


def test_no_perturb_predicts_no_change_and_can_be_trained():
    network = small_network(no_perturb=True)
    delta = run(network, PERTS)
    assert torch.equal(delta, torch.zeros_like(delta))
    delta.sum().backward()
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in network.parameters())
    assert not run(network.eval(), PERTS).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shortening_embeddings_twice_is_shortening_them_once(dtype):
    """Else the second prediction of a new model would differ from the first."""
    network = small_network().to(dtype)
    draw = torch.Generator().manual_seed(0)
    tables = (network.gene_emb, network.emb_pos, network.pert_emb)
    for table in tables:  # thousands of rows, so that rounding leaves some just above 1
        rows = torch.randn(5000, HIDDEN, generator=draw, dtype=torch.float64).to(dtype)
        table.weight = torch.nn.Parameter(3 * rows)
    network.renormalise_embeddings()
    once = [table.weight.clone() for table in tables]
    network.renormalise_embeddings()
    for table, before in zip(tables, once, strict=True):
        assert torch.equal(table.weight, before)
        assert torch.linalg.vector_norm(before, dim=1).max() < 1 + 1e-6


def test_only_untrained_nodes_without_neighbours_get_the_mean_of_the_trained_ones():
    edges = np.array([[0, 1, 2, 3, 4], [1, 0, 2, 3, 4]])  # 2, 3 and 4 have themselves only
    fallback = Fallback()
    fallback.set(edges, 5, trained=[0, 2])
    nodes_PH = torch.arange(10, dtype=torch.float64).reshape(5, 2)
    expected_PH = nodes_PH.clone()
    expected_PH[[3, 4]] = (nodes_PH[0] + nodes_PH[2]) / 2
    torch.testing.assert_close(fallback(nodes_PH), expected_PH)


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
