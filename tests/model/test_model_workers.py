"""One batch on one worker equals the same batch spread over several, however unevenly."""

import copy

import pytest
import torch
from model_twin import GENES, collapse, small_network
from model_workers import ThreadReducer, run_workers

from gears.model._losses import cell_loss
from gears.model.layers import Division
from gears.model.network import GEARSNetwork

PERTS = [[3], [], [1, 4], [3], [], [4, 1], [2], [], [5], [2], [3], [1]]
SPLITS = {
    "two uneven": [range(0, 9), range(9, 12)],
    "three": [range(0, 4), range(4, 8), range(8, 12)],
    "only controls on one": [[0, 2, 3, 5, 6, 8], [1, 4, 7], [9, 10, 11]],
    "no conditions on one": [list(range(12)), []],
    "one cell on one": [[2], [i for i in range(12) if i != 2]],
}
VARIANTS = {"plain": {}, "uncertainty": {"uncertainty": True, "num_go_gnn_layers": 2}}


def cells() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    x, y = torch.rand(2, len(PERTS), GENES, generator=generator, dtype=torch.float64)
    return x, y


def step(network: GEARSNetwork, parts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and outputs per cell of this worker's part of the batch; gradients stay in the network."""
    everything = sorted(cell for part in parts for cell in part)
    row, node, weight, row_A = collapse([PERTS[i] for i in everything])
    cells_WA = torch.stack([torch.bincount(row_A[part], minlength=len(weight)) for part in map(as_index, parts)])
    rows = [cells_A.nonzero().flatten() for cells_A in cells_WA]
    rank, own = network.reducer.rank, parts[network.reducer.rank]
    division = None
    if len(parts) > 1:
        widest = max(map(len, rows))
        rows_WU, weight_WU = (torch.zeros(len(parts), widest, dtype=torch.int64), torch.zeros(len(parts), widest))
        for worker, here in enumerate(rows):
            rows_WU[worker, : len(here)], weight_WU[worker, : len(here)] = (here, cells_WA[worker, here].float())
        division = Division(rows_WU, weight_WU.double(), tuple(map(len, rows)), network.reducer)
    row_B = torch.searchsorted(rows[rank], row_A[as_index(own)])
    cell_weight = 1 / (weight[row_A[as_index(own)]] * len(weight))
    x, y = cells()
    delta, logvar = network(row, node, weight, division=division)
    mask = torch.ones(len(rows[rank]), GENES, dtype=torch.bool)
    mu = torch.full((GENES,), 0.4, dtype=torch.float64)
    loss = cell_loss(delta, logvar, row_B, x[own], y[own], mask, mu, cell_weight, network.config)
    (loss * network.reducer.world_size).backward()
    return loss.detach(), delta[row_B].detach()


def as_index(cells: list[int]) -> torch.Tensor:
    return torch.tensor(cells, dtype=torch.int64)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("split", SPLITS)
def test_workers_equal_one_batch(split, variant):
    parts = [list(part) for part in SPLITS[split]]
    whole = small_network(**VARIANTS[variant])
    loss, delta = step(whole, [list(range(len(PERTS)))])

    def work(reducer: ThreadReducer) -> tuple[GEARSNetwork, ThreadReducer, torch.Tensor, torch.Tensor]:
        network = small_network(**VARIANTS[variant])
        network.reducer = reducer
        return network, reducer, *step(network, parts)

    results = run_workers(len(parts), work)
    assert copy.deepcopy(results[0][0]).reducer is results[0][1]
    calls = [reducer.calls for _, reducer, _, _ in results]
    # two norms of recovery_w and the rows of cross_gene_state, forward and backward; three more norms of uncertainty_w
    assert len(calls[0]) == (12 if variant == "uncertainty" else 6)
    assert all(other == calls[0] for other in calls)
    torch.testing.assert_close(sum(r[2] for r in results), loss, rtol=0, atol=1e-12)
    for part, (_, _, _, own) in zip(parts, results, strict=True):
        torch.testing.assert_close(own, delta[part], rtol=0, atol=1e-10)
    networks = [r[0] for r in results]
    for name, parameter in whole.named_parameters():
        mean = torch.stack([dict(n.named_parameters())[name].grad for n in networks]).mean(0)
        torch.testing.assert_close(mean, parameter.grad, rtol=0, atol=1e-10, msg=name)
    for name, value in whole.state_dict().items():
        states = [n.state_dict()[name] for n in networks]
        torch.testing.assert_close(states[0], value, rtol=0, atol=1e-12)
        assert all(torch.equal(state, states[0]) for state in states)
