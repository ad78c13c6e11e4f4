"""Baselines from a ridge regression of all training conditions: exact forms, and what unseen genes get."""

import numpy as np
import pytest

from gears.conditions import Condition
from gears.evaluation import comparison_table, make_baseline
from gears.evaluation.baselines import AdditiveRidge, ConditionMeans
from gears.evaluation.baselines._regression import PENALTIES, fit_ridge
from gears.graphs import GeneAnnotation, GeneEmbedding

LABELS = [
    "A+ctrl", "B+ctrl", "C+ctrl", "A+B", "A+C", "B+D", "D+E", "A+D+E", "B+C+F", "E+F", "F+ctrl", "A+F",
]  # fmt: skip
N_GENES = 7


def table(labels: list[str], seed: int = 0, noise: float = 0.3, **more) -> ConditionMeans:
    """Means of training conditions with additive effects and noise, and of the control."""
    draw = np.random.default_rng(seed)
    conditions = [Condition.of(label) for label in labels]
    effect = {gene: 0.5 + draw.normal(size=N_GENES) for gene in "ABCDEF"}
    delta_CG = np.array([sum(effect[gene] for gene in condition.genes) for condition in conditions])
    control_G = draw.uniform(2, 3, N_GENES)
    mean_CG = np.vstack([control_G, control_G + delta_CG + noise * draw.normal(size=delta_CG.shape)])
    names = tuple(f"G{gene}" for gene in range(N_GENES))
    return ConditionMeans(
        mean_CG,
        (Condition(), *conditions),
        np.arange(1, len(mean_CG)),
        **{"gene_names": names, "nonnegative": False} | more,
    )


def written_out(features_CJ, size_C, delta_CG, penalty) -> tuple[np.ndarray, np.ndarray]:
    """Common part and effects from the normal equations, the common part not penalised."""
    design = np.column_stack([size_C, features_CJ])
    penalties = penalty * np.diag([0.0] + [1.0] * features_CJ.shape[1])
    solution = np.linalg.solve(design.T @ design + penalties, design.T @ delta_CG)
    return solution[0], solution[1:]


def error_of_refits(features_CJ, size_C, delta_CG, penalty) -> float:
    """Mean squared error of each row in a fit without it."""
    errors = []
    for row in range(len(delta_CG)):
        kept = np.arange(len(delta_CG)) != row
        common_G, effect_JG = written_out(features_CJ[kept], size_C[kept], delta_CG[kept], penalty)
        predicted_G = size_C[row] * common_G + features_CJ[row] @ effect_JG
        errors.append(((delta_CG[row] - predicted_G) ** 2).mean())
    return float(np.mean(errors))


def members(means: ConditionMeans) -> np.ndarray:
    return np.array([[float(gene in condition.genes) for gene in "ABCDEF"] for condition in means.train])


@pytest.mark.parametrize("noise", [0.05, 0.7])
def test_the_penalty_has_the_least_error_of_refits_without_each_condition(noise):
    means = table(LABELS, noise=noise)
    member_CJ, delta_CG = members(means), means.mean_CG[1:] - means.mean_CG[0]
    size_C = member_CJ.sum(axis=1)
    found = fit_ridge(member_CJ @ member_CJ.T, size_C, delta_CG)
    candidates = PENALTIES * size_C.mean()
    errors = [error_of_refits(member_CJ, size_C, delta_CG, penalty) for penalty in candidates]
    assert found.error == pytest.approx(min(errors), rel=1e-9)
    assert found.penalty == pytest.approx(candidates[np.argmin(errors)])
    assert candidates[0] < found.penalty < candidates[-1]
    common_G, effect_JG = written_out(member_CJ, size_C, delta_CG, found.penalty)
    np.testing.assert_allclose(found.common_G, common_G, rtol=1e-9)
    np.testing.assert_allclose(member_CJ.T @ found.dual_CG, effect_JG, rtol=1e-9, atol=1e-12)


def test_predictions_add_common_parts_and_effects_and_an_unseen_gene_has_the_common_part():
    means = table(LABELS)
    member_CJ, delta_CG = members(means), means.mean_CG[1:] - means.mean_CG[0]
    size_C = member_CJ.sum(axis=1)
    penalty = fit_ridge(member_CJ @ member_CJ.T, size_C, delta_CG).penalty
    common_G, effect_JG = written_out(member_CJ, size_C, delta_CG, penalty)
    predicted = make_baseline("additive_ridge").fit_means(means).predict(["C+D", "A+nobody", "ctrl"])
    expected = [2 * common_G + effect_JG[2] + effect_JG[3], 2 * common_G + effect_JG[0], 0 * common_G]
    np.testing.assert_allclose(predicted, means.mean_CG[0] + expected, rtol=1e-9)


def test_an_unseen_gene_gets_the_effects_of_its_five_nearest_genes_by_go():
    annotation = GeneAnnotation.from_dict(
        {gene: {"s", *(f"{gene}{i}" for i in range(number))} for number, gene in enumerate("ABCDEF")}
        | {"unseen": {"s"}}
    )
    means = table(LABELS)
    baseline = make_baseline("additive_ridge_go", annotation=annotation).fit_means(means)
    weight_J = np.array([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 0])  # shared terms by terms of either
    expected_G = baseline.common_G + weight_J @ baseline.effect_JG / weight_J.sum()
    np.testing.assert_allclose(baseline.gene_delta("unseen"), expected_G, rtol=1e-9)
    np.testing.assert_array_equal(baseline.gene_delta("nobody"), baseline.common_G)
    plain = AdditiveRidge().fit_means(means)
    np.testing.assert_array_equal(baseline.gene_delta("A"), plain.gene_delta("A"))


def test_an_unseen_gene_gets_the_effects_of_genes_of_similar_co_expression():
    names = ("A", "B", "C", "unseen", "E", "constant", "F")
    profile_GK = np.array([[2.0, 0, 0], [0, 3, 0], [-1, -1, 0], [1, 1, 0], [4, 4, 0], [np.nan] * 3, [-1, 0, 1]])
    means = table(LABELS, gene_names=names, profiles=lambda: profile_GK)
    baseline = make_baseline("additive_ridge_coexpression").fit_means(means)
    weight_J = np.array([0.5**0.5, 0.5**0.5, 0, 0, 1, 0])  # D is not measured, C and F have negative cosines
    expected_G = baseline.common_G + weight_J @ baseline.effect_JG / weight_J.sum()
    np.testing.assert_allclose(baseline.gene_delta("unseen"), expected_G, rtol=1e-9)
    for gene in ("constant", "nobody"):
        np.testing.assert_array_equal(baseline.gene_delta(gene), baseline.common_G)


def test_embeddings_predict_the_effect_of_an_unseen_gene():
    draw = np.random.default_rng(4)
    names = [f"P{number:02d}" for number in range(25)]
    vectors = draw.normal(size=(25, 3)) + 10.0
    effects = (vectors - 10) @ draw.normal(size=(3, N_GENES))
    conditions = (Condition(), *(Condition((name,)) for name in names[:20]))
    mean_CG = np.vstack([np.zeros(N_GENES), 0.5 + effects[:20]])
    means = ConditionMeans(mean_CG, conditions, np.arange(1, 21), nonnegative=False)
    without_last = GeneEmbedding(tuple(names[:24]), vectors[:24])
    baseline = make_baseline("embedding_ridge", embedding=without_last).fit_means(means)
    np.testing.assert_allclose(baseline.predict(names[20:24]), 0.5 + effects[20:24], atol=2e-3)
    np.testing.assert_allclose(baseline.predict(names[:20]), 0.5 + effects[:20], atol=2e-3)
    np.testing.assert_allclose(baseline.predict(["P24"])[0], mean_CG[1:].mean(axis=0), atol=1e-9)


def test_the_effects_of_genes_without_an_embedding_are_not_used_for_others():
    means = table(LABELS)
    draw = np.random.default_rng(6)
    embedding = GeneEmbedding(("A", "B", "C", "D", "unseen"), draw.normal(size=(5, 2)))
    baseline = make_baseline("embedding_ridge", embedding=embedding).fit_means(means)
    vector_SD = embedding.values[:4] - embedding.values[:4].mean(axis=0)
    kernel_SS = vector_SD @ vector_SD.T
    ridge = fit_ridge(kernel_SS, np.ones(4), baseline.effect_JG[:4])
    centre_G, weight_DG = written_out(vector_SD, np.ones(4), baseline.effect_JG[:4], ridge.penalty)
    own_D = embedding.values[4] - embedding.values[:4].mean(axis=0)
    expected_G = baseline.common_G + centre_G + own_D @ weight_DG
    np.testing.assert_allclose(baseline.gene_delta("unseen"), expected_G, rtol=1e-9)


def test_embedding_ridge_is_in_the_table_where_there_are_embeddings(additive_screen, letters_embedding):
    screen, split = additive_screen
    predicted = np.tile(screen.statistics.mean[0], (2, 1))
    arguments = (predicted, ["E+ctrl", "A+E"], screen, split)

    def methods(**given) -> list[str]:
        return list(dict.fromkeys(comparison_table(*arguments, baselines=["additive"], **given)["method"]))

    assert methods() == ["model", "additive"]
    assert methods(embedding=letters_embedding) == ["model", "additive", "embedding_ridge"]
    baseline = make_baseline("embedding_ridge")
    with pytest.raises(ValueError, match="give embedding="):
        baseline.fit(screen, split)
    others = GeneEmbedding(("X", "Y"), np.eye(2))
    with pytest.raises(ValueError, match=r"none of 4 genes .* has an embedding"):
        make_baseline("embedding_ridge", embedding=others).fit(screen, split)
