"""From real screens as people have them to a scored model."""

import json

import numpy as np
import pytest
from driving import gears_of

from gears.data.splits import check_split
from gears.gears import GEARS
from gears.pertdata import PertData

REAL = {
    "norman2019": ({"style": "auto"}, "simulation"),
    "mcfaline2023": ({"style": "auto", "pool_cell_types": True}, "simulation_single"),
    "papalexi2021": ({"style": "auto", "layer": "counts", "normalize": True}, "simulation_single"),
}


def trained(data: PertData, split: str, epochs: int = 1) -> GEARS:
    """Split, train an epoch over moments, and score."""
    for mode in ("published", "strict"):
        data.prepare_split(split, seed=1, mode=mode)
        report = check_split(data.split, data.screen)
        assert report.ok, str(report)
    model = gears_of(data, hidden_size=16)
    result = model.train(epochs=epochs, objective="moments", prior=None, verbose=False, evaluate_test=False)
    assert len(result.history) == epochs
    table = model.evaluate("test", baselines=["additive"], n_split_half=1)
    values = table.loc[(table["method"] == "gears") & (table["metric"] == "mse"), "value"]
    assert len(values)
    assert np.isfinite(values).all()
    predicted = model.predict(data.split.conditions("test")[:2])
    assert np.isfinite(predicted.expression_UG).all()
    return model


@pytest.mark.long  # in short: training/test_output.py
@pytest.mark.shared
@pytest.mark.parametrize("name", REAL)
def test_a_real_screen_from_file_to_score(name, shared, tmp_path):
    options, split = REAL[name]
    data = PertData(tmp_path, default_pert_graph=False)
    data.load(data_path=shared / "data" / f"{name}_subset.h5ad", **options)
    report = data.summary()
    assert report.facts["control_cells"] > 0
    json.dumps(report.to_dict())
    trained(data, split)
