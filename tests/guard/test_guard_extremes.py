"""Screens at the edge of what there can be: prepared, trained, predicted and evaluated, or a clear error."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from driving import gears_of, pert_data_of, trained_gears
from readers import GENES
from scipy import sparse

GO = {gene: {f"T{i % 7}", f"T{i % 5}"} for i, gene in enumerate(GENES)}
TEN = [f"{gene}+ctrl" for gene in GENES[:10]]


def screen(labels: list[str], n_each=10, n_control=40, n_genes=30, *, zero=0, constant=0) -> AnnData:
    """Poisson counts; some cells without any, some genes with one value everywhere."""
    rng = np.random.default_rng(3)
    cells = ["ctrl"] * n_control + [label for label in labels for _ in range(n_each)]
    values_NG = np.log1p(rng.poisson(rng.uniform(0.5, 4, n_genes), (len(cells), n_genes))).astype(np.float32)
    values_NG[rng.choice(len(cells), zero, replace=False)] = 0
    values_NG[:, :constant] = 1.25
    names = [f"GX{i:02d}" for i in range(n_genes)]
    return AnnData(
        sparse.csr_matrix(values_NG),
        obs=pd.DataFrame({"condition": cells, "cell_type": "A"}, index=[f"c{i}" for i in range(len(cells))]),
        var=pd.DataFrame({"gene_name": names}, index=[f"E{i}" for i in range(n_genes)]),
    )


def parts(*names: str) -> dict[str, list[str]]:
    return dict(zip(("train", "val", "test"), ([name] for name in names), strict=True))


CASES: dict[str, tuple[AnnData, dict[str, Any], dict[str, Any]]] = {
    "a condition for each part": (screen(TEN[:3]), {"split": "custom", "split_dict": parts(*TEN[:3])}, {}),
    "a cell per condition": (screen(TEN, n_each=1), {"split": "simulation"}, {"skip_calc_de": True}),
    "a control cell": (screen(TEN, n_control=1), {"split": "simulation"}, {"skip_calc_de": True}),
    "constant genes only": (screen(TEN, constant=30), {"split": "simulation"}, {}),
    "cells without counts": (screen(TEN, zero=60), {"split": "simulation"}, {}),
    "one gene measured": (screen(TEN, n_genes=1), {"split": "simulation"}, {}),
}  # fmt: skip


def all_the_way(folder: Path, adata: AnnData, split: dict[str, Any], options: dict[str, Any]) -> None:
    data = pert_data_of(folder, adata, "edge", gene2go=GO, **options)
    data.prepare_split(**split, seed=1)
    data.get_dataloader(batch_size=4)
    model = gears_of(data, hidden_size=4)
    for options in ({"objective": "cells", "prior": None}, {"objective": "moments"}):
        model.train(steps=2, verbose=False, evaluate_test=False, **options)
        found = model.predict([["GX00"], ["GX00", "GX09"]])
        assert np.isfinite(found.expression_UG).all()
    table = model.evaluate(n_split_half=1)
    assert len(table)
    for metric in ("mse", "mae"):
        assert np.isfinite(table.loc[table["metric"] == metric, "value"]).all()


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", CASES)
def test_screens_at_the_edge(name, tmp_path):
    all_the_way(tmp_path, *CASES[name])


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("default")
def test_twenty_thousand_genes(tmp_path):
    adata = screen(TEN, n_each=4, n_control=20, n_genes=20_000)
    all_the_way(tmp_path, adata, {"split": "simulation"}, {})


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("prior", [None, "auto"], ids=["network alone", "with the prior"])
def test_ten_thousand_conditions(prior, tmp_path):
    names = [f"GX{i:02d}" for i in range(150)]
    labels = [f"{a}+{b}" for i, a in enumerate(names) for b in names[i + 1 :]][:9900]
    labels += [f"{name}+ctrl" for name in names]
    adata = screen(labels, n_each=2, n_genes=150)
    data = pert_data_of(
        tmp_path, adata, "edge", gene2go={gene: {f"T{i % 7}", f"T{i % 5}"} for i, gene in enumerate(names)}
    )
    assert len(data.screen.conditions) == 10_051
    data.prepare_split("simulation", seed=1)
    data.get_dataloader(batch_size=512)
    model = trained_gears(data, hidden_size=4, steps=2, prior=prior)
    assert np.isfinite(model.predict(data.screen.labels[1:300]).expression_UG).all()
