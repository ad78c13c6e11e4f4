"""What perturbation scripts around language models of cells do (scGPT and its like): loaders, batches, scores."""

import torch
from torch_geometric.loader import DataLoader

from gears import PertData
from gears.inference import compute_metrics, deeper_analysis, non_dropout_analysis
from gears.utils import create_cell_graph_dataset_for_prediction

pert_data = PertData("./data")
pert_data.load(data_name="norman")
pert_data.prepare_split(split="simulation", seed=1)
pert_data.get_dataloader(batch_size=64, test_batch_size=64)
genes = pert_data.adata.var["gene_name"].tolist()

results = {"pert_cat": [], "pred": [], "truth": [], "pred_de": [], "truth_de": []}
for batch in pert_data.dataloader["test_loader"]:
    batch.to("cpu")
    n_cells = len(batch.pert)
    values = batch.x[:, 0].view(n_cells, len(genes))
    results["pert_cat"].extend(batch.pert)
    for cell, de_idx in enumerate(batch.de_idx):
        results["pred"].append(values[cell])
        results["truth"].append(batch.y[cell])
        results["pred_de"].append(values[cell, de_idx])
        results["truth_de"].append(batch.y[cell, de_idx])
results = {key: rows if key == "pert_cat" else torch.stack(rows).numpy() for key, rows in results.items()}

test_metrics, test_pert_res = compute_metrics(results)
deeper_res = deeper_analysis(pert_data.adata, results)
non_dropout_res = non_dropout_analysis(pert_data.adata, results)
for pert_list in pert_data.subgroup["test_subgroup"].values():
    for pert in pert_list:
        deeper_res[pert]["pearson_delta"]
        non_dropout_res[pert]["pearson_delta_top20_de_non_dropout"]

ctrl_adata = pert_data.adata[pert_data.adata.obs["condition"] == "ctrl"]
gene_list = pert_data.gene_names.values.tolist()
cell_graphs = create_cell_graph_dataset_for_prediction(["FEV", "AHR"], ctrl_adata, gene_list, "cpu", num_samples=8)
batch = next(iter(DataLoader(cell_graphs, batch_size=4, shuffle=False)))

assert set(test_pert_res) == set(pert_data.set2conditions["test"])
assert batch.x.shape == (4 * len(genes), 1)
