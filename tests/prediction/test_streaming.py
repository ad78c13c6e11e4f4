"""Predictions in chunks: equal to predict, bounded in memory, complete files or none."""

import tracemalloc
from dataclasses import replace

import anndata
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from gears import GEARS
from gears.conditions import Condition
from gears.graphs import Graph
from gears.graphs._custom import Graphs
from gears.model._folder import ModelParts
from gears.model.config import ModelConfig
from gears.model.network import GEARSNetwork
from gears.prediction import _stream as stream
from gears.prediction._many import write_predictions
from gears.prediction.predictions import Predictions
from gears.priors import GenePrior, GeneSimilarity
from gears.priors._measured import Measured
from gears.priors._prior import Effects

PERTS = 40


def model_of(n_genes: int, *, uncertainty: bool = False, hidden_size: int = 8) -> GEARS:
    """A model with random weights and ring graphs, without a screen."""
    rng = np.random.default_rng(0)

    def ring(n: int, prefix: str) -> Graph:
        nodes = tuple(f"{prefix}{i:04d}" for i in range(n))
        edges = np.stack([np.arange(n), (np.arange(n) + 1) % n])
        return Graph(nodes, edges, np.full(n, 0.5))

    go, coexpress = ring(PERTS, "P"), ring(n_genes, "G")
    config, names = ModelConfig(hidden_size=hidden_size, uncertainty=uncertainty), coexpress.nodes
    parts = ModelParts(
        config, names, names, go.nodes, Graphs(lambda: go, lambda: coexpress), rng.uniform(0, 0.2, n_genes)
    )
    model = GEARS(None, device="cpu")
    model.parts = parts
    model.model = model.best_model = parts.network(seed=1)
    return model


@pytest.fixture(scope="module")
def model():
    return model_of(30)


@pytest.fixture(scope="module")
def genes(model):
    return model.pert_list[:9]


@pytest.mark.parametrize(("chunk", "values"), [(1, "delta"), (7, "expression"), (36, "delta"), (None, "delta")])
def test_frames_equal_predict(model, genes, chunk, values):
    frames = list(model.predict_all_pairs(genes, values=values, chunk=chunk))
    assert all(len(frame) <= (chunk or 36) for frame in frames)
    pairs = [Condition((a, b)) for i, a in enumerate(genes) for b in genes[i + 1 :]]
    expected = model.predict(pairs).to_frame(values)
    pd.testing.assert_frame_equal(pd.concat(frames), expected, check_exact=False, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("suffix", "uncertainty"), [(".h5ad", True), (".zarr", False)])
def test_files_hold_what_to_adata_holds(tmp_path, suffix, uncertainty):
    model = model_of(30, uncertainty=uncertainty)
    genes = model.pert_list[:9]
    path = tmp_path / f"pairs{suffix}"
    assert model.predict_to_file(model.pairs(genes), path, chunk=10) == path
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    read = anndata.read_h5ad(path) if suffix == ".h5ad" else anndata.read_zarr(path)
    expected = model.predict(list(stream.all_pairs(genes))).to_adata()
    assert set(read.layers) == set(expected.layers)
    assert read.X.dtype == np.float32
    np.testing.assert_allclose(read.X, expected.X, rtol=1e-5, atol=1e-6)
    for name in expected.layers:
        np.testing.assert_allclose(read.layers[name], expected.layers[name], rtol=1e-5, atol=1e-6)
    pd.testing.assert_frame_equal(read.obs, expected.obs, check_dtype=False, check_names=False)
    pd.testing.assert_frame_equal(read.var, expected.var, check_dtype=False, check_names=False)
    assert {name: str(value) for name, value in read.uns["gears"].items()} == {
        name: str(value) for name, value in expected.uns["gears"].items()
    }


def test_a_failure_leaves_the_old_file(model, genes, tmp_path):
    for suffix in (".h5ad", ".zarr"):
        path = tmp_path / f"pairs{suffix}"
        path.write_text("old")
        conditions = list(stream.all_pairs(genes))

        predictions = model.predict(conditions[:5])
        first_five = {"X": predictions.expression_UG, "layers/delta": predictions.delta_UG}

        def broken(first_five: dict[str, np.ndarray] = first_five) -> object:
            yield first_five
            msg = "no more"
            raise OSError(msg)

        with pytest.raises(OSError, match="no more"):
            write_predictions(path, conditions, model.parts, broken(), clip=True)
        with pytest.raises(RuntimeError, match="5 predictions came for 36"):
            write_predictions(path, conditions, model.parts, [first_five], clip=True)
        assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("largest", [True, False])
def test_ranking_keeps_the_best(model, genes, largest):
    seen = []

    def score(part: Predictions) -> np.ndarray:
        seen.extend(part.conditions)
        assert part.delta_UG.shape == part.expression_UG.shape == (len(part), 30)
        return part.delta_UG[:, 3]

    table = model.rank_pairs(score, genes, top=5, largest=largest, chunk=8)
    conditions = list(stream.all_pairs(genes))
    assert seen == conditions
    values = model.predict(conditions).delta_UG[:, 3]
    order = np.argsort(-values if largest else values, kind="stable")[:5]
    assert list(table["condition"]) == [conditions[i].name for i in order]
    assert list(table["rank"]) == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(table["score"], values[order], rtol=1e-5, atol=1e-6)
    assert list(table["gene_1"] + "+" + table["gene_2"]) == list(table["condition"])


def test_ranking_with_ties_nan_and_fewer_than_top(model, genes):
    def score(part: Predictions) -> list[float]:
        return [float("nan") if "P0000" in condition.genes else 1.0 for condition in part.conditions]

    kept = [c.name for c in stream.all_pairs(genes) if "P0000" not in c.genes]
    assert list(model.rank_pairs(score, genes, top=3, chunk=5)["condition"]) == kept[:3]
    assert len(model.rank_pairs(score, genes, chunk=5)) == len(kept)


def with_prior(model: GEARS, network_weight: float, measured: tuple[tuple[int, ...], ...] = ()) -> GEARS:
    """The model with a prior of random coefficients over all its nodes, which measured some conditions."""
    rng, n_genes = np.random.default_rng(3), len(model.parts.gene_names)
    similarity = GeneSimilarity(np.arange(PERTS), sparse.random(PERTS, PERTS, 0.3, "csr", random_state=4))
    level_G, shared_G, coefficient_TG = (rng.normal(size=size) for size in (n_genes, n_genes, (PERTS, n_genes)))
    prior = GenePrior(
        Effects(similarity, level_G, shared_G, 0.7, 0.3, coefficient_TG),
        np.full(PERTS, -1), np.zeros((1, n_genes)), np.zeros((1, n_genes)), network_weight=network_weight,
        measured=Measured(
            measured, rng.normal(size=(len(measured), n_genes)), np.ones(len(measured)), np.ones(len(measured)),
            np.ones(n_genes),
        ),
    )  # fmt: skip
    model.parts = replace(model.parts, prior=prior)
    return model


@pytest.mark.parametrize(("network_weight", "uncertainty"), [(0.0, False), (0.5, True)])
def test_all_ways_to_predict_add_the_network_to_the_prior(genes, tmp_path, uncertainty, network_weight):
    model = model_of(30, uncertainty=uncertainty)
    pairs = list(stream.all_pairs(genes))
    nodes = [[model.pert_list.index(gene) for gene in pair.genes] for pair in pairs]
    with_prior(model, network_weight, measured=(tuple(reversed(nodes[2])),))
    network_UG, cell_sd_UG, sd_UG, *_ = stream.predict_changes(model.best_model, nodes)
    assert sd_UG is None
    network_UG[2] = 0.0  # it was measured
    expected_UG = model.parts.prior(nodes) + network_weight * network_UG + model.parts.control_mean_G
    measured_G = model.parts.prior.measured.change_CG[0]
    np.testing.assert_allclose(expected_UG[2] - model.parts.control_mean_G, measured_G, atol=1e-12)
    predictions = model.predict(pairs, clip=False)
    np.testing.assert_allclose(predictions.expression_UG, expected_UG, rtol=1e-12, atol=1e-12)
    frame = pd.concat(model.predict_all_pairs(genes, clip=False, chunk=10))
    np.testing.assert_allclose(frame.to_numpy(), expected_UG, rtol=1e-5, atol=1e-6)
    read = anndata.read_h5ad(model.predict_to_file(pairs, tmp_path / "pairs.h5ad", clip=False, chunk=10))
    np.testing.assert_allclose(read.X, expected_UG, rtol=1e-5, atol=1e-6)
    best = model.rank_pairs(lambda part: part.expression_UG[:, 3], genes, top=1, clip=False)
    assert best["condition"].tolist() == [pairs[int(expected_UG[:, 3].argmax())].name]
    if uncertainty:
        np.testing.assert_allclose(predictions.cell_sd, cell_sd_UG, rtol=1e-6)
        np.testing.assert_allclose(read.layers["cell_sd"], cell_sd_UG, rtol=1e-5)


def test_a_network_of_weight_0_is_not_run(genes, tmp_path, monkeypatch):
    def run(*args: object) -> None:
        msg = "the network was run"
        raise AssertionError(msg)

    model = with_prior(model_of(30), 0.0)
    monkeypatch.setattr(GEARSNetwork, "prepared", run)
    monkeypatch.setattr(GEARSNetwork, "forward", run)
    pairs = list(stream.all_pairs(genes))
    assert len(model.predict(pairs)) == len(pairs)
    assert sum(map(len, model.predict_all_pairs(genes, chunk=7))) == len(pairs)
    assert model.predict_to_file(pairs, tmp_path / "pairs.h5ad").is_file()
    assert len(model.rank_pairs(lambda part: part.delta_UG[:, 0], genes, top=3)) == 3
    with_prior(model, 0.5)
    with pytest.raises(AssertionError, match="was run"):
        model.predict(pairs)


def test_wrong_requests_say_what_is_expected(model, genes, tmp_path):
    for message, call in (
        ("shape", lambda: model.rank_pairs(lambda part: part.delta_UG, genes)),
        ("at least two genes", lambda: model.predict_all_pairs(["P0001", "P0001"])),
        ("near: P000", lambda: model.predict_all_pairs(["P0001", "P00001"])),
        ("list of gene names", lambda: model.predict_all_pairs("P0001")),
        ("no training conditions", lambda: model.predict_all_pairs()),
        (r"\.h5ad", lambda: model.predict_to_file(model.pairs(genes), tmp_path / "pairs.csv")),
        ("chunk is 0", lambda: next(iter(model.predict_all_pairs(genes, chunk=0)))),
        ("top is 0", lambda: model.rank_pairs(lambda part: part.delta_UG[:, 0], genes, top=0)),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert not list(tmp_path.iterdir())


def test_earlier_names_warn(model, genes, tmp_path):
    def first(predictions: Predictions) -> np.ndarray:
        return predictions.delta_UG[:, 0]

    with pytest.warns(DeprecationWarning, match="rank_pairs"):
        former = model.screen(first, genes, top=3)
    pd.testing.assert_frame_equal(former, model.rank_pairs(first, genes, top=3))
    with pytest.warns(DeprecationWarning, match=r"predict_to_file\(model.pairs\(genes\), output\)"):
        path = model.predict_all_pairs(genes, tmp_path / "pairs.h5ad")
    assert anndata.read_h5ad(path).obs_names.tolist() == [pair.name for pair in model.pairs(genes)]


def test_memory_is_bounded_by_the_chunk(tmp_path):
    """190 pairs x 2,000 genes: 3 MB of float64 per kind of value, chunks of 16 hold 0.26 MB."""
    model = model_of(2000, hidden_size=4)
    chunk_bytes = 16 * 2000 * stream.BYTES_PER_VALUE

    def peak_of(work: object) -> int:
        tracemalloc.start()
        work()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    genes = model.pert_list[:20]
    model.rank_pairs(lambda part: part.delta_UG[:, 0], chunk=16, genes=genes[:3])  # imports
    peak = peak_of(lambda: model.rank_pairs(lambda part: part.delta_UG[:, 0], genes, chunk=16))
    assert peak < chunk_bytes + 1e6
    path = tmp_path / "pairs.h5ad"
    peak = peak_of(lambda: model.predict_to_file(model.pairs(genes), path, chunk=16))
    assert path.stat().st_size > 2 * 190 * 2000 * 4
    assert peak < chunk_bytes + 4e6


def test_chunks_on_several_devices_in_turn_are_those_of_one():
    model = model_of(30, uncertainty=True)
    network, parts = model._predictor()
    conditions = list(stream.all_pairs(parts.pert_names[:8]))
    expected = list(stream.stream(network, parts, conditions, chunk=5))
    for devices in (["cpu"], ["cpu"] * 3, ["cpu"] * 9):
        found = list(stream.stream(network, parts, iter(conditions), chunk=5, devices=devices))
        assert [one.conditions for one in found] == [one.conditions for one in expected]
        for one, other in zip(found, expected, strict=True):
            # several threads may add up float32 in another order
            np.testing.assert_allclose(one.expression_UG, other.expression_UG, rtol=0, atol=1e-6)


def test_ranking_computes_where_the_caller_says(model):
    def mean(predictions: Predictions) -> np.ndarray:
        return predictions.delta_UG.mean(1)

    genes = model.pert_list[:6]
    pd.testing.assert_frame_equal(model.rank_pairs(mean, genes, device="cpu"), model.rank_pairs(mean, genes))
    with pytest.raises(ValueError, match="gpu_ids=\\[7\\]"):
        model.rank_pairs(mean, genes, gpu_ids=[7])
    with pytest.raises(ValueError, match="gpu_ids=\\[7\\]"):
        model.predict_all_pairs(genes, gpu_ids=[7])
