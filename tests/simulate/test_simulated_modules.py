"""Co-expression modules of simulated screens, and effects along them."""

import numpy as np
import pytest

from gears.evaluation.baselines import ConditionMeans, make_baseline
from gears.simulate import Simulation, SimulationOptions, Truth, simulated_screen

MODULES = {"n_genes": 200, "n_singles": 60, "n_pairs": 0, "n_modules": 6, "go_strength": 0.0}


def truth_with(**options) -> Truth:
    return Simulation(SimulationOptions(**MODULES | options)).truth


def control_correlations(adata) -> np.ndarray:
    """(G, G) correlations of genes over control cells, 0 on the diagonal."""
    correlation_GG = np.corrcoef(adata[adata.obs["condition"] == "ctrl"].X.toarray().T)
    np.fill_diagonal(correlation_GG, 0)
    return correlation_GG


@pytest.mark.parametrize("change", [-1.5, 1.5])
def test_effects_are_proportional_to_covariances_of_control_cells(change):
    adata, truth = simulated_screen(**MODULES, n_control=4000, cells_per_condition=2, target_effect=change)
    correlation_GG = control_correlations(adata)
    agreement = []
    for gene, effect_G in zip(truth.perturbed, truth.gene_effect_PG, strict=True):
        column = truth.genes.index(gene)
        rest = np.arange(len(truth.genes)) != column
        agreement.append(np.corrcoef(correlation_GG[column][rest], effect_G[rest])[0, 1])
    assert np.sign(change) * np.mean(agreement) > 0.7


def test_s_d_of_genes_over_cells():
    options = {"library_sd": 0.0, "dispersion": 0.0, "counts_per_gene": 1000.0, "baseline_sd": 0.0}
    sizes = {"n_genes": 200, "n_singles": 0, "n_pairs": 0, "n_control": 2000, "n_batches": 1}
    adata, _ = simulated_screen(**sizes, **options, n_modules=20, cell_sd=0.4)
    log_NG = np.log(adata.layers["counts"].toarray())
    assert log_NG.std(axis=0).mean() == pytest.approx(0.4, rel=0.1)


def test_share_of_variance_along_modules():
    rest, part, modules = (truth_with(module_share=share) for share in (0.0, 0.3, 1.0))
    mixed_PG = np.sqrt(0.7) * rest.gene_effect_PG + np.sqrt(0.3) * modules.gene_effect_PG
    targets = [rest.genes.index(gene) for gene in rest.perturbed]
    other = np.ones(mixed_PG.shape, dtype=bool)
    other[np.arange(len(targets)), targets] = False
    np.testing.assert_allclose(part.gene_effect_PG[other], mixed_PG[other])
    power = [(truth.gene_effect_PG[other] ** 2).mean() for truth in (rest, modules)]
    assert power[0] == pytest.approx(power[1], rel=0.25)
    assert power[0] == pytest.approx(0.15 * 0.7**2, rel=0.25)


def test_control_cells_predict_unseen_genes_and_go_does_not():
    adata, truth = simulated_screen(**MODULES, n_control=2000, cells_per_condition=40)
    X, condition_N = adata.X.toarray(), adata.obs["condition"].to_numpy()
    mean_CG = np.stack([X[condition_N == condition.name].mean(axis=0) for condition in truth.conditions])
    train, test = np.arange(1, 46), np.arange(46, 61)
    column = {gene: i for i, gene in enumerate(truth.genes)}
    profile_PG = control_correlations(adata)[[column[gene] for gene in truth.perturbed]]
    similarity_UT = np.corrcoef(profile_PG)[test - 1][:, train - 1]
    nearest_Uk = np.argsort(-similarity_UT, axis=1)[:, :3]
    means = ConditionMeans(mean_CG, truth.conditions, train, truth.genes)
    conditions = [truth.conditions[row] for row in test]
    predicted = {
        name: make_baseline(name).fit_means(means).predict(conditions) for name in ("train_mean", "go_knn")
    }
    predicted["neighbours over control cells"] = mean_CG[train][nearest_Uk].mean(axis=1)
    score = {
        name: np.mean(
            [
                np.corrcoef(row - mean_CG[0], mean_CG[i] - mean_CG[0])[0, 1]
                for row, i in zip(UG, test, strict=True)
            ]
        )
        for name, UG in predicted.items()
    }
    assert score["neighbours over control cells"] > max(score["train_mean"], score["go_knn"]) + 0.2
