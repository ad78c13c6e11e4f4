"""Record small models of the published package, cell-gears 0.1.2, and what it predicts with them.

    .venv-cell-gears/bin/python tools/record_published_model.py tests/cell_gears/published

Runs in an environment of its own, in which ``gears`` is the published package (``benchmarks/vs_cell_gears.py``
makes one). Each folder gets ``config.pkl`` and ``model.pt``, written by its ``save_model``, and
``expected.npz``: control cells and the prediction of every cell of a batch of them. The models are trained
on noise, so that no batch norm is at its initial state.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch
from anndata import AnnData
from scipy import sparse
from torch_geometric.loader import DataLoader

from gears import GEARS
from gears.utils import create_cell_graph_dataset_for_prediction

GENES = [f"G{i:02d}" for i in range(12)]
PERTS = ["G00", "G01", "G03", "G05", "P0", "P1", "P2"]
ASKED = [["G00"], ["P1"], ["G03", "P2"]]
MODELS = {"plain": {}, "uncertain": {"uncertainty": True, "num_go_gnn_layers": 2, "num_gene_gnn_layers": 2}}


def screen(rng: np.random.Generator) -> AnnData:
    """A handful of cells in the published layout."""
    conditions = ["ctrl"] * 10 + ["G00+ctrl"] * 4 + ["G03+P2"] * 4
    counts = rng.poisson(2.0, size=(len(conditions), len(GENES)))
    names = [f"cell_{c}_1+1" if c != "ctrl" else "cell_ctrl_1" for c in conditions]
    return AnnData(
        X=sparse.csr_matrix(np.log1p(counts).astype(np.float32)),
        obs=pd.DataFrame(
            {"condition": conditions, "condition_name": names}, index=[f"c{i}" for i in range(len(names))]
        ),
        var=pd.DataFrame({"gene_name": GENES}, index=GENES),
        uns={"non_zeros_gene_idx": {name: np.arange(len(GENES)) for name in set(names)}},
    )


def graph(rng: np.random.Generator, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Self edges of weight 1 and some others, as the published graphs are."""
    chosen = [(i, j) for i in range(n) for j in range(n) if i == j or rng.random() < 0.3]
    weight = [1.0 if i == j else float(rng.uniform(0.1, 0.9)) for i, j in chosen]
    return torch.tensor(chosen).T.contiguous(), torch.tensor(weight)


def trained(adata: AnnData, rng: np.random.Generator, settings: dict) -> GEARS:
    """A published model trained for some steps."""
    pert_data = SimpleNamespace(
        dataloader={},
        adata=adata,
        node_map={gene: i for i, gene in enumerate(GENES)},
        node_map_pert={gene: i for i, gene in enumerate(PERTS)},
        data_path=".",
        dataset_name="noise",
        split="custom",
        seed=1,
        train_gene_set_size=0.75,
        set2conditions={},
        subgroup=None,
        gene_names=adata.var["gene_name"],
        pert_names=np.array(PERTS),
        default_pert_graph=True,
    )
    model = GEARS(pert_data, device="cpu")
    go, coexpress = graph(rng, len(PERTS)), graph(rng, len(GENES))
    model.model_initialize(
        hidden_size=8,
        G_go=go[0],
        G_go_weight=go[1],
        G_coexpress=coexpress[0],
        G_coexpress_weight=coexpress[1],
        **settings,
    )
    optimizer = torch.optim.Adam(model.model.parameters(), lr=0.003)
    model.model.train()
    for _ in range(40):
        cells = batch(adata, ASKED)
        out = model.model(cells)
        pred = out[0] if isinstance(out, tuple) else out
        shift = torch.tensor([nodes[0] for nodes in cells.pert_idx]).unsqueeze(1) - 3
        loss = ((pred - cells.x.reshape(pred.shape) - 0.2 * shift) ** 2).mean()
        if isinstance(out, tuple):
            loss = loss + 0.1 * (out[1] + 1).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.best_model = model.model.eval()
    return model


def batch(adata: AnnData, perturbations: list[list[str]], n: int = 6):
    """`n` control cells under each perturbation, as its predict() makes them."""
    control = adata[adata.obs["condition"] == "ctrl"]
    graphs = [
        graph
        for genes in perturbations
        for graph in create_cell_graph_dataset_for_prediction(genes, control, PERTS, "cpu", num_samples=n)
    ]
    return next(iter(DataLoader(graphs, len(graphs), shuffle=False)))


def main(folder: Path) -> None:
    """Train, save and predict."""
    for seed, (name, settings) in enumerate(MODELS.items()):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002 (what cell-gears draws its control cells from)
        rng = np.random.default_rng(seed)
        adata = screen(rng)
        model = trained(adata, rng, settings)
        model.save_model(str(folder / name))
        record = {}
        for asked in ASKED:
            cells = batch(adata, [asked])
            with torch.no_grad():
                out = model.best_model(cells)
            pred, logvar = out if isinstance(out, tuple) else (out, None)
            record[f"x/{'+'.join(asked)}"] = cells.x.reshape(pred.shape).numpy()
            record[f"pred/{'+'.join(asked)}"] = pred.numpy()
            if logvar is not None:
                record[f"logvar/{'+'.join(asked)}"] = logvar.numpy()
        np.savez_compressed(folder / name / "expected.npz", **record)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
