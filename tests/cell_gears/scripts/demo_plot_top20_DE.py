"""The calls of cell-gears' demo/tutorial_plot_top20_DE.ipynb."""

from gears import GEARS, PertData

pert_data = PertData("./data")
pert_data.load(data_name="norman")
pert_data.prepare_split(split="simulation", seed=1)
pert_data.get_dataloader(batch_size=32, test_batch_size=128)

gears_model = GEARS(pert_data, device="cpu")
gears_model.load_pretrained("test_model")

gears_model.plot_perturbation("FEV+ctrl")
gears_model.plot_perturbation("FEV+ctrl", save_file="fev_ctrl.png")
