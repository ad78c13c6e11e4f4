"""Settings check themselves and survive other releases; published and wrapped state dicts and settings."""

import json

import pytest
import torch
from model_twin import small_network

from gears.model._folder import published_state
from gears.model.config import ModelConfig, published_config


def test_json_keeps_settings_unknown_ones_are_named_and_missing_ones_defaulted():
    config = ModelConfig(hidden_size=32, uncertainty=True, direction="sign")
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    with pytest.warns(UserWarning, match="cell_fitness_pred"):
        config = ModelConfig.from_dict({"hidden_size": 32, "cell_fitness_pred": True})
    assert config == ModelConfig(hidden_size=32)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_size": 0}, "hidden_size is 0; expected a whole number of at least 1"),
        ({"num_similar_genes_go_graph": -1}, "graph is -1; expected a whole number of at least 0"),
        ({"loss": "evidnce"}, "loss"),
        ({"hidden_size": 8.0}, "expected a whole number"),
        ({"num_go_gnn_layers": True}, "expected a whole number"),
        ({"tau": 0.0}, "tau is 0.0; expected a number above 0"),
        ({"direction_lambda": -1}, "expected a number of at least 0"),
        ({"uncertainty_reg": float("nan")}, "expected a number of at least 0"),
        ({"coexpress_threshold": 1.5}, "expected a number from 0 to 1"),
        ({"coexpress_cells": 0}, "expected a whole number of at least 1, or None for all cells"),
        ({"uncertainty": 1}, "expected True or False"),
        ({"direction": "smoth"}, "did you mean 'smooth'"),
        ({"uncertainty_kind": "nl"}, "did you mean 'nll'"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig(**settings)


def test_prefixes_are_stripped_per_key_and_unused_tensors_dropped():
    network, other = small_network(seed=1), small_network(seed=2)
    prefixes = ("", "module.", "_orig_mod.", "module._orig_mod.")
    state = {prefixes[i % 4] + key: value for i, (key, value) in enumerate(network.state_dict().items())}
    for name in ("pert_w.weight", "module.pert_w.bias", "bn_pert_base_trans.running_var"):
        state[name] = torch.zeros(1)
    other.load_state_dict(published_state(state))
    for key, value in network.state_dict().items():
        assert torch.equal(other.state_dict()[key], value)
    twice = {"bn_emb.weight": torch.zeros(1), "module.bn_emb.weight": torch.ones(1)}
    with pytest.raises(ValueError, match=r"with and without a wrapper's prefix: bn_emb\.weight"):
        published_state(twice)


def test_published_settings_keep_the_published_objective():
    config = published_config({"hidden_size": 32, "device": "cuda", "num_genes": 5, "G_go": None})
    assert config == ModelConfig(hidden_size=32, direction="sign", uncertainty_kind="gears")
    with pytest.warns(UserWarning, match="cell_fitness_pred"):
        assert published_config({"cell_fitness_pred": False, "direction": "smooth"}).direction == "smooth"
