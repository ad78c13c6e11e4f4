"""Settings check themselves and survive other releases."""

import json

import pytest

from gears.model.config import ModelConfig


def test_round_trip_through_json():
    config = ModelConfig(hidden_size=32, uncertainty=True, direction="sign")
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_unknown_settings_are_named_and_missing_ones_defaulted():
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
