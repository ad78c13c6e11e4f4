"""The prior's sd of means on its way to users: predictions, frames, AnnData, files, saved models, ensembles."""

import copy
from dataclasses import replace

import anndata
import numpy as np
import pandas as pd
import pytest
from driving import pert_data_of
from small_models import trained_on

from gears import GEARS
from gears.jobs.ensemble import Ensemble
from gears.simulate import simulated_screen


@pytest.fixture(scope="module")
def pert_data(tmp_path_factory):
    adata, _ = simulated_screen(n_genes=40, n_singles=14, n_pairs=10, cells_per_condition=15, n_control=60, seed=2)
    return pert_data_of(tmp_path_factory.mktemp("sd"), adata, split="simulation")


@pytest.fixture(scope="module")
def model(pert_data):
    return trained_on(pert_data)


@pytest.fixture(scope="module")
def asked(pert_data):
    genes = list(pert_data.screen.perturbed_genes)
    return [genes[0], f"{genes[1]}+{genes[2]}", "ctrl", f"{genes[0]}+{genes[5]}"]


def weighted(model: GEARS, network_weight: float) -> GEARS:
    """The model with another weight of its network."""
    other = copy.copy(model)
    other.parts = replace(model.parts, prior=replace(model.parts.prior, network_weight=network_weight))
    return other


def test_it_is_the_prior_s(model, asked):
    predictions = model.predict(asked, clip=False)
    assert predictions.sd.shape == predictions.expression_UG.shape
    index = {name: node for node, name in enumerate(model.pert_list)}
    nodes = [[index[gene] for gene in condition.genes] for condition in predictions.conditions]
    expected_UG = model.parts.prior.sd(nodes, model.parts.prior(nodes))
    np.testing.assert_allclose(predictions.sd, expected_UG)
    assert (predictions.sd[[0, 1, 3]] > 0).all()
    assert not predictions.sd[2].any(), "the control is known"
    assert predictions.cell_sd is None


def test_intervals_of_every_level(model, asked, tmp_path):
    predictions = model.predict(asked)
    low_UG, high_UG = predictions.interval()
    np.testing.assert_allclose((high_UG - low_UG) / 2, 1.6449 * predictions.sd_change, rtol=1e-3)
    np.testing.assert_allclose((high_UG + low_UG) / 2, predictions.delta_UG, atol=1e-12)
    halves = [np.subtract(*predictions.interval(level)[::-1]) for level in (0.3, 0.5, 0.9, 0.95, 0.97, 0.99, 0.999)]
    assert (np.diff(halves, axis=0)[:, [0, 1, 3]] > 0).all()
    assert not np.array(halves)[:, 2].any(), "the control is known"
    low_UG, high_UG = predictions.interval(0.99, "expression")
    assert low_UG.min() >= 0
    assert ((predictions.expression_UG >= low_UG) & (predictions.expression_UG <= high_UG)).all()
    top = predictions.top(1)
    at = [predictions.gene_names.index(gene) for gene in top["gene"]]
    for name, bound_UG in zip(("low", "high"), predictions.interval(0.95), strict=True):
        np.testing.assert_allclose(top[name], bound_UG[np.arange(len(asked)), at])
    model.save_model(tmp_path / "model")
    again = GEARS.from_pretrained(tmp_path / "model").predict(asked)
    np.testing.assert_allclose(again.interval(0.99), predictions.interval(0.99))
    with pytest.raises(ValueError, match="level is 90"):
        predictions.interval(90)


@pytest.mark.parametrize("network_weight", [0.0, 0.4])
def test_every_way_to_predict_has_it(model, asked, tmp_path, network_weight):
    model = weighted(model, network_weight)
    predictions = model.predict(asked, chunk=1)
    np.testing.assert_allclose(predictions.sd, model.predict(asked, chunk=4).sd, rtol=1e-5)
    np.testing.assert_array_equal(predictions.to_adata().layers["sd"], predictions.sd)
    for name in ("some.h5ad", "some.zarr"):
        path = model.predict_to_file(asked, tmp_path / name, chunk=2)
        read = anndata.read_h5ad(path) if path.suffix == ".h5ad" else anndata.read_zarr(path)
        assert set(read.layers) - {None} == {"delta", "sd", "sd_change", "p_changed"}
        np.testing.assert_allclose(read.layers["sd"], predictions.sd, rtol=1e-5)
        np.testing.assert_allclose(read.obsm["interval_widths"], predictions.width_UL, rtol=1e-5)
    genes = [condition.genes[0] for condition in predictions.conditions[:2]]
    pairs = pd.concat(model.predict_all_pairs(genes, values="sd"))
    np.testing.assert_allclose(pairs.to_numpy(), model.predict(["+".join(genes)]).sd, rtol=1e-5)


def test_an_ensemble_adds_the_spread_of_its_members(model, pert_data, asked):
    rng = np.random.default_rng(0)
    members = []
    for _ in range(3):
        prior = model.parts.prior
        other = copy.copy(model)
        offset_G = prior.overall.offset_G + 0.1 * rng.standard_normal(prior.n_genes)
        shifted = replace(prior, overall=replace(prior.overall, offset_G=offset_G))
        other.parts = replace(model.parts, prior=shifted)
        members.append(other)
    predicted = Ensemble(members).predict(asked, clip=False)
    each = [member.predict(asked, clip=False) for member in members]
    spread_UG = np.std([one.expression_UG for one in each], axis=0, ddof=1)
    assert spread_UG[1].max() > 0.05
    assert spread_UG[0].max() < 1e-9, "all members have the same measurement"
    variance_UG = np.mean([one.sd**2 for one in each], axis=0) + spread_UG**2
    np.testing.assert_allclose(predicted.sd, np.sqrt(variance_UG))
    np.testing.assert_allclose(predicted.spread_UG, spread_UG)
    networks = [trained_on(pert_data, seed, prior=None, steps=1, epochs=None) for seed in (1, 2)]
    alone = Ensemble(networks).predict(asked)
    assert networks[0].predict(asked).sd is None
    np.testing.assert_array_equal(alone.sd, alone.spread_UG)
    np.testing.assert_array_equal(alone.to_adata().layers["sd"], alone.spread_UG)


def test_contexts_have_it(tmp_path):
    adata, _ = simulated_screen(
        n_genes=30, n_singles=8, n_pairs=0, cells_per_condition=40, n_control=90, cell_types=3, seed=4
    )
    data = pert_data_of(tmp_path, adata, context_key="cell_type", split="simulation_single")
    model = trained_on(data)
    gene = data.screen.perturbed_genes[0]
    predictions = model.predict([gene])
    assert len(predictions) == 3
    assert (predictions.sd > 0).all()
    model.save_model(tmp_path / "model")
    loaded = GEARS.from_pretrained(tmp_path / "model", device="cpu")
    np.testing.assert_array_equal(loaded.predict([gene]).sd, predictions.sd)
