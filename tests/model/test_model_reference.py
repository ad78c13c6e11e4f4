"""The network against values of the published package, run cell by cell in float64."""

import json

import numpy as np
import pytest
import torch
from model_twin import collapse, graph_of

from gears.model._folder import published_state
from gears.model.config import ModelConfig
from gears.model.network import GEARSNetwork

pytestmark = pytest.mark.shared

FILES = {
    "network_plain_1layer": ModelConfig(hidden_size=8),
    "network_uncertainty_2layers": ModelConfig(8, num_go_gnn_layers=2, num_gene_gnn_layers=2, uncertainty=True),
}


@pytest.mark.parametrize("name", FILES)
def test_reference_values(shared, name):
    with np.load(shared / "reference" / f"{name}.npz") as archive:
        values = {key: torch.from_numpy(archive[key]) for key in archive.files}
    perts = json.loads((shared / "reference" / "network_perts.json").read_text())["perts"]
    *arguments, row_B = collapse([[node for node in cell if node >= 0] for cell in perts])
    assert len(arguments[2]) < len(perts)
    go, coexpress = (
        graph_of(n, values[f"{graph}_edges"], values[f"{graph}_weight"]) for n, graph in ((25, "go"), (40, "coexpress"))
    )
    network = GEARSNetwork(go, coexpress, FILES[name]).double()
    initial = {key.removeprefix("init/"): value for key, value in values.items() if key.startswith("init/")}
    network.load_state_dict(published_state(initial))

    def close(value: torch.Tensor, key: str, tolerance: float = 1e-10) -> None:
        torch.testing.assert_close(value, values[key], rtol=0, atol=tolerance, msg=lambda m: f"{key}: {m}")

    x, y = values["x"], values["y"]
    delta, logvar = network(*arguments)
    prediction = x + delta[row_B]
    loss = (prediction - y).pow(4).mean()
    if logvar is not None:
        loss = loss + (torch.exp(-logvar[row_B]) * (prediction - y).pow(4)).mean()
        close(logvar[row_B], "train/logvar")
    close(prediction, "train/pred")
    close(loss, "train/loss")
    loss.backward()
    gradients = dict(network.named_parameters())
    assert {f"grad/{key}" for key in gradients} == {key for key in values if key.startswith("grad/")}
    for key, parameter in gradients.items():
        close(parameter.grad, f"grad/{key}", 1e-9)
    running = {key for key in values if key.startswith("after/") and "bn_pert_base_trans" not in key}
    for key in running:
        close(network.state_dict()[key.removeprefix("after/")], key)
    network.eval()
    delta, logvar = network(*arguments)
    close(x + delta[row_B], "eval/pred")
    if logvar is not None:
        close(logvar[row_B], "eval/logvar")
