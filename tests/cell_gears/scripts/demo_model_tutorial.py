"""The calls of cell-gears' demo/model_tutorial.ipynb and README: train, save, load, predict, interactions."""

from gears import GEARS, PertData

pert_data = PertData("./data")
pert_data.load(data_name="norman")
pert_data.prepare_split(split="simulation", seed=1)
pert_data.get_dataloader(batch_size=32, test_batch_size=128)

gears_model = GEARS(pert_data, device="cpu", weight_bias_track=False, proj_name="pertnet", exp_name="pertnet")
gears_model.tunable_parameters()
gears_model.model_initialize(hidden_size=64)
gears_model.train(epochs=1, lr=1e-3)
gears_model.save_model("test_model")
gears_model.load_pretrained("test_model")

predicted = gears_model.predict([["FEV"], ["FEV", "AHR"]])
scores = gears_model.GI_predict(["FEV", "AHR"], GI_genes_file=None)

assert {key: value.shape for key, value in predicted.items()} == {"FEV": (30,), "FEV_AHR": (30,)}
assert {"c1", "c2", "mag", "dcor", "corr_fit", "dominance", "eq_contr"} <= set(scores)
