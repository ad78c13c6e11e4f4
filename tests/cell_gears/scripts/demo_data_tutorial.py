"""The calls of cell-gears' demo/data_tutorial.ipynb: a published screen, and a custom one."""

import scanpy as sc

from gears import PertData

pert_data = PertData("./data")
pert_data.load(data_name="norman")
pert_data.prepare_split(split="simulation", seed=1)
pert_data.get_dataloader(batch_size=32, test_batch_size=128)

adata = sc.read_h5ad("sample_adata.h5ad")
adata.var.head(2)
adata.obs.head(2)

pert_data = PertData("./data")
pert_data.new_data_process(dataset_name="dixit", adata=adata)
pert_data.load(data_path="./data/dixit")
pert_data.prepare_split(split="simulation", seed=1)
loaders = pert_data.get_dataloader(batch_size=32, test_batch_size=128)

assert set(pert_data.dataloader) == {"train_loader", "val_loader", "test_loader"}
assert set(pert_data.adata.uns) >= {"rank_genes_groups_cov_all", "top_non_dropout_de_20"}
