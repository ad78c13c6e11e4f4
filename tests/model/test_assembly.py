"""A model put together from a prepared screen."""

import numpy as np

from gears import PertData
from gears.graphs import _custom as custom
from gears.graphs import coexpression_graph
from gears.model import _folder as folder
from gears.model.config import ModelConfig


def test_coexpression_of_very_many_cells_is_of_evenly_spaced_ones(tmp_path, toy_adata, toy_go, monkeypatch):
    pert_data = PertData(tmp_path, gene2go=toy_go)
    pert_data.new_data_process("toy", toy_adata)
    pert_data.prepare_split("simulation", seed=1)
    screen, config = pert_data.screen, ModelConfig(coexpress_threshold=0.1)
    ids = [screen.id_of(condition) for condition in pert_data.split.conditions("train")]
    rows = np.flatnonzero(np.isin(screen.cell_condition, ids))
    whole = folder.build_parts(pert_data, config).coexpress
    monkeypatch.setattr(custom, "COEXPRESSION_CELLS", 21)
    part = folder.build_parts(pert_data, config).coexpress
    chosen = rows[np.linspace(0, len(rows) - 1, 21).astype(int)]
    expected = coexpression_graph(screen.cells, screen.gene_names, rows=chosen, threshold=0.1)
    np.testing.assert_array_equal(part.edge_index, expected.edge_index)
    assert not np.array_equal(part.weight, whole.weight)
    for number in (21, len(rows)):
        monkeypatch.setattr(custom, "COEXPRESSION_CELLS", number)
        again = folder.build_parts(pert_data, config).coexpress
        np.testing.assert_array_equal(again.weight, (part if number == 21 else whole).weight)
    monkeypatch.setattr(custom, "COEXPRESSION_CELLS", 21)
    every = folder.build_parts(pert_data, ModelConfig(coexpress_threshold=0.1, coexpress_cells=None)).coexpress
    assert every.hash == whole.hash
