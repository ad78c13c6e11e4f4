"""What benchmarks of several methods do: a custom screen, a saved model, the scores of its test cells."""

import scanpy as sc
import torch

from gears import GEARS, PertData
from gears.inference import compute_metrics, evaluate, non_zero_analysis
from gears.utils import get_genes_from_perts, get_mean_control, parse_any_pert

adata = sc.read_h5ad("sample_adata.h5ad")
adata.uns["log1p"] = {"base": None}
pert_data = PertData("./data", default_pert_graph=False)
pert_data.new_data_process(dataset_name="train", adata=adata, skip_calc_de=False)
pert_data.load(data_path=pert_data.data_path + "/train")
pert_data.prepare_split(split="simulation", seed=1, train_gene_set_size=0.8)
pert_data.get_dataloader(batch_size=32, test_batch_size=128)

gears_model = GEARS(pert_data, device="cpu")
gears_model.model_initialize(hidden_size=64)
gears_model.train(epochs=1)
gears_model.save_model("benchmark_model")

again = GEARS(pert_data, device="cpu")
again.load_pretrained("benchmark_model")
test_res = evaluate(again.dataloader["test_loader"], again.best_model, uncertainty=False, device="cpu")
test_metrics, test_pert_res = compute_metrics(test_res)
non_zero_analysis(pert_data.adata, test_res)
control = get_mean_control(pert_data.adata)
perturbed = get_genes_from_perts(pert_data.set2conditions["test"])

assert set(test_metrics) == {"mse", "mse_de", "pearson", "pearson_de"}
assert torch.allclose(again.ctrl_expression, torch.tensor(control.to_numpy(), dtype=torch.float32))
assert set(perturbed) == {gene for label in pert_data.set2conditions["test"] for gene in parse_any_pert(label)}
