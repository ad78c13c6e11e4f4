"""The prepared network, which is the network's forward in evaluation mode, equals the plain twin."""

import pytest
import torch
from model_twin import collapse, small_network, twin_of

import gears.model.network as prepared_module

PERTS = [[3], [], [1, 4], [2], [0, 5, 7], [6]]
VARIANTS = {
    "published": {},
    "two layers": {"num_go_gnn_layers": 2, "num_gene_gnn_layers": 3},
    "uncertainty": {"uncertainty": True},
    "no change": {"no_perturb": True},
}


@pytest.mark.parametrize(("variant", "rows"), [*zip(VARIANTS, (1, 20, 20, 2048), strict=True)])
def test_equals_the_twin(variant, rows, monkeypatch):
    monkeypatch.setitem(prepared_module.BLOCK_ROWS, "cpu", rows)
    network = small_network(**VARIANTS[variant])
    row, node, weight, _ = collapse(PERTS)
    for _ in range(3):  # running statistics away from their initial values
        network(row, node, weight)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    delta, logvar = network.prepared()(PERTS)
    assert network.training
    for name, value in network.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    expected, expected_logvar = twin_of(network).eval()(PERTS)
    expected = expected * (not network.config.no_perturb)
    torch.testing.assert_close(delta, expected, rtol=1e-11, atol=1e-12)
    if expected_logvar is None:
        assert logvar is None
    else:
        torch.testing.assert_close(logvar, expected_logvar, rtol=1e-11, atol=1e-12)
    assert not delta.requires_grad


def test_does_not_follow_the_network_and_takes_no_conditions():
    network = small_network()
    frozen = network.prepared()
    first, _ = frozen(PERTS)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(1.0)
    torch.testing.assert_close(frozen(PERTS)[0], first, rtol=0, atol=0)
    assert frozen([])[0].shape == (0, network.n_genes)
