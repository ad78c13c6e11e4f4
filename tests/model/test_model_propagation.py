"""Message passing against SGConv of torch-geometric."""

import pytest
import torch
from model_twin import edges_of, graph_of
from torch_geometric.nn import SGConv

from gears.model.layers import GraphLinear, Propagation

N, H = 12, 4
NO_EDGES = (torch.zeros(2, 0, dtype=torch.long), torch.zeros(0, dtype=torch.float64))
GRAPHS = {
    "plain": edges_of(N, 30, seed=1, loops=0),
    "self edges": edges_of(N, 30, seed=2, loops=5),
    "few edges": edges_of(N, 2, seed=3, loops=1),
    "no edges": NO_EDGES,
}


def alike(one, other, n: int, target: torch.Tensor) -> None:
    """Two functions of (n, H) inputs have the same values and gradients."""
    results = []
    for layer in (one, other):
        v = torch.randn(n, H, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
        out = layer(v)
        (out * target).sum().backward()
        results.append((out, v.grad))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", GRAPHS)
def test_equals_sgconv(name):
    edges, weight = GRAPHS[name]
    conv = SGConv(H, 3).double()
    ours, lin = Propagation(graph_of(N, edges, weight)).double(), GraphLinear(H, 3).double()
    lin.load_state_dict(conv.state_dict())
    target = torch.randn(N, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    alike(lambda v: conv(v, edges, weight), lambda v: lin(ours(v)), N, target)


@pytest.mark.parametrize("name", [*GRAPHS, "a hub"])
def test_some_nodes_get_the_messages_that_all_get(name):
    """Nodes in any order and more than once; a hub with more neighbours than tables are wide."""
    n = N if name != "a hub" else 80
    hub = torch.stack([torch.arange(1, n), torch.zeros(n - 1, dtype=torch.long)])
    edges, weight = GRAPHS.get(name, (hub, torch.ones(n - 1, dtype=torch.float64)))
    graph = Propagation(graph_of(n, edges, weight)).double()
    nodes = torch.tensor([5, 0, 1, 5, 2])
    target = torch.randn(len(nodes), H, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    alike(lambda v: graph(v)[nodes], lambda v: graph.of_nodes(v, nodes), n, target)
    assert graph.of_nodes(torch.zeros(n, H, dtype=torch.float64), nodes[:0]).shape == (0, H)
