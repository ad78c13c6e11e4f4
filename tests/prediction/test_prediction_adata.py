"""Predictions as AnnData: what stands where, and that scanpy and anndata take them as they are."""

import json

import anndata
import numpy as np
import pytest
from small_models import network_of

from gears import PertData

ASKED = ["ctrl", "GX00", "GX00+GX07", "GX06+GX07", "GX03"]


@pytest.fixture(scope="module")
def model(tmp_path_factory, toy_template, toy_go):
    data = PertData(tmp_path_factory.mktemp("adata"), gene2go=toy_go, default_pert_graph=False)
    data.new_data_process("toy", toy_template.copy())
    train = ["ctrl", "GX00+ctrl", "GX01+ctrl", "GX02+GX03"]
    data.prepare_split("custom", split_dict={"train": train, "val": ["GX04+ctrl"], "test": ["GX05+ctrl"]}, seed=4)
    return network_of(data, uncertainty=True)


@pytest.fixture
def adata(model):
    return model.predict(ASKED).to_adata()


def test_what_is_known_of_conditions_genes_and_model(adata, model):
    assert list(adata.obs_names) == ["ctrl", "GX00+ctrl", "GX00+GX07", "GX06+GX07", "GX03+ctrl"]
    assert adata.obs["genes"].tolist() == ["", "GX00", "GX00,GX07", "GX06,GX07", "GX03"]
    assert adata.obs["n_genes"].tolist() == [0, 1, 2, 2, 1]
    assert adata.obs["subgroup"].tolist() == [
        "ctrl", "seen_single", "combo_seen1", "combo_seen0", "seen_single",
    ]  # fmt: skip
    assert adata.obs["trained"].tolist() == [True, True, False, False, False]
    assert list(adata.var_names) == model.gene_list
    assert adata.var["gene_id"].tolist() == [f"ENS{i:03d}" for i in range(30)]
    np.testing.assert_array_equal(adata.layers["delta"], adata.X - adata.var["control_mean"].to_numpy())
    assert (adata.layers["cell_sd"] > 0).all()
    assert "sd" not in adata.layers, "the network says nothing of its mean"
    told = adata.uns["gears"]
    assert {"dataset": "toy", "split": "custom", "split_seed": 4, "clip": True}.items() <= told.items()
    assert told["screen_hash"] == model.pert_data.screen.content_hash
    json.dumps(told)


def test_scanpy_takes_them_and_they_join_the_means_of_the_screen_by_gene(adata, model):
    import scanpy as sc

    sc.pp.pca(adata, n_comps=2, layer="delta", svd_solver="full")
    assert adata.obsm["X_pca"].shape == (5, 2)
    groups = sc.get.aggregate(adata, by="subgroup", func="mean", layer="delta")
    row = list(groups.obs_names).index("seen_single")
    np.testing.assert_allclose(groups.layers["mean"][row], adata.layers["delta"][[1, 4]].mean(axis=0))
    frame = sc.get.obs_df(adata, keys=["subgroup", "GX05"], layer="delta")
    assert frame.loc["GX00+GX07", "subgroup"] == "combo_seen1"
    screen = model.pert_data.adata
    truth = sc.get.aggregate(screen, by="condition", func="mean")
    truth.X = truth.layers["mean"]
    truth.var_names = truth.var["gene_name"].astype(str)
    shuffled = truth[:, ::-1].copy()
    both = anndata.concat({"predicted": adata, "observed": shuffled}, label="kind", index_unique="-")
    assert list(both.var_names) == list(adata.var_names)
    observed = both["GX00+ctrl-observed"].X.ravel()
    np.testing.assert_allclose(observed, screen[screen.obs["condition"] == "GX00+ctrl"].to_df().mean(), rtol=1e-5)
