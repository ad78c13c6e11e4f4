"""The simulator: layout, determinism, count distribution, effects, interactions, files."""

import dataclasses
import hashlib
import json
import logging
import random

import anndata
import numpy as np
import pytest
from scipy import sparse

from gears.files.formats import read_npz, write_npz
from gears.simulate import SimulatedTruth, Simulation, SimulationOptions, simulate_to_h5ad, simulated_screen

SMALL = {"n_genes": 40, "n_singles": 6, "n_pairs": 4, "cells_per_condition": 10, "n_control": 20}


def dense(adata):
    return adata.X.toarray().astype(np.float64)


def equal(left: sparse.csr_matrix, right: sparse.csr_matrix) -> bool:
    return left.shape == right.shape and (left != right).nnz == 0


def test_published_layout():
    assert simulated_screen(**SMALL, cell_number_sd=0.5)[0].obs["condition"].value_counts().nunique() > 3
    adata, truth = simulated_screen(**SMALL, n_triples=2, n_batches=3, cell_types=2)
    assert adata.shape == (20 + 12 * 10, 40)
    assert isinstance(adata.X, sparse.csr_matrix)
    assert adata.X.dtype == np.float32
    sizes = adata.obs["condition"].value_counts()
    assert sizes["ctrl"] == 20
    assert set(sizes.drop("ctrl")) == {10}
    assert set(sizes.index) == {condition.name for condition in truth.conditions}
    assert sorted(len(condition) for condition in truth.conditions) == [0] + [1] * 6 + [2] * 4 + [3] * 2
    assert set(adata.obs["cell_type"]) == {"cellA", "cellB"}
    assert set(adata.obs["batch"]) == {"batch1", "batch2", "batch3"}
    assert adata.var["gene_name"].tolist() == list(truth.genes)
    assert adata.obs_names.is_unique


def test_expression_is_log1p_of_normalised_counts():
    adata, _ = simulated_screen(**SMALL)
    counts = adata.layers["counts"].toarray()
    assert np.array_equal(counts, np.rint(counts))
    expected = np.log1p(counts / counts.sum(axis=1, keepdims=True) * 40)
    np.testing.assert_allclose(dense(adata), expected, rtol=1e-6)


def test_same_seed_same_screen_other_seed_other_screen():
    state = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    (one, truth_one), (two, truth_two) = simulated_screen(**SMALL), simulated_screen(**SMALL)
    assert state == (random.getstate(), np.random.get_state()[1].tolist())  # noqa: NPY002
    other, _ = simulated_screen(**SMALL, seed=1)
    assert equal(one.layers["counts"], two.layers["counts"])
    assert equal(one.X, two.X)
    assert one.obs.equals(two.obs)
    assert np.array_equal(truth_one.delta_CG, truth_two.delta_CG)
    assert not equal(one.layers["counts"], other.layers["counts"])
    assert set(one.var_names) != set(other.var_names)


@pytest.mark.parametrize(
    ("options", "digest"),
    [
        ({}, "a1d9c6c0fed838ad"),
        ({"n_triples": 2, "cell_types": 2, "n_batches": 3, "cell_number_sd": 0.5}, "d47ca1e0ef05ce0d"),
        ({"low_rank": 3, "target_effect": 0.0, "interaction_share": 1.0}, "50e081e8c6211def"),
        ({"go_strength": 0.3, "seed": 5}, "30cd163e21af3a01"),
    ],
)
def test_screens_of_earlier_versions_are_the_same(options, digest):
    adata, truth = simulated_screen(**SMALL | options)
    content = hashlib.sha256(adata.layers["counts"].toarray().tobytes())
    content.update(adata.obs.to_csv().encode())
    content.update(adata.var.to_csv().encode())
    content.update((np.round(truth.delta_CG, 6) + 0.0).tobytes())
    content.update(repr(sorted((c.name, kind) for c, kind in truth.interactions.items())).encode())
    assert content.hexdigest()[:16] == digest


@pytest.mark.parametrize(
    ("chunk_cells", "more"), [(1, {}), (256, {"n_modules": 3}), (257, {"network_degree": 4.0}), (10_000, {})]
)
def test_file_equals_memory(tmp_path, chunk_cells, more):
    options = SimulationOptions(n_genes=30, n_singles=6, n_pairs=3, n_control=300, seed=4, **more)
    adata, truth = simulated_screen(options)
    written = simulate_to_h5ad(tmp_path / "screen.h5ad", options, chunk_cells=chunk_cells)
    read = anndata.read_h5ad(tmp_path / "screen.h5ad")
    assert equal(read.X, adata.X)
    assert equal(read.layers["counts"], adata.layers["counts"])
    assert equal(read[::-1].X, adata.X[::-1])
    assert read.obs.equals(adata.obs)
    assert read.var.equals(adata.var)
    assert np.array_equal(written.delta_CG, truth.delta_CG)
    assert [path.name for path in tmp_path.iterdir()] == ["screen.h5ad"]


def test_counts_are_negative_binomial():
    """One cell type and batch, equal libraries: mean m and variance m + dispersion m^2 gene by gene."""
    control_only = {"n_genes": 100, "n_singles": 0, "n_pairs": 0, "n_control": 20_000}
    options = SimulationOptions(**control_only, n_batches=1, library_sd=0, dispersion=0.4)
    counts = Simulation(options).counts(0, 20_000).toarray().astype(np.float64)
    mean = counts.mean(axis=0)
    assert mean.sum() == pytest.approx(options.mean_library, rel=0.01)
    ratio = counts.var(axis=0) / (mean + 0.4 * mean**2)
    assert np.abs(ratio - 1).max() < 0.15
    assert abs(ratio.mean() - 1) < 0.01
    zeros = (1 + 0.4 * mean) ** (-1 / 0.4)
    np.testing.assert_allclose((counts == 0).mean(axis=0), zeros, atol=0.015)
    poisson = Simulation(dataclasses.replace(options, dispersion=0)).counts(0, 20_000).toarray()
    assert (poisson.var(axis=0) / poisson.mean(axis=0)).mean() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    "extra",
    [
        {"n_batches": 3, "batch_size_effect": 0.3, "cell_types": 2},
        {"n_modules": 8, "n_batches": 3, "batch_size_effect": 0.3},
        {"network_degree": 8.0},
        {"interaction_kinds": "saturating"},
    ],
)
def test_truth_is_the_expected_expression(extra):
    """Means over thousands of cells agree with the truth within their standard errors."""
    sizes = {"n_genes": 200, "n_singles": 3, "n_pairs": 1, "cells_per_condition": 6000, "n_control": 6000}
    share = {} if "network_degree" in extra else {"interaction_share": 1.0}
    adata, truth = simulated_screen(**sizes, **share, **extra)
    X = dense(adata)
    condition_N = adata.obs["condition"].to_numpy()
    for condition in truth.conditions:
        cells = X[condition_N == condition.name]
        error = (cells.mean(axis=0) - truth.mean(condition)) / (cells.std(axis=0) / np.sqrt(len(cells)))
        # 1.0 for an exact truth; the total's own noise, left out of the truth, adds a little.
        assert np.sqrt((error**2).mean()) < 1.6
        assert np.abs(cells.mean(axis=0) - truth.mean(condition)).max() < 0.05


def agreement_with_go(**options) -> float:
    """Correlation over pairs of perturbed genes of GO similarity with the similarity of effects."""
    screen = Simulation(SimulationOptions(n_genes=400, n_singles=60, n_pairs=0, target_effect=0.0, **options))
    truth = screen.truth
    upper = np.triu_indices(60, 1)
    return np.corrcoef(np.corrcoef(truth.gene_effect_PG)[upper], truth.go_similarity_PP[upper])[0, 1]


def test_effects_follow_go():
    assert agreement_with_go() > 0.7
    assert agreement_with_go(low_rank=20) > 0.4
    assert 0.1 < agreement_with_go(go_strength=0.5) < agreement_with_go()
    assert abs(agreement_with_go(go_strength=0.0)) < 0.1


def test_effect_scale_and_share():
    options = {"effect_size": 0.6, "effect_share": 0.2, "target_effect": 0}
    truth = Simulation(SimulationOptions(n_genes=2000, n_singles=50, **options)).truth
    responds_PG = truth.gene_effect_PG != 0
    assert responds_PG.mean() == pytest.approx(0.2, abs=0.02)
    size_P = np.sqrt((truth.gene_effect_PG**2).sum(axis=1) / responds_PG.sum(axis=1))
    assert np.log(size_P).std() == pytest.approx(0.25, rel=0.2)
    # strengths are lognormal: the root mean square is exp(s.d.^2) times the median
    rms = np.sqrt((truth.gene_effect_PG[responds_PG] ** 2).mean())
    assert rms == pytest.approx(0.6 * np.exp(0.25**2), rel=0.05)


@pytest.mark.parametrize("kinds", ["synergy-suppression", "masking", "saturating"])
def test_a_target_responds_to_its_own_perturbation_whatever_the_kind(kinds):
    options = SimulationOptions(**SMALL, interaction_share=1.0, effect_size=0.0, interaction_kinds=kinds)
    truth = Simulation(options).truth
    for condition in truth.conditions[1:]:
        at = [truth.genes.index(gene) for gene in condition.genes]
        assert truth.effect_CG[truth.index(condition)][at].tolist() == [-1.5] * len(condition)
        assert np.count_nonzero(truth.effect_CG[truth.index(condition)]) == len(condition)


def test_null_perturbations_change_nothing():
    truth = Simulation(SimulationOptions(**SMALL | {"n_singles": 20, "n_pairs": 40}, null_share=0.4)).truth
    has_effect = truth.gene_effect_PG.any(axis=1)
    assert has_effect.sum() == 12
    active = {gene for gene, one in zip(truth.perturbed, has_effect, strict=True) if one}
    for condition in truth.conditions:
        assert truth.delta(condition).any() == bool(active & set(condition.genes))
    several = {c: kind for c, kind in truth.interactions.items() if len(active & set(c.genes)) > 1}
    assert {kind for c, kind in truth.interactions.items() if c not in several} == {"additive"}
    n_interacting = sum(kind != "additive" for kind in several.values())
    assert n_interacting == round(0.4 * len(several))


CONFOUNDED = {"n_batches": 3, "batch_size_effect": 0.5, "interaction_share": 0.0}


def test_confounded_batches():
    sizes = SMALL | CONFOUNDED | {"n_singles": 20, "n_control": 60, "cells_per_condition": 30}
    obs = simulated_screen(**sizes, batch_confounding=1.0)[0].obs
    control = obs["condition"] == "ctrl"
    assert set(obs["batch"][control]) == {"batch1", "batch2", "batch3"}
    of_condition = obs[~control].groupby("condition", observed=True)["batch"].agg(set)
    assert set(map(len, of_condition)) == {1}
    assert of_condition.map(min).value_counts().tolist() == [8, 8, 8]
    half = simulated_screen(**sizes, batch_confounding=0.5)[0].obs
    by_condition = half[~control].groupby("condition", observed=True)["batch"]
    own = by_condition.agg(lambda batches: batches.value_counts().max() / 30)
    assert own.mean() == pytest.approx(0.5 + 0.5 / 3, abs=0.08)
    assert half.drop(columns="batch").equals(simulated_screen(**sizes)[0].obs.drop(columns="batch"))


def test_truth_access_and_file(tmp_path, small_screen_truth):
    truth = small_screen_truth
    pair = next(condition for condition in truth.conditions if len(condition) == 2)
    assert np.array_equal(truth.delta(pair), truth.delta(pair.genes[::-1]))
    assert np.array_equal(truth.delta(pair), truth.delta(f"{pair.genes[1]}+{pair.genes[0]}"))
    assert not truth.delta("ctrl").any()
    assert np.array_equal(truth.to_frame().loc[pair.name].to_numpy(), truth.delta(pair))
    with pytest.raises(KeyError, match="unknown condition"):
        truth.delta("NOPE+ctrl")
    back = SimulatedTruth.load(truth.save(tmp_path / "truth.npz"))
    assert back.options == truth.options
    assert back.conditions == truth.conditions
    assert back.interactions == truth.interactions
    assert back.genes == truth.genes
    assert np.array_equal(back.delta_CG, truth.delta_CG)


def test_truth_of_an_earlier_version_is_read(tmp_path, small_screen_truth):
    arrays = read_npz(small_screen_truth.save(tmp_path / "truth.npz"))
    options = json.loads(str(arrays["options"]))
    for name in ("interaction_kinds", "null_share", "n_modules", "module_share", "network_degree", "cell_sd"):
        del options[name]
    del options["batch_confounding"]
    write_npz(tmp_path / "earlier.npz", arrays | {"options": np.array(json.dumps(options))})
    assert SimulatedTruth.load(tmp_path / "earlier.npz").options == small_screen_truth.options


def test_options_without_effect_are_reported(caplog):
    with caplog.at_level(logging.WARNING, "gears"):
        Simulation(SimulationOptions(**SMALL, module_share=0.5))
        Simulation(SimulationOptions(**SMALL, network_degree=2.0, go_strength=0.5, cell_sd=0.2))
    assert [record.getMessage() for record in caplog.records] == [
        "module_share=0.5 has no effect without n_modules of at least 1",
        "go_strength=0.5 has no effect without network_degree=0",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_modules": 2, "network_degree": 3.0}, "either modules or a network; set one of them to 0"),
        ({"interaction_kinds": "maskin"}, "did you mean 'masking'"),
        ({"n_pairs": 11, "n_singles": 5}, "only 10 sets of 2 genes"),
        ({"n_triples": 2, "n_singles": 3, "n_pairs": 0}, "only 1 sets of 3 genes"),
        ({"n_genes": 5, "n_singles": 6, "n_pairs": 0}, "are to be measured, but n_genes=5"),
        ({"go_strength": 1.5}, "expected a number from 0 to 1"),
        ({"n_control": 0}, "expected a whole number of at least 1"),
        ({"n_control": 2.5}, "expected a whole number"),
        ({"effect_size": float("nan")}, "effect_size is nan"),
        ({"low_rank": 0}, "low_rank is 0"),
        ({"gene_names": ["A", "A", "B"]}, "must be unique"),
        ({"gene_names": ["A", "B"], "n_genes": 3}, "gene_names holds 2"),
        ({"n_genes": 30_000}, "only 20692 annotated genes"),
        ({"n_single": 3}, "did you mean 'n_singles'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        simulated_screen(**options)


def test_options_can_be_changed_by_name():
    base = SimulationOptions(**SMALL)
    assert SimulationOptions.of(base, {"seed": np.int64(5)}) == dataclasses.replace(base, seed=5)
    assert SimulationOptions.of(base, {"gene_names": ["A", "B"], "n_singles": 2, "n_pairs": 1}).genes == 2


NETWORK = SimulationOptions(n_genes=300, n_singles=60, n_pairs=80, network_degree=12.0)


@pytest.fixture(scope="module")
def network_truth():
    return Simulation(NETWORK).truth


def spread(found) -> np.ndarray:
    """(P, G) effects of single genes, without the perturbed gene itself."""
    effect_PG = found.gene_effect_PG.copy()
    effect_PG[np.arange(len(found.perturbed)), [found.genes.index(gene) for gene in found.perturbed]] = 0
    return effect_PG


def test_perturbed_genes_are_held_and_weak_regulation_is_not_passed_on(network_truth):
    for condition in network_truth.conditions[1:]:
        targets = [network_truth.genes.index(gene) for gene in condition.genes]
        assert network_truth.effect_CG[network_truth.index(condition)][targets].tolist() == [-1.5] * len(condition)
    effect_PG = spread(network_truth)
    assert 0.1 < (effect_PG == 0).mean() < 0.9
    assert np.abs(effect_PG).max() < 2 * NETWORK.effect_size
    weak = Simulation(SimulationOptions.of(NETWORK, {"target_effect": -0.05})).truth
    assert not spread(weak).any()


def test_pairs_depart_from_additivity_as_labelled(network_truth):
    single = dict(zip(network_truth.perturbed, network_truth.gene_effect_PG, strict=True))
    for pair, kind in network_truth.interactions.items():
        other = np.array([gene not in pair.genes for gene in network_truth.genes])
        total_G = sum(single[gene] for gene in pair.genes)[other]
        effect_G = network_truth.effect_CG[network_truth.index(pair)][other]
        size, departure = np.linalg.norm(total_G), np.linalg.norm(effect_G - total_G)
        larger = "synergy" if np.linalg.norm(effect_G) > size else "suppression"
        assert kind == ("additive" if departure <= 0.2 * size else larger)
    assert set(network_truth.interactions.values()) == {"additive", "synergy", "suppression"}


def agreement(truth: SimulatedTruth, alike_GG: np.ndarray) -> float:
    """Mean correlation of each effect with the perturbed gene's row of a table, without the gene itself."""
    column_P = [truth.genes.index(gene) for gene in truth.perturbed]
    rows = zip(alike_GG[column_P], truth.gene_effect_PG, column_P, strict=True)
    return np.mean([np.corrcoef(np.delete(a, gene), np.delete(b, gene))[0, 1] for a, b, gene in rows])


def test_co_expression_carries_some_of_the_effects():
    adata, truth = simulated_screen(NETWORK, n_control=4000, cells_per_condition=1, n_pairs=0)
    covariance_GG = np.cov(adata[adata.obs["condition"] == "ctrl"].X.toarray().T)
    assert 0.1 < -agreement(truth, covariance_GG) < 0.7


MODULES = {"n_genes": 200, "n_singles": 60, "n_pairs": 0, "n_modules": 6, "go_strength": 0.0}


@pytest.mark.parametrize("change", [-1.5, 1.5])
def test_effects_are_proportional_to_covariances_of_control_cells(change):
    adata, truth = simulated_screen(**MODULES, n_control=4000, cells_per_condition=2, target_effect=change)
    correlation_GG = np.corrcoef(adata[adata.obs["condition"] == "ctrl"].X.toarray().T)
    assert np.sign(change) * agreement(truth, correlation_GG) > 0.7


def test_s_d_of_genes_over_cells():
    options = {"library_sd": 0.0, "dispersion": 0.0, "counts_per_gene": 1000.0, "baseline_sd": 0.0}
    sizes = {"n_genes": 200, "n_singles": 0, "n_pairs": 0, "n_control": 2000, "n_batches": 1}
    adata, _ = simulated_screen(**sizes, **options, n_modules=20, cell_sd=0.4)
    log_NG = np.log(adata.layers["counts"].toarray())
    assert log_NG.std(axis=0).mean() == pytest.approx(0.4, rel=0.1)


SIZES = {"n_genes": 120, "n_singles": 10, "n_pairs": 20, "n_triples": 10}


def truth_with(kind: str, **options) -> SimulatedTruth:
    return Simulation(SimulationOptions(**SIZES | options, interaction_kinds=kind)).truth


def single_effects(truth: SimulatedTruth, condition) -> np.ndarray:
    """(members, G) effects on genes that the condition does not perturb."""
    row = {gene: i for i, gene in enumerate(truth.perturbed)}
    return truth.gene_effect_PG[[row[gene] for gene in condition.genes]][:, others(truth, condition)]


def others(truth: SimulatedTruth, condition) -> np.ndarray:
    return np.array([gene not in condition.genes for gene in truth.genes])


@pytest.mark.parametrize("kind", ["masking", "saturating", "products", "synergy-suppression"])
def test_share_of_the_kind_and_additive_rest(kind):
    truth = truth_with(kind, interaction_share=0.6, interaction_size=0.5)
    kinds, names = list(truth.interactions.values()), kind.split("-")
    assert [kinds.count(name) for name in ("additive", *names)] == [12, *(18 // len(names) for _ in names)]
    factor = {"additive": 1.0, "synergy": 1.5, "suppression": 1 / 1.5}
    for condition, name in truth.interactions.items():
        if name in factor:
            total_G = factor[name] * single_effects(truth, condition).sum(axis=0)
            effect_G = truth.effect_CG[truth.index(condition)][others(truth, condition)]
            np.testing.assert_allclose(effect_G, total_G, atol=1e-12)


def test_masking_shows_the_strongest_gene_alone():
    truth = truth_with("masking", interaction_share=1.0)
    row = {gene: i for i, gene in enumerate(truth.perturbed)}
    column = {gene: i for i, gene in enumerate(truth.genes)}
    spread_PG = truth.gene_effect_PG.copy()
    spread_PG[np.arange(10), [column[gene] for gene in truth.perturbed]] = 0
    strength_P = np.linalg.norm(spread_PG, axis=1)
    for condition in truth.interactions:
        strongest = max(condition.genes, key=lambda gene: strength_P[row[gene]])
        effect_G = truth.effect_CG[truth.index(condition)][others(truth, condition)]
        np.testing.assert_allclose(effect_G, spread_PG[row[strongest]][others(truth, condition)])


def test_saturating_effects_level_off():
    options = {"interaction_share": 1.0, "interaction_size": 2.0, "effect_size": 0.8}
    truth = truth_with("saturating", **options)
    plain = truth_with("masking", **options)
    for condition in truth.conditions[1:]:
        effect_G = truth.effect_CG[truth.index(condition)][others(truth, condition)]
        total_G = single_effects(plain, condition).sum(axis=0)
        np.testing.assert_allclose(effect_G, 0.4 * np.tanh(total_G / 0.4), atol=1e-12)
    without = truth_with("saturating", interaction_share=1.0, interaction_size=0.0)
    for condition in without.interactions:
        effect_G = without.effect_CG[without.index(condition)][others(without, condition)]
        np.testing.assert_allclose(effect_G, single_effects(without, condition).sum(axis=0), atol=1e-12)


def test_products_are_no_sums_and_have_few_directions():
    truth = truth_with("products", interaction_share=1.0, n_pairs=40, n_triples=0, target_effect=0.0)
    rows = [truth.index(pair) for pair in truth.interactions]
    effect_CG = truth.effect_CG[rows]
    assert np.linalg.matrix_rank(effect_CG) == 2
    # two scores of each gene explain every pair; a sum over genes explains little
    members_CP = np.array([[gene in pair.genes for gene in truth.perturbed] for pair in truth.interactions], float)
    fitted_CG = members_CP @ np.linalg.lstsq(members_CP, effect_CG, rcond=None)[0]
    assert ((effect_CG - fitted_CG) ** 2).sum() > 0.5 * (effect_CG**2).sum()
    larger = truth_with(
        "products", interaction_share=1.0, n_pairs=40, n_triples=0, interaction_size=1.6, target_effect=0.0
    )
    np.testing.assert_allclose(larger.effect_CG[rows], 2 * effect_CG)
