"""Control cells divided between the parts: training sees its own only."""

import numpy as np
import pytest

from gears.data.splits import make_split
from gears.data.splits.controls import control_parts
from gears.pertdata import PertData

SHARES = (0.6, 0.2, 0.2)


@pytest.fixture
def data(tmp_path, toy_adata, toy_go):
    found = PertData(tmp_path, gene2go=toy_go)
    found.new_data_process("toy", toy_adata)
    return found


def test_control_cells_are_divided_too(data):
    data.prepare_split("simulation", control_shares=SHARES)
    parts = control_parts(data.whole_screen, data.split)
    assert {part: len(cells) for part, cells in parts.items()} == {"train": 36, "val": 12, "test": 12}
    assert sorted(np.concatenate(list(parts.values()))) == data.whole_screen.control_cells.tolist()
    expression = data.whole_screen.cells.csr().toarray()
    own = {part: {row.tobytes() for row in expression[cells]} for part, cells in parts.items()}
    for name, loader in data.get_dataloader(8).items():
        part = name.removesuffix("_loader")
        loader.set_epoch(3)
        for batch in loader:
            assert {row.tobytes() for row in batch.x_BG.numpy()} <= own[part], name
    controls = data.screen.statistics.mean[data.screen.control_id]
    np.testing.assert_allclose(controls, expression[parts["train"]].mean(axis=0), rtol=1e-6)
    assert data.adata.n_obs == 216
    data.prepare_split("simulation")
    assert len(data.screen.control_cells) == 60


def test_impossible_shares_are_named(data):
    for wrong in ((0.5, 0.5), (0.9, 0.2, 0.1), (0, 0.5, 0.5), (1.2, -0.1, -0.1), "a"):
        with pytest.raises(ValueError, match="control_shares are three shares"):
            data.prepare_split("simulation", control_shares=wrong)
    with pytest.raises(ValueError, match=r"of 60 control cells leaves too few in a part \(val 1, test 1; 2"):
        data.prepare_split("simulation", control_shares=(0.97, 0.015, 0.015))
    data.prepare_split("simulation", control_shares=(0.8, 0, 0.2))
    assert len(data.screen_of("val").control_cells) == len(data.screen.control_cells) == 48
    labels = data.screen.labels
    hashes = {make_split(labels, "simulation", control_shares=shares).hash for shares in (None, SHARES)}
    assert len(hashes) == 2
