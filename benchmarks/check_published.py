"""Time steps of the network of cell-gears 0.1.2: ``check_published.py WHEEL INPUT DEVICE STEPS``.

Runs in a process of its own, in which ``gears`` is the published package: its file ``model.py`` alone, because the
rest of it imports scanpy. The loss is a squared error; the published one costs more.
"""

from __future__ import annotations

import json
import sys
import time
import types
from types import SimpleNamespace

import numpy as np
import torch


def main(wheel, path, device, steps):
    package = types.ModuleType("gears")
    package.__path__ = [f"{wheel}/gears"]
    sys.modules["gears"] = package
    from gears.model import GEARS_Model

    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    n_genes, n_nodes, hidden, n_cells = map(int, arrays["sizes"])
    graphs = {}
    for name, key in (("coexpress", "G_coexpress"), ("go", "G_go")):
        graphs[key] = torch.from_numpy(arrays[f"{name}_edges"].astype(np.int64))
        graphs[f"{key}_weight"] = torch.from_numpy(arrays[f"{name}_weight"].astype(np.float32))
    network = GEARS_Model({
        "num_genes": n_genes, "num_perts": n_nodes, "hidden_size": hidden, "uncertainty": False,
        "num_go_gnn_layers": 1, "decoder_hidden_size": 16, "num_gene_gnn_layers": 1, "no_perturb": False,
        "device": device, **graphs,
    }).to(device)  # fmt: skip
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, weight_decay=5e-4)
    nodes = [[int(node) for row, node in arrays["pairs"] if row == cell] for cell in range(n_cells)]
    batch = SimpleNamespace(
        x=torch.rand(n_cells * n_genes, 1, device=device), pert_idx=nodes,
        batch=torch.arange(n_cells, device=device).repeat_interleave(n_genes),
    )  # fmt: skip
    target = torch.rand(n_cells, n_genes, device=device)

    def step():
        optimizer.zero_grad()
        (network(batch) - target).square().mean().backward()
        torch.nn.utils.clip_grad_value_(network.parameters(), clip_value=1.0)
        optimizer.step()

    def now():
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    for _ in range(3):
        step()
    start = now()
    for _ in range(steps):
        step()
    seconds = (now() - start) / steps
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else float("nan")
    print(json.dumps({"seconds": seconds, "peak_GiB": peak}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
