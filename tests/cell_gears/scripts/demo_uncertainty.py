"""The calls of cell-gears' demo/tutorial_uncertainty.ipynb: confidence of predictions beside their error."""

import numpy as np
import pandas as pd

from gears import GEARS, PertData
from gears.inference import compute_metrics, deeper_analysis, evaluate

pert_data = PertData("./data")
pert_data.load(data_name="norman")
pert_data.prepare_split(split="simulation", seed=1)
pert_data.get_dataloader(batch_size=32, test_batch_size=128)

gears_model = GEARS(pert_data, device="cpu")
gears_model.model_initialize(uncertainty=True)
gears_model.train(epochs=1)
gears_model.save_model("gears_unc")
gears_model.load_pretrained("gears_unc")

loader, with_logvar = gears_model.dataloader["test_loader"], gears_model.config["uncertainty"]
test_res = evaluate(loader, gears_model.model, with_logvar, gears_model.device)
test_metrics, test_pert_res = compute_metrics(test_res)
out = deeper_analysis(gears_model.adata, test_res)

logvars = pd.DataFrame({0: test_res["pert_cat"], 1: np.mean(test_res["logvar"], axis=1)})
pert2unc = dict(logvars.groupby(0)[1].mean())
stats = [np.exp(-pert2unc[pert]) for pert in test_pert_res if "pearson_delta" in out[pert]]
metric = [out[pert]["pearson_delta"] for pert in test_pert_res if "pearson_delta" in out[pert]]

pred, unc = gears_model.predict([["FEV"], ["FEV", "AHR"]])

assert len(stats) == len(metric) == len(pert_data.set2conditions["test"])
assert list(pred) == list(unc) == ["FEV", "FEV_AHR"]
assert all(np.isscalar(value) for value in unc.values())
