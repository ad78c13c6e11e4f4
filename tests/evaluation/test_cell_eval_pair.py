"""The exported pair: its layout and that its means are the predictions."""

import numpy as np
import pytest
from anndata import read_h5ad

from gears import PertData
from gears.conditions import Condition
from gears.evaluation.cell_eval import write_cell_eval_pair
from gears.prediction.predictions import Predictions


def test_pair_holds_the_same_controls_and_cells_with_the_predicted_means(tmp_path, toy_adata, toy_go):
    data = PertData(tmp_path / "data", gene2go=toy_go, default_pert_graph=False)
    data.new_data_process("toy", toy_adata)
    conditions = ["GX00+ctrl", "GX00+GX01"]
    predicted = np.abs(np.random.default_rng(0).normal(0.8, 0.6, (2, 30)))
    paths = write_cell_eval_pair(tmp_path / "pair", predicted, conditions, data.screen)
    assert [path.name for path in paths] == ["predicted.h5ad", "real.h5ad"]
    pair = [read_h5ad(path) for path in paths]
    for adata in pair:
        assert adata.obs["target"].value_counts().to_dict() == {
            "non-targeting": 60,
            "GX00": 12,
            "GX00+GX01": 12,
        }
        assert list(adata.var_names) == data.screen.gene_names
        assert adata.X.min() >= 0
    controls = [adata[adata.obs["target"] == "non-targeting"].X.toarray() for adata in pair]
    np.testing.assert_array_equal(controls[0], controls[1])
    for row, name in enumerate(["GX00", "GX00+GX01"]):
        cells = [adata[adata.obs["target"] == name].X.toarray().astype(float) for adata in pair]
        np.testing.assert_allclose(cells[0].mean(axis=0), predicted[row], rtol=1e-5, atol=1e-6)
        true = data.screen.statistics.mean[data.screen.id_of(conditions[row])]
        np.testing.assert_allclose(cells[1].mean(axis=0), true, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="clip=True"):
        write_cell_eval_pair(tmp_path / "other", -predicted, conditions, data.screen)
    with pytest.raises(ValueError, match="one row for each of 1"):
        write_cell_eval_pair(tmp_path / "other", predicted, conditions[:1], data.screen)
    with pytest.raises(ValueError, match="needs conditions"):
        write_cell_eval_pair(tmp_path / "other", predicted, None, data.screen)
    genes, labels = tuple(data.screen.gene_names), tuple(map(Condition.parse, conditions))
    swapped = Predictions(labels, (genes[1], genes[0], *genes[2:]), predicted, np.zeros(30))
    with pytest.raises(ValueError, match="the same genes in another order"):
        write_cell_eval_pair(tmp_path / "other", swapped, None, data.screen)
    assert not (tmp_path / "other").exists()
    again = write_cell_eval_pair(
        tmp_path / "again", Predictions(labels, genes, predicted, np.zeros(30)), None, data.screen
    )
    np.testing.assert_array_equal(read_h5ad(again[0]).X.toarray(), pair[0].X.toarray())
