"""Seconds per 1,000 predicted conditions: the network's forward against the prepared network, in alternation."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))

from measuring import Measurement, command, commit, machine

HERE = Path(__file__).resolve().parent
HIDDEN, NEIGHBOURS = 64, 20


def random_network(n_genes, n_nodes):
    """A network with random graphs and running statistics as after some training."""
    import torch

    from gears.graphs import Graph
    from gears.model.config import ModelConfig
    from gears.model.network import GEARSNetwork

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
    import torch

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


def all_pairs(n_pairs, n_genes, hidden, folder):
    """Figures of predicting `n_pairs` pairs into an h5ad file, chunk by chunk."""
    import math

    import numpy as np

    from gears.graphs.graph import Graph
    from gears.model.config import ModelConfig
    from gears.model.folder import ModelParts
    from gears.prediction.stream import all_pairs as pairs_of
    from gears.prediction.stream import predict_to_file

    names = tuple(f"G{i:05d}" for i in range(n_genes))
    ring = np.stack([np.arange(n_genes), (np.arange(n_genes) + 1) % n_genes])
    graph = Graph(names, ring, np.ones(n_genes))
    parts = ModelParts(
        config=ModelConfig(hidden_size=hidden),
        gene_names=names,
        gene_ids=names,
        pert_names=names,
        go=graph,
        coexpress=graph,
        control_mean_G=np.ones(n_genes),
        split=None,
        provenance={},
    )
    network = parts.network(seed=1).eval()
    chosen = names[: math.isqrt(2 * n_pairs) + 1]
    with Measurement() as block:
        path = predict_to_file(network, parts, pairs_of(chosen), Path(folder) / "pairs.h5ad")
    return block.figures | {
        "pairs": math.comb(len(chosen), 2),
        "genes": n_genes,
        "hidden_size": hidden,
        "file_mb": path.stat().st_size / 2**20,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--genes", type=int, default=5000)
    parser.add_argument("--conditions", type=int, default=256)
    parser.add_argument("--chunks", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=0, help="instead: so many pairs into a file")
    parser.add_argument("--hidden", type=int, default=HIDDEN, help="with --pairs")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    options = parser.parse_args()

    import torch

    torch.set_num_threads(options.threads)
    if options.pairs:
        with tempfile.TemporaryDirectory() as folder:
            rows = [all_pairs(options.pairs, options.genes, options.hidden, folder)]
        print(json.dumps(rows[0]))
        keep(options, rows, "prediction-pairs")
        return
    network = random_network(options.genes, options.genes)
    nodes = [[i, (7 * i + 1) % options.genes] for i in range(options.conditions)]
    rows = []
    for chunk in options.chunks:
        for _ in range(options.rounds):
            for way in (forward, prepared):
                with Measurement() as block:
                    way(network, nodes, chunk)
                per = 1000 / options.conditions
                row = {"way": way.__name__, "chunk": chunk, **block.figures}
                row |= {f"{name}_per_1000": per * block.figures[name] for name in ("cpu_s", "wall_s")}
                rows.append(row)
                print(
                    f"{way.__name__:9s} chunk {chunk:5d}: {row['cpu_s_per_1000']:7.2f} CPU s, "
                    f"{row['wall_s_per_1000']:7.2f} s per 1,000 conditions x {options.genes} genes, "
                    f"peak {row['peak_mb']:.0f} MiB (load {row['load']:.1f})",
                    flush=True,
                )
    keep(options, rows, "prediction")


def keep(options, rows, name):
    """Write figures as JSON."""
    options.results.mkdir(parents=True, exist_ok=True)
    record = {
        "genes": options.genes,
        "machine": machine() | {"threads": options.threads},
        "commit": commit(HERE.parent),
        "command": command(),
        "rows": rows,
    }
    (options.results / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
