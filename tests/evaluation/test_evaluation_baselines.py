"""Baselines on screens whose right answer is known."""

import numpy as np
import pytest

from gears.evaluation import BASELINES, DEFAULT_BASELINES, make_baseline
from gears.evaluation.baselines import Additive, Linear, MatchingMean, NoChange, TrainMean
from gears.evaluation.baselines._regression import principal_scores


def mean_of(screen, label: str) -> np.ndarray:
    return screen.statistics.mean[screen.id_of(label)]


def reference(screen) -> np.ndarray:
    return np.mean([mean_of(screen, f"{gene}+ctrl") for gene in "ABCD"], axis=0)


def test_train_mean_counts_each_condition_once_or_by_cells_and_never_the_control(additive_screen):
    screen, split = additive_screen
    predicted = TrainMean().fit(screen, split).predict(["A+B", "E+ctrl"])
    np.testing.assert_allclose(predicted, np.stack([reference(screen)] * 2), rtol=1e-12)
    by_cells = np.average([mean_of(screen, f"{gene}+ctrl") for gene in "ABCD"], axis=0, weights=[5, 10, 20, 5])
    predicted = TrainMean(weights="cells").fit(screen, split).predict(["A+B"])
    np.testing.assert_allclose(predicted[0], by_cells, rtol=1e-12)


def test_singles_are_averaged_or_added_and_others_have_the_train_mean(additive_screen):
    screen, split = additive_screen
    predicted = MatchingMean().fit(screen, split).predict(["A+B", "A+E", "E+ctrl", "C+ctrl"])
    a, b, c = (mean_of(screen, f"{gene}+ctrl") for gene in "ABC")
    by_hand = [(a + b) / 2, (a + reference(screen)) / 2, reference(screen), c]
    np.testing.assert_allclose(predicted, by_hand, rtol=1e-12)
    predicted = Additive(clip=False).fit(screen, split).predict(["A+E"])[0]
    np.testing.assert_allclose(predicted, a + reference(screen) - mean_of(screen, "ctrl"), rtol=1e-12)


def test_additive_with_all_singles_is_exact_for_pairs_marked_and_never_copies_a_held_out_single(additive_screen):
    screen, split = additive_screen
    baseline = Additive(singles="all", clip=False).fit(screen, split)
    predicted = baseline.predict(["A+E", "E+ctrl"])
    np.testing.assert_allclose(predicted[0], mean_of(screen, "A+E"), rtol=1e-12)
    np.testing.assert_allclose(predicted[1], reference(screen), rtol=1e-12)
    assert BASELINES["additive_all_singles"].uses_held_out
    assert not any(BASELINES[name].uses_held_out for name in DEFAULT_BASELINES)
    assert "additive_all_singles" not in DEFAULT_BASELINES


def test_means_and_sums_are_weak_references_and_unknown_names_are_refused():
    assert {name for name, entry in BASELINES.items() if entry.weak} == {
        "no_change", "train_mean", "train_mean_cells", "matching_mean", "additive", "additive_all_singles",
    }  # fmt: skip
    with pytest.raises(ValueError, match="did you mean 'additive'"):
        make_baseline("aditive")
    with pytest.raises(ValueError, match="singles"):
        Additive(singles="test")


def test_predictions_below_zero_are_clipped_as_asked(make_screen, make_split):
    means = {"ctrl": [1, 1], "A+ctrl": [0, 1], "B+ctrl": [0, 2], "A+B": [0, 2]}
    split = make_split({"train": ("ctrl", "A+ctrl", "B+ctrl"), "test": ("A+B",)})
    screen = make_screen(means)
    assert Additive(clip=False).fit(screen, split).predict(["A+B"]).tolist() == [[-1, 2]]
    assert make_baseline("additive").fit(screen, split).predict(["A+B"]).tolist() == [[0, 2]]


def test_linear_equals_the_formula_written_out(additive_screen):
    screen, split = additive_screen
    screen.gene_names[2], screen.gene_names[7], screen.gene_names[11] = ("A", "C", "E")  # B and D are not measured
    baseline = Linear(clip=False).fit(screen, split)
    predicted = baseline.predict(["E+ctrl", "A+C", "B+ctrl", "A+B"])
    b = mean_of(screen, "ctrl")
    everything = np.stack([b, *(mean_of(screen, f"{gene}+ctrl") for gene in "ABCD")], axis=1)
    embedding = principal_scores(everything, 10)
    kept = np.stack([b, mean_of(screen, "A+ctrl"), mean_of(screen, "C+ctrl")], axis=1) - b[:, None]
    centre = kept.mean(axis=1)
    q = np.stack([np.zeros(embedding.shape[1]), embedding[2], embedding[7]], axis=1)
    ridge = 0.1 * np.eye(embedding.shape[1])
    k = np.linalg.inv(embedding.T @ embedding + ridge) @ embedding.T @ (kept - centre[:, None])
    k = k @ q.T @ np.linalg.inv(q @ q.T + ridge)
    vectors = [embedding[11], embedding[2] + embedding[7], 0 * embedding[0], embedding[2]]
    by_hand = [embedding @ k @ vector + centre + b for vector in vectors]
    np.testing.assert_allclose(predicted, by_hand, rtol=1e-9)


@pytest.mark.parametrize("name", sorted(BASELINES))
def test_every_baseline_predicts_the_control_by_itself_and_does_not_see_held_out_conditions_unless_marked(
    name, additive_screen, letters_go, letters_embedding
):
    screen, split = additive_screen

    def predicted(*conditions: str, **options) -> np.ndarray:
        given = {"annotation": letters_go, "embedding": letters_embedding}
        return make_baseline(name, **given, **options).fit(screen, split).predict(list(conditions))

    unclipped = predicted("ctrl", "A+B", "B+A", clip=False)
    np.testing.assert_array_equal(unclipped[0], mean_of(screen, "ctrl"))
    np.testing.assert_array_equal(unclipped[1], unclipped[2])
    assert unclipped.shape == (3, 12)
    before = predicted("A+B", "A+E", "E+ctrl")
    for label in split.parts["test"]:
        screen.statistics.mean[screen.id_of(label)] += 100
    after = predicted("A+B", "A+E", "E+ctrl")
    assert np.array_equal(before, after) != BASELINES[name].uses_held_out


@pytest.mark.parametrize("parts", [{"test": ("A+B",)}, {"train": ("ctrl",), "test": ("A+B",)}])
def test_without_training_conditions_only_no_change_can_be_fitted(parts, additive_screen, make_split):
    screen, _ = additive_screen
    NoChange().fit(screen, make_split(parts))
    for name in sorted(set(BASELINES) - {"no_change"}):
        with pytest.raises(ValueError, match="training condition"):
            make_baseline(name).fit(screen, make_split(parts))
