"""Each baseline on means that are simulated exactly as it assumes, and on simulated cells."""

import numpy as np
import pytest

from gears.conditions import Condition
from gears.evaluation import BASELINES, make_baseline
from gears.evaluation.baselines import ConditionMeans, GOKnn, GORidge
from gears.graphs import GeneAnnotation
from gears.graphs._profiles import correlation_profiles

GENES = [f"P{i:02d}" for i in range(12)]
PAIRS = [(0, 1), (2, 3), (4, 5), (0, 11)]


def labels() -> list[str]:
    return ["ctrl", *(f"{gene}+ctrl" for gene in GENES), *(f"{GENES[a]}+{GENES[b]}" for a, b in PAIRS)]


def means_of(control: np.ndarray, single: np.ndarray, pair) -> np.ndarray:
    """(C, G) means: the control, singles, and pairs from the two singles' deltas."""
    pairs = [pair(single[a], single[b]) for a, b in PAIRS]
    return np.vstack([control, control + single, control + np.array(pairs)])


def table_of(means: np.ndarray, names: list[str], train: list[int], **more) -> ConditionMeans:
    return ConditionMeans(means, tuple(map(Condition.of, names)), np.asarray(train), **more)


def check(name_or_baseline, means: np.ndarray, train: list[int], held_out: list[int], **arguments) -> None:
    names = labels()
    baseline = make_baseline(name_or_baseline, clip=False) if isinstance(name_or_baseline, str) else name_or_baseline
    baseline.fit_means(table_of(means, names, train, **arguments))
    predicted = baseline.predict([names[row] for row in held_out])
    np.testing.assert_allclose(predicted, means[held_out], rtol=1e-7, atol=1e-9)


def random_effects(seed: int = 0, n_genes: int = 30) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.uniform(1, 3, n_genes), rng.normal(0, 0.3, (len(GENES), n_genes))


SINGLES, ALL_PAIRS = list(range(1, 13)), [13, 14, 15, 16]


def test_additive_where_effects_add_and_no_change_where_nothing_happens():
    control, effects = random_effects()
    means = means_of(control, effects, np.add)
    check("additive", means, SINGLES, ALL_PAIRS)
    check("additive_all_singles", means, SINGLES[:3], ALL_PAIRS)
    check("no_change", means_of(control, 0 * effects, np.add), SINGLES[:6], SINGLES[6:] + ALL_PAIRS)


def go_terms(seed: int) -> tuple[GeneAnnotation, np.ndarray]:
    """Genes P00.. of three groups: terms of the group and of nothing else."""
    group = np.arange(len(GENES)) % 3
    terms = [{"t0", "t1"}, {"t1", "t2", "t3"}, {"t4"}]
    return GeneAnnotation.from_dict({g: terms[k] for g, k in zip(GENES, group, strict=True)}), group


def test_go_neighbours_where_genes_of_equal_terms_answer_equally():
    annotation, group = go_terms(0)
    control, effects = random_effects()
    means = means_of(control, effects[group], np.add)
    held_out = [*SINGLES[6:], *ALL_PAIRS]
    check(GOKnn(k=1, annotation=annotation, clip=False), means, SINGLES[:6], held_out)
    check(GOKnn(k=2, annotation=annotation, clip=False), means, SINGLES[:6], held_out)
    check(GORidge(ridge=1e-12, annotation=annotation, clip=False), means, SINGLES[:6], held_out)


def test_go_ridge_equals_a_regression_on_principal_components_written_out():
    rng = np.random.default_rng(5)
    annotation = GeneAnnotation.from_dict({gene: {f"t{i}" for i in rng.choice(20, 6, replace=False)} for gene in GENES})
    control, effects = random_effects(2)
    baseline = GORidge(n_components=3, ridge=0.2, annotation=annotation, clip=False)
    baseline.fit_means(table_of(means_of(control, effects, np.add), labels(), SINGLES[:8]))
    rows = annotation.rows(GENES).toarray().astype(float)
    centre = rows[:8].mean(axis=0)
    _, size, right = np.linalg.svd(rows[:8] - centre, full_matrices=False)
    scores = (rows - centre) @ right[:3].T
    inner = scores[:8].T @ scores[:8] + 0.2 * size[0] ** 2 * np.eye(3)
    by_hand = effects[:8].mean(axis=0) + scores @ np.linalg.solve(inner, scores[:8].T @ effects[:8])
    np.testing.assert_allclose(baseline.gene_delta("P10"), by_hand[10], rtol=1e-9)
    np.testing.assert_allclose(baseline.gene_delta("P00"), effects[0], rtol=1e-9)  # its own where it was seen


def test_genes_without_terms_get_the_mean_change_and_no_terms_at_all_are_refused():
    annotation, group = go_terms(0)
    control, effects = random_effects()
    means = means_of(control, effects[group], np.add)
    for kind in (GORidge, GOKnn):
        baseline = kind(annotation=annotation, clip=False).fit_means(table_of(means, labels(), SINGLES[:6]))
        np.testing.assert_allclose(baseline.predict(["nobody"])[0], means[1:7].mean(axis=0), rtol=1e-12)
        with pytest.raises(ValueError, match=r"none of .* has a GO term"):
            kind(annotation=GeneAnnotation.from_dict({"other": ["t"]})).fit_means(table_of(means, labels(), [1]))
    with pytest.raises(ValueError, match="at least 1"):
        GOKnn(k=0)


def test_a_table_of_means_gives_what_screen_and_split_give(additive_screen, letters_go, letters_embedding):
    screen, split = additive_screen
    train = [screen.id_of(condition) for condition in split.conditions("train")]
    profiles = correlation_profiles(screen.cells, [np.arange(10)])
    for name in BASELINES:
        given = {"annotation": letters_go, "embedding": letters_embedding}
        whole = make_baseline(name, **given).fit(screen, split)
        table = table_of(
            screen.statistics.mean,
            [condition.name for condition in screen.conditions],
            train,
            gene_names=tuple(screen.gene_names),
            n_cells_C=screen.statistics.n,
            profiles=lambda: profiles,
        )
        plain = make_baseline(name, **given).fit_means(table)
        np.testing.assert_array_equal(whole.predict(["A+B", "E+ctrl"]), plain.predict(["A+B", "E+ctrl"]))


def test_tables_that_do_not_fit_are_refused():
    means = np.ones((3, 4))
    names = ["ctrl", "A+ctrl", "B+ctrl"]
    cases = [
        ((means[:2], names, [1]), {}, "one row per condition"),
        ((means, ["ctrl", "A+ctrl", "ctrl+A"], [1]), {}, "more than once"),
        ((means[1:], names[1:], [1]), {}, "control"),
        ((means, names, [3]), {}, "expected 0 to 2"),
        ((means, names, [1]), {"gene_names": ["x"]}, "one per column"),
        ((means, names, [1]), {"n_cells_C": np.ones(2)}, "one per row"),
    ]
    for arguments, more, message in cases:
        with pytest.raises(ValueError, match=message):
            table_of(*arguments, **more)
    with pytest.raises(ValueError, match="n_cells_C"):
        make_baseline("train_mean_cells").fit_means(table_of(means, names, [1]))
    with pytest.raises(ValueError, match="gene_names"):
        make_baseline("linear").fit_means(table_of(means, names, [1]))
    with pytest.raises(ValueError, match="give profiles"):
        make_baseline("additive_ridge_coexpression").fit_means(table_of(means, names, [1], gene_names="abcd"))
