"""What forks and extensions do: graphs made by hand, and a training step with the published losses."""

import torch

from gears import GEARS, PertData
from gears.gears import get_similarity_network
from gears.utils import GeneSimNetwork, loss_fct, uncertainty_loss_fct

pert_data = PertData("./data", default_pert_graph=False)
pert_data.load(data_name="norman")
pert_data.prepare_split(split="simulation", seed=1)
pert_data.get_dataloader(batch_size=32, test_batch_size=128)

edge_list = get_similarity_network(
    network_type="co-express", adata=pert_data.adata, threshold=0.4, k=20, data_path=pert_data.data_path,
    data_name=pert_data.dataset_name, split=pert_data.split, seed=pert_data.seed,
    train_gene_set_size=pert_data.train_gene_set_size, set2conditions=pert_data.set2conditions,
)  # fmt: skip
sim_network = GeneSimNetwork(edge_list, pert_data.gene_names.values.tolist(), node_map=pert_data.node_map)

for uncertainty in (False, True):
    gears_model = GEARS(pert_data, device="cpu")
    gears_model.model_initialize(
        hidden_size=16,
        uncertainty=uncertainty,
        G_coexpress=sim_network.edge_index,
        G_coexpress_weight=sim_network.edge_weight,
    )
    network = gears_model.model.train()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, weight_decay=5e-4)
    for batch in gears_model.dataloader["train_loader"]:
        batch.to(gears_model.device)
        optimizer.zero_grad()
        options = {
            "perts": batch.pert,
            "ctrl": gears_model.ctrl_expression,
            "dict_filter": gears_model.dict_filter,
            "direction_lambda": gears_model.config["direction_lambda"],
        }
        if uncertainty:
            pred, logvar = network(batch)
            reg = gears_model.config["uncertainty_reg"]
            loss = uncertainty_loss_fct(pred, logvar, batch.y, reg=reg, **options)
        else:
            loss = loss_fct(network(batch), batch.y, **options)
        loss.backward()
        torch.nn.utils.clip_grad_value_(network.parameters(), clip_value=1.0)
        optimizer.step()
        assert torch.isfinite(loss)

assert torch.equal(gears_model.G_coexpress, sim_network.edge_index)
assert torch.allclose(gears_model.G_coexpress_weight, sim_network.edge_weight)
assert gears_model.G_go.shape[1] == len(gears_model.G_go_weight)
assert set(pert_data.gene2go) <= set(pert_data.pert_names)
