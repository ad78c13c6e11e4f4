"""Seconds per 1,000 predicted conditions: the network's forward against the prepared network, in alternation.

So: ``python benchmarks/run.py prediction --conditions 128``.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import torch
from measuring import Measurement, Result, table

from gears.graphs import Graph
from gears.model.config import ModelConfig
from gears.model.network import GEARSNetwork

HIDDEN, NEIGHBOURS = 64, 20


def random_network(n_genes, n_nodes):
    """A network with random graphs and running statistics as after some training."""
    draw = torch.Generator().manual_seed(0)

    def graph(n):
        edges = torch.randint(n, (2, NEIGHBOURS * n), generator=draw).unique(dim=1)
        weight = 1 - torch.rand(edges.shape[1], generator=draw)
        return Graph(tuple(map(str, range(n))), edges.numpy(), weight.numpy())

    network = GEARSNetwork(graph(n_nodes), graph(n_genes), ModelConfig(hidden_size=HIDDEN), seed=1)
    network.train()
    with torch.no_grad():
        for _ in range(3):
            network(torch.arange(32), torch.arange(32), torch.ones(32))
    return network.eval()


def forward(network, nodes, chunk):
    """Every condition by the network's own forward, `chunk` at a time."""
    with torch.no_grad():
        for begin in range(0, len(nodes), chunk):
            part = nodes[begin : begin + chunk]
            row = torch.tensor([i for i, members in enumerate(part) for _ in members])
            node = torch.tensor([j for members in part for j in members])
            network(row, node, torch.ones(len(part)))


def prepared(network, nodes, chunk):
    """The same by the prepared network, the preparation included."""
    frozen = network.prepared()
    for begin in range(0, len(nodes), chunk):
        frozen(nodes[begin : begin + chunk])


def prediction(
    genes: int = 5000, conditions: int = 256, chunks: tuple[int, ...] = (32, 256), threads: int = 1, rounds: int = 2
) -> Iterator[Result]:
    """Both ways in chunks of conditions; the ratio is of their CPU seconds."""
    torch.set_num_threads(threads)
    network = random_network(genes, genes)
    nodes = [[i, (7 * i + 1) % genes] for i in range(conditions)]
    runs, rows = [], []
    for chunk in chunks:
        for _ in range(rounds):
            for way in (forward, prepared):
                with Measurement() as block:
                    way(network, nodes, chunk)
                runs.append({"way": way.__name__, "chunk": chunk, **block.figures})
        seconds = {}
        for way in ("forward", "prepared"):
            of_way = [run for run in runs if (run["way"], run["chunk"]) == (way, chunk)]
            seconds[way] = 1000 / conditions * median(run["cpu_s"] for run in of_way)
        peak = max(run["peak_mb"] for run in runs)
        row = {"conditions at a time": chunk, "forward, CPU s": seconds["forward"]}
        row |= {"prepared, CPU s": seconds["prepared"], "ratio": seconds["forward"] / seconds["prepared"]}
        rows.append(row | {"peak MiB": peak})
    title = f"Seconds per 1,000 predicted conditions of {genes:,} genes"
    yield Result(title, table(rows), {"genes": genes, "threads": threads, "rows": runs})
