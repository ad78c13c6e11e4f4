"""`gears.pl`: a model and names instead of arrays; what is drawn is what the model predicts and the screen measured."""

import inspect
from types import SimpleNamespace

import numpy as np
import pytest
from small_models import trained_on

import gears
from gears import GEARS, PertData, PerturbationModel, design, pl, plotting
from gears.conditions import Condition
from gears.evaluation import Truth
from gears.evaluation.interactions import observed_interactions
from gears.evaluation.metrics.differential import welch_p_values

QUIET = {"verbose": False, "evaluate_test": False}
FIRST = {
    "plot_perturbation": "pair", "gene_changes": "pair", "predicted_vs_true": "pair", "volcano": "pair",
    "go_neighbourhood": "gene", "prediction_figure": None, "delta_heat_map": None, "embedding": None,
    "training_curves": None, "interaction_map": None, "interaction_volcano": None, "method_differences": None,
    "coverage_curve": None, "error_against_spread": None, "rate_calibration": None,
    "evidence": "pair",
}  # fmt: skip
"""What each function needs after the model."""


@pytest.fixture(scope="module")
def model(small_screen):
    model = PerturbationModel(
        small_screen[0], device="cpu", network={"hidden_size": 8}, default_pert_graph=False, verbose=False
    )
    model.train(epochs=2, **QUIET)
    return model


@pytest.fixture(scope="module")
def parts(model):
    """The GEARS model, its screen, the perturbed test conditions, and a pair among them."""
    inner, data = model.gears, model.gears.pert_data
    test = [one for one in data.split.conditions("test") if not one.is_control]
    return inner, data.screen, test, next(one for one in test if len(one) == 2)


@pytest.fixture(scope="module")
def new(parts):
    """Two genes that the screen does not perturb."""
    inner, screen, *_ = parts
    return [gene for gene in inner.pert_list if gene not in screen.perturbed_genes][:2]


def arguments(name, pair):
    return {"pair": [pair.name], "gene": [pair.genes[0]], None: []}[FIRST[name]]


def offsets(artist) -> np.ndarray:
    return np.asarray(artist.get_offsets())


def segments(ax, label="_interval"):
    """Ends of the vertical lines of a collection, (K, 2)."""
    (bars,) = (one for one in ax.containers if one.get_label() == label)
    return np.array([np.asarray(line)[:, 1] for line in bars.lines[2][0].get_segments()])


@pytest.mark.parametrize("name", sorted(FIRST))
def test_every_plot_takes_a_model_or_the_gears_model_in_it_first(model, parts, name):
    inner, *_, pair = parts
    figures = [getattr(pl, name)(one, *arguments(name, pair), return_fig=True) for one in (model, inner)]
    titles = [[ax.get_title() for ax in figure.axes] for figure in figures]
    assert titles[0] == titles[1]
    assert all(ax.has_data() for ax in figures[0].axes if ax.axison)
    if name != "prediction_figure":
        ax = plotting.new_axes()
        assert getattr(pl, name)(model, *arguments(name, pair), ax=ax) is ax


@pytest.mark.parametrize("name", sorted(FIRST))
def test_a_model_before_training_is_one_sentence(small_data, name):
    new = GEARS(small_data, device="cpu")
    pair = next(one for one in small_data.screen.conditions if len(one) == 2)
    with pytest.raises(ValueError, match=r"^this model is not trained yet; call its train\(\) first$"):
        getattr(pl, name)(new, *arguments(name, pair))
    with pytest.raises(ValueError, match=r"^this model is not trained yet; call its train\(\) first$"):
        design.suggest(new)


def test_signatures_show_names_and_the_options_of_the_plot():
    shown = inspect.signature(pl.volcano).parameters
    assert list(shown)[:2] == ["model", "condition"]
    assert {"level", "n_labels", "ax", "show", "save", "return_fig"} <= set(shown)
    assert "Predicted change of every gene" in pl.volcano.__doc__
    assert set(FIRST) | {"replay_curve"} == set(pl.__all__)


def test_only_public_names_are_listed():
    for module in (gears, pl, design, plotting):
        assert dir(module) == sorted(module.__all__, key=str)
        assert not {"annotations", "functools", "inspect", "Any", "np"} & set(dir(module))


def test_something_else_first_is_named(small_data):
    with pytest.raises(
        TypeError, match=r"volcano takes a GEARS or a PerturbationModel first; gears\.plotting\.volcano"
    ):
        pl.volcano(small_data, "A")
    with pytest.raises(TypeError, match="a model has no replay to draw; give the records of one"):
        pl.replay_curve(SimpleNamespace(gears=GEARS(small_data, device="cpu")))
    with pytest.raises(TypeError, match="expected a GEARS or a PerturbationModel; found int"):
        design.hits(3)


def test_changes_of_a_condition_are_the_model_s_with_90_percent_intervals(model, parts, by_label):
    inner, screen, _, pair = parts
    predictions = inner.predict([pair])
    delta, sd = predictions.delta_UG[0], predictions.sd_change[0]
    row = screen.id_of(pair)
    true = screen.statistics.mean[row] - screen.statistics.mean[screen.control_id]
    top = Truth.of(screen, [pair]).top_moderated()[0]
    ax = pl.predicted_vs_true(model, pair.name)
    points = offsets(by_label(ax)["top 20 differential genes"])
    np.testing.assert_allclose(points, np.stack([true[top], delta[top]], axis=1))
    expected = delta[top, None] + 1.6449 * sd[top, None] * np.array([-1, 1])
    np.testing.assert_allclose(segments(ax, "90 % interval"), expected, rtol=1e-3, atol=1e-6)
    assert ax.get_title().startswith(f"{pair.name}\n")
    for name in ("plot_perturbation", "gene_changes"):
        ax = getattr(pl, name)(model, pair.name)
        genes = [screen.gene_names.index(tick.get_text()) for tick in ax.get_xticklabels()]
        assert genes == np.argsort(-np.abs(true), kind="stable")[:20].tolist()
        expected = delta[genes, None] + 1.6449 * sd[genes, None] * np.array([-1, 1])
        np.testing.assert_allclose(segments(ax, "90 % interval"), expected, rtol=1e-3, atol=1e-6)
    assert [bar.get_height() for bar in ax.patches] == pytest.approx(true[genes])
    errors = np.sqrt(screen.statistics.m2[row] / screen.statistics.n[row])[genes]
    np.testing.assert_allclose(np.ptp(segments(ax, "standard error"), axis=1), 2 * errors)
    assert len(pl.gene_changes(model, pair, n_genes=7).get_xticks()) == 7
    ax = pl.gene_changes(model, pair, baselines=["no_change"], genes=[4], title="mine")
    assert by_label(ax)["no_change"].get_ydata() == pytest.approx([0.0])
    assert (ax.get_title(), len(ax.get_xticks())) == ("mine", 1)


def test_a_volcano_has_the_p_values_of_the_cells_or_of_the_prediction(model, parts, new, tmp_path):
    inner, screen, _, pair = parts

    def heights(ax):
        points = np.concatenate([offsets(group) for group in ax.collections])
        return points[np.argsort(points[:, 0], kind="stable")]

    def expected(delta, p):
        points = np.stack([delta, -np.log10(p)], axis=1)
        return points[np.argsort(points[:, 0], kind="stable")]

    ax = pl.volcano(model, pair.name)
    p = welch_p_values(Truth.of(screen, [pair]))[0]
    np.testing.assert_allclose(heights(ax), expected(inner.predict([pair]).delta_UG[0], p))
    assert ax.get_ylabel() == "-log10 p of the observed cells"
    inner.save_model(tmp_path / "model")
    for one, query in ((GEARS.from_pretrained(tmp_path / "model", device="cpu"), pair), (inner, new)):
        predictions = inner.predict([query])
        ax, delta_G = pl.volcano(one, query), predictions.delta_UG[0]
        points = heights(ax)
        np.testing.assert_allclose(points[:, 0], np.sort(delta_G), rtol=1e-4, atol=1e-5)
        for delta, height in points[np.abs(points[:, 0]) > np.quantile(np.abs(delta_G), 0.8)]:
            gene = np.abs(delta_G - delta).argmin()
            low, high = predictions.interval(1 - 10**-height)  # it ends at no change
            assert min(abs(low[0, gene]), abs(high[0, gene])) < 0.05 * abs(delta)
        assert ax.get_ylabel() == "-log10 p of the prediction"
    loaded = GEARS.from_pretrained(tmp_path / "model", device="cpu")
    with pytest.raises(ValueError, match="this plot needs the screen; this model was loaded without it"):
        pl.predicted_vs_true(loaded, pair)
    with pytest.raises(ValueError, match="was loaded, not trained here: there is no curve"):
        pl.training_curves(loaded)
    with pytest.raises(ValueError, match="the control has no change to plot"):
        pl.volcano(model, "ctrl")


def test_conditions_are_those_of_the_test_part_by_default(model, parts, new, by_label):
    inner, _, test, pair = parts
    labels = [one.name.removesuffix("+ctrl") for one in test]
    ax = pl.delta_heat_map(model)
    assert [tick.get_text() for tick in ax.get_yticklabels()] == labels
    ax = pl.delta_heat_map(model, [new[0], pair], genes=[3, 4])
    np.testing.assert_allclose(ax.images[0].get_array(), inner.predict([new[0], pair]).delta_UG[:, [3, 4]])
    drawn = by_label(pl.embedding(model))
    assert len(offsets(drawn["2 genes, true"])) == sum(len(one) == 2 for one in test)
    assert list(by_label(pl.embedding(model, [*new, pair], n_labels=0))) == ["1 gene", "2 genes"]
    figure = pl.prediction_figure(model, [pair, test[0]])
    assert [ax.get_title().split("\n")[0] for ax in figure.axes if ax.axison] == [pair.name, test[0].name]


def test_curves_are_those_of_the_last_training(model, parts, small_data):
    inner, *_ = parts
    ax = pl.training_curves(model, "val_pearson_delta")
    values = [record["val_pearson_delta"] for record in inner.result.history]
    np.testing.assert_allclose(ax.lines[0].get_ydata(), values)
    ax = pl.training_curves({"one": model, "two": inner}, title="both")
    assert [line.get_label() for line in ax.lines] == ["one", "two"]
    prior = trained_on(small_data)
    with pytest.raises(ValueError, match="this training ran no epoch: there is no curve"):
        pl.training_curves(prior)


def test_interactions_are_predicted_and_observed(model, parts, new):
    inner, screen, _, pair = parts
    ax = pl.interaction_map(model, [pair])
    assert [tick.get_text() for tick in ax.get_xticklabels()] == list(pair.genes)
    table = observed_interactions(screen).set_index("condition")
    assert ax.images[0].get_array()[1, 0] == pytest.approx(table.loc[pair.name, "strength"])
    whole = pl.interaction_map(inner)
    measured = [one for one in screen.conditions if len(one) == 2]
    assert ax.images[0].get_array().count() == 2
    assert whole.images[0].get_array().count() == 2 * len(measured)
    only_predicted = pl.interaction_map(model, [new])
    assert np.ptp(only_predicted.images[0].get_array().compressed()) == 0  # both triangles show it


def test_calibration_adds_the_noise_of_the_measured_means_and_gains_are_those_of_the_part(model, parts, by_label):
    from gears.evaluation.uncertainty import calibration

    inner, screen, test, _ = parts
    rows = [screen.id_of(one) for one in test]
    true = screen.statistics.mean[rows] - screen.statistics.mean[screen.control_id]
    noise = screen.statistics.m2[rows] / screen.statistics.n[rows][:, None]
    predictions = inner.predict(test)
    judged = calibration(predictions.delta_UG, predictions.sd_change**2, true, true_variance=noise)
    drawn = by_label(pl.coverage_curve(model))["gears"]
    np.testing.assert_allclose(drawn.get_ydata(), judged.coverage["observed"])
    drawn = by_label(pl.error_against_spread({"mine": model}))["mine"]
    np.testing.assert_allclose(drawn.get_ydata(), judged.bins["error"])
    ax = pl.method_differences(model, "mse", split="val")
    assert ax.get_title() == "mse"
    assert "train_mean" in [tick.get_text() for tick in ax.get_yticklabels()]
    assert ax.get_xlabel() == "gain of gears"
    low = pl.rate_calibration(model, threshold=0.05).lines[1].get_xydata()
    high = pl.rate_calibration(model, threshold=-0.05).lines[1].get_xydata()
    assert low.shape != high.shape or not np.allclose(low, high)


def test_a_condition_of_several_contexts_names_one(tmp_path, divided, toy_go):
    data = PertData(tmp_path, gene2go=toy_go)
    data.new_data_process("lines", divided, context_key="cell_type", batch_key=["batch"])
    data.prepare_split("simulation", seed=1)
    model = trained_on(data)
    with pytest.raises(ValueError, match=r"GX00\+ctrl is predicted in 2 contexts .* 'GX00\+ctrl @ L1'$"):
        pl.volcano(model, "GX00")
    label = "GX00+GX01 @ L2"
    ax = pl.predicted_vs_true(model, label)
    assert ax.get_title().startswith(label)
    change = data.screen.statistics.delta(np.array([data.screen.id_of(label)]))[0]
    np.testing.assert_allclose(
        np.sort(np.concatenate([offsets(c)[:, 0] for c in ax.collections if len(c.get_offsets()) > 1])), np.sort(change)
    )
    assert pl.volcano(model, label).get_ylabel() == "-log10 p of the observed cells"
    with pytest.raises(ValueError, match="the conditions are of 2 contexts"):
        pl.interaction_map(model, ["GX00+GX01"])
    ax = pl.interaction_map(model, [label])
    table = observed_interactions(data.screen).set_index("condition")
    assert ax.images[0].get_array()[1, 0] == pytest.approx(table.loc[label, "strength"])
    assert pl.delta_heat_map(model, [label, Condition.parse("GX03+ctrl @ L1")]).has_data()
