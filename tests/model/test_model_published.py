"""Published and wrapped state dicts, published settings."""

import pytest
import torch
from model_twin import small_network

from gears.model.config import ModelConfig, published_config
from gears.model.folder import published_state


def test_prefixes_are_stripped_per_key_and_unused_tensors_dropped():
    network, other = small_network(seed=1), small_network(seed=2)
    prefixes = ("", "module.", "_orig_mod.", "module._orig_mod.")
    state = {prefixes[i % 4] + key: value for i, (key, value) in enumerate(network.state_dict().items())}
    for name in ("pert_w.weight", "module.pert_w.bias", "bn_pert_base_trans.running_var"):
        state[name] = torch.zeros(1)
    other.load_state_dict(published_state(state))
    for key, value in network.state_dict().items():
        assert torch.equal(other.state_dict()[key], value)


def test_a_parameter_given_twice_is_refused():
    state = {"bn_emb.weight": torch.zeros(1), "module.bn_emb.weight": torch.ones(1)}
    with pytest.raises(ValueError, match=r"with and without a wrapper's prefix: bn_emb\.weight"):
        published_state(state)


def test_published_settings_keep_the_published_objective():
    config = published_config({"hidden_size": 32, "device": "cuda", "num_genes": 5, "G_go": None})
    assert config == ModelConfig(hidden_size=32, direction="sign", uncertainty_kind="gears")
    with pytest.warns(UserWarning, match="cell_fitness_pred"):
        assert published_config({"cell_fitness_pred": False, "direction": "smooth"}).direction == "smooth"
