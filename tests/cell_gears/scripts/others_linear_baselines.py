"""What comparisons with linear baselines do: a split from a file, every condition predicted, results as JSON."""

import json
import pickle
from pathlib import Path

from gears import GEARS, PertData

pert_data = PertData("./data")
pert_data.load("norman")
labels = [label for label in pert_data.adata.obs["condition"].cat.categories if label != "ctrl"]
set2conditions = {"train": ["ctrl", *labels[:9]], "val": labels[9:11], "test": labels[11:]}
pert_data.set2conditions = set2conditions
pert_data.split = "custom"
pert_data.subgroup = None
pert_data.seed = 1
pert_data.train_gene_set_size = 0.75
pert_data.get_dataloader(batch_size=32, test_batch_size=128)

gears_model = GEARS(pert_data, device="cpu")
gears_model.model_initialize(hidden_size=64)
gears_model.train(epochs=1, lr=1e-3, weight_decay=5e-4)

categories = pert_data.adata.obs["condition"].cat.remove_unused_categories().cat.categories
genes = [[gene for gene in label.split("+") if gene != "ctrl"] for label in categories]
predicted = gears_model.predict([names for names in genes if names])
Path("predictions.json").write_text(json.dumps({key: values.tolist() for key, values in predicted.items()}))
Path("gene_names.json").write_text(json.dumps(pert_data.adata.var["gene_name"].values.tolist()))

Path("custom_2.pkl").write_bytes(pickle.dumps(set2conditions))
pert_data.prepare_split(split="custom", split_dict_path="custom_2.pkl")

assert len(predicted) == len(labels)
