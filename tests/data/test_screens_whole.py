"""From a screen as people have it to a scored model: every label style, and the real screens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest

from gears.data.splits import check_split
from gears.gears import GEARS
from gears.pertdata import PertData

if TYPE_CHECKING:
    from anndata import AnnData

REAL = {
    "norman2019": ({"style": "auto"}, "simulation"),
    "mcfaline2023": ({"style": "auto", "pool_cell_types": True}, "simulation_single"),
    "papalexi2021": ({"style": "auto", "layer": "counts", "normalize": True}, "simulation_single"),
}
STYLES = {
    "gears": ("condition", "ctrl", "+"),
    "scperturb": ("perturbation", "control", "_"),
    "pertpy": ("perturbation_name", "control", "+"),
    "cell-load": ("target_gene", "non-targeting", "+"),
    "replogle": ("gene", "non-targeting", None),
}


def styled(adata: AnnData, style: str) -> AnnData:
    """The simulated screen with labels in a style."""
    key, control, sep = STYLES[style]
    genes = [[t for t in str(label).split("+") if t != "ctrl"] for label in adata.obs["condition"]]
    keep = np.array([sep is not None or len(own) < 2 for own in genes])
    labels = [control if not own else own[0] if len(own) == 1 else str(sep).join(own) for own in genes]
    if style == "gears":
        labels = [str(label) for label in adata.obs["condition"]]
    found = adata.copy()
    found.obs = pd.DataFrame({key: labels, "cell_type": "K562"}, index=adata.obs_names)
    return found[keep].copy()


def trained(data: PertData, split: str, epochs: int = 1) -> GEARS:
    """Split, train an epoch over moments, and score."""
    for mode in ("published", "strict"):
        data.prepare_split(split, seed=1, mode=mode)
        report = check_split(data.split, data.screen)
        assert report.ok, str(report)
    model = GEARS(data, device="cpu")
    model.model_initialize(hidden_size=16)
    result = model.train(epochs=epochs, objective="moments", verbose=False)
    assert len(result.history) == epochs
    table = model.evaluate("test")
    assert table is not None
    values = table.loc[(table["method"] == "gears") & (table["metric"] == "mse"), "value"]
    assert len(values)
    assert np.isfinite(values).all()
    predicted = model.predict(data.split.conditions("test")[:2])
    assert np.isfinite(predicted.expression_UG).all()
    return model


@pytest.mark.parametrize("style", STYLES)
def test_a_simulated_screen_in_every_style(style: str, small_screen_adata: AnnData, tmp_path: Path) -> None:
    data = PertData.from_adata(
        styled(small_screen_adata, style), data_path=tmp_path, default_pert_graph=False, verbose=False
    )
    assert data.screen.manifest["layout"]["style"] == style
    assert len(data.screen.control_cells) == 100
    trained(data, "simulation_single" if style == "replogle" else "simulation")


@pytest.mark.shared
@pytest.mark.parametrize("name", REAL)
def test_a_real_screen_from_file_to_score(name: str, shared: Path, tmp_path: Path) -> None:
    options, split = REAL[name]
    data = PertData(tmp_path, default_pert_graph=False)
    data.load(data_path=shared / "data" / f"{name}_subset.h5ad", **options)
    report = data.summary()
    assert report.facts["control_cells"] > 0
    json.dumps(report.to_dict())
    trained(data, split)
