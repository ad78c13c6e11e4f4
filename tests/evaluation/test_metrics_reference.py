"""The registered metrics on the real Norman subset: against the published functions' values."""

import json

import numpy as np
import pytest
from anndata import read_h5ad

from gears import PertData
from gears.evaluation import Truth, condition_metrics

# registered metric: (published function, its key)
SHARED = {
    "mse": ("compute_metrics_per_condition", "mse"),
    "mse_top20_de": ("compute_metrics_per_condition", "mse_de"),
    "pearson": ("compute_metrics_per_condition", "pearson"),
    "pearson_delta": ("deeper_analysis", "pearson_delta"),
    "pearson_delta_top20_de": ("deeper_analysis", "pearson_delta_top20_de"),
    "direction_accuracy_top20": ("deeper_analysis", "frac_correct_direction_20"),
    "within_one_sigma_top20": ("deeper_analysis", "frac_sigma_below_1"),
    "mse_top20_de_non_dropout": ("non_dropout_analysis", "mse_top20_de_non_dropout"),
}


@pytest.mark.shared
def test_registered_metrics_give_the_published_values(shared, tmp_path):
    values = json.loads((shared / "reference" / "norman_subset_de_and_metrics.json").read_text())
    data = PertData(tmp_path, default_pert_graph=False)
    data.new_data_process("norman", read_h5ad(shared / "data" / "norman2019_subset.h5ad"))
    conditions = list(values["metrics_input"])
    predicted = np.array([values["metrics_input"][label] for label in conditions], dtype=np.float32)
    truth = Truth.of(data.screen, conditions)
    found = condition_metrics(predicted, truth, list(SHARED))
    for column, (function, key) in enumerate(SHARED.values()):
        expected = [values[function][label][key] for label in conditions]
        np.testing.assert_allclose(found[:, column], expected, atol=1e-6, err_msg=key)
