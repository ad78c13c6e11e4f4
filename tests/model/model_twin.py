"""The network written plainly: one row per cell and gene, torch's own batch norm, dense graphs.

Slow and simple on purpose; the tests compare the package's network with it.
"""

from itertools import pairwise

import torch
from torch import nn

from gears.graphs import Graph
from gears.model.config import ModelConfig
from gears.model.network import GEARSNetwork

GENES, NODES, HIDDEN = 13, 9, 6


def edges_of(n: int, n_edges: int, seed: int, *, loops: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """A random graph without repeated edges, a few self edges among them."""
    generator = torch.Generator().manual_seed(seed)
    pairs = [(s, t) for s in range(n) for t in range(n) if s != t]
    chosen = torch.randperm(len(pairs), generator=generator)[:n_edges].tolist()
    edges = [pairs[i] for i in chosen] + [(i, i) for i in range(loops)]
    weight = torch.rand(len(edges), generator=generator, dtype=torch.float64) + 0.05
    return torch.tensor(edges).t().contiguous(), weight


def graph_of(n: int, edges: torch.Tensor, weight: torch.Tensor) -> Graph:
    """The graph of some edges between `n` genes without real names."""
    return Graph(tuple(f"n{i}" for i in range(n)), edges.numpy(), weight.numpy())


def small_network(*, coexpress_seed: int = 2, seed: int = 3, **settings: object) -> GEARSNetwork:
    """A float64 network; weights do not depend on the graphs."""
    config = ModelConfig(hidden_size=HIDDEN, **settings)
    go, coexpress = edges_of(NODES, 20, seed=1), edges_of(GENES, 30, seed=coexpress_seed)
    return GEARSNetwork(graph_of(NODES, *go), graph_of(GENES, *coexpress), config, seed=seed).double()


def collapse(perts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(pert_row, pert_node, weight, row of each cell) of the distinct conditions of a list of cells."""
    keys = [tuple(sorted(p)) for p in perts]
    distinct = list(dict.fromkeys(keys))
    row_B = torch.tensor([distinct.index(key) for key in keys], dtype=torch.long)
    members = [(u, node) for u, key in enumerate(distinct) for node in key]
    pert = torch.tensor(members, dtype=torch.long).reshape(-1, 2)
    weight = torch.bincount(row_B, minlength=len(distinct)).double()
    return pert[:, 0], pert[:, 1], weight, row_B


class PlainMLP(nn.Module):
    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for n_in, n_out in pairwise(sizes):
            layers += [nn.Linear(n_in, n_out), nn.BatchNorm1d(n_out), nn.ReLU()]
        self.network = nn.Sequential(*layers[:-1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)


class PlainConv(nn.Module):
    def __init__(self, adjacency: torch.Tensor, size: int) -> None:
        super().__init__()
        loops = torch.where(adjacency.diagonal() == 0, 1.0, adjacency.diagonal())
        adjacency = adjacency - adjacency.diagonal().diag() + loops.diag()
        scale = adjacency.sum(1).rsqrt()
        self.matrix = scale[:, None] * adjacency * scale
        self.lin = nn.Linear(size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(self.matrix @ x)


class PlainNetwork(nn.Module):
    """Loads the state dict of a :class:`GEARSNetwork` with the same graphs."""

    def __init__(self, go: tuple, coexpress: tuple, config: ModelConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.config = config
        for name, n in (("gene_emb", GENES), ("emb_pos", GENES), ("pert_emb", NODES)):
            setattr(self, name, nn.Embedding(n, size, max_norm=1.0))
        self.bn_emb, self.bn_pert_base = nn.BatchNorm1d(size), nn.BatchNorm1d(size)
        self.layers_emb_pos = nn.ModuleList(
            PlainConv(dense(*coexpress, GENES), size) for _ in range(config.num_gene_gnn_layers)
        )
        self.sim_layers = nn.ModuleList(PlainConv(dense(*go, NODES), size) for _ in range(config.num_go_gnn_layers))
        self.emb_trans_v2, self.pert_fuse = PlainMLP([size] * 3), PlainMLP([size] * 3)
        self.recovery_w = PlainMLP([size, 2 * size, size])
        self.cross_gene_state = PlainMLP([GENES, size, size])
        self.indv_w1 = nn.Parameter(torch.empty(GENES, size, 1))
        self.indv_b1 = nn.Parameter(torch.empty(GENES, 1))
        self.indv_w2 = nn.Parameter(torch.empty(1, GENES, size + 1))
        self.indv_b2 = nn.Parameter(torch.empty(1, GENES))
        if config.uncertainty:
            self.uncertainty_w = PlainMLP([size, 2 * size, size, 1])
        self.double()

    def forward(self, perts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """One list of perturbed nodes per cell; (delta, log-variance), each (B, G)."""
        n_cells, size = len(perts), self.config.hidden_size
        genes = torch.arange(GENES).repeat(n_cells)
        own = torch.relu(self.bn_emb(self.gene_emb(genes)))
        messages = stack(self.layers_emb_pos, self.emb_pos(torch.arange(GENES)))
        base = self.emb_trans_v2(own + 0.2 * messages.repeat(n_cells, 1)).reshape(n_cells, GENES, size)
        nodes = stack(self.sim_layers, self.pert_emb(torch.arange(NODES)))
        perturbed = [i for i, p in enumerate(perts) if p]
        effect = torch.zeros(n_cells, size, dtype=base.dtype)
        if perturbed:
            sums = torch.stack([nodes[perts[i]].sum(0) for i in perturbed])
            effect = effect.index_put((torch.tensor(perturbed),), self.pert_fuse(sums))
        state = torch.relu(self.bn_pert_base((base + effect[:, None]).reshape(-1, size)))
        hidden = self.recovery_w(state).reshape(n_cells, GENES, size)
        own = torch.stack([(cell * self.indv_w1[:, :, 0]).sum(1) + self.indv_b1[:, 0] for cell in hidden])
        context = self.cross_gene_state(own)
        delta = []
        for cell, s in zip(own, context, strict=True):
            features = torch.cat([cell[:, None], s.expand(GENES, size)], dim=1)
            delta.append((features * self.indv_w2[0]).sum(1) + self.indv_b2[0])
        logvar = self.uncertainty_w(state).reshape(n_cells, GENES) if self.config.uncertainty else None
        return torch.stack(delta), logvar


def twin_of(network: GEARSNetwork, *, coexpress_seed: int = 2) -> PlainNetwork:
    """A plain network with the weights and graphs of :func:`small_network`."""
    go, coexpress = edges_of(NODES, 20, seed=1), edges_of(GENES, 30, seed=coexpress_seed)
    twin = PlainNetwork(go, coexpress, network.config)
    twin.load_state_dict(network.state_dict())
    return twin


def dense(edges: torch.Tensor, weight: torch.Tensor, n: int) -> torch.Tensor:
    """Adjacency[target, source]."""
    adjacency = torch.zeros(n, n, dtype=torch.float64)
    adjacency[edges[1], edges[0]] = weight
    return adjacency


def stack(layers: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    for i, layer in enumerate(layers):
        x = layer(torch.relu(x) if i else x)
    return x
