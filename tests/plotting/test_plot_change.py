"""Predicted against true changes of all and of a few genes, and the published figure of a condition."""

import numpy as np
import pytest
from driving import pert_data_of
from small_models import network_of

from gears.evaluation import Truth
from gears.plotting import gene_changes, predicted_vs_true, prediction_figure, save_figure


@pytest.fixture
def deltas():
    rng = np.random.default_rng(0)
    true = rng.normal(0, 0.3, 50)
    return true + rng.normal(0, 0.1, 50), true, [f"GENE{gene}" for gene in range(50)]


def test_points_are_true_against_predicted_with_top_genes_apart(deltas):
    predicted, true, names = deltas
    top = np.argsort(-np.abs(true))[:5]
    ax = predicted_vs_true(predicted, true, names, top_de=top, title="A+B")
    by_label = {c.get_label(): np.asarray(c.get_offsets()) for c in ax.collections}
    expected = np.stack([true[top], predicted[top]], axis=1)
    np.testing.assert_allclose(by_label["top 5 differential genes"], expected)
    assert len(by_label["other genes (45)"]) == 45
    r = np.corrcoef(predicted, true)[0, 1]
    assert ax.get_title().startswith(f"A+B\nr = {r:.2f} (top 5: ")
    assert {text.get_text() for text in ax.texts} == {names[gene] for gene in top}
    assert ax.get_xlabel().startswith("true")
    assert ax.get_xlim() == ax.get_ylim()


def test_bars_of_marked_genes_are_90_percent_intervals_within_the_limits(deltas):
    predicted, true, _ = deltas
    sd = np.linspace(0.1, 2.0, 50)
    ax = predicted_vs_true(predicted, true, top_de=[3, 49], sd=sd)
    (bars,) = (c for c in ax.collections if c.get_label() == "_nolegend_" or hasattr(c, "get_segments"))
    ends = [np.asarray(segment)[:, 1] for segment in bars.get_segments()]
    for gene, (low, high) in zip([3, 49], ends, strict=True):
        np.testing.assert_allclose([low, high], predicted[gene] + 1.6449 * sd[gene] * np.array([-1, 1]), rtol=1e-3)
    assert ax.get_ylim()[1] >= max(high for _, high in ends)
    assert "90 % interval" in [text.get_text() for text in ax.get_legend().get_texts()]


def test_marked_genes_differ_in_lightness_and_size(deltas):
    from matplotlib.colors import rgb_to_hsv, to_rgb

    predicted, true, _ = deltas
    ax = predicted_vs_true(predicted, true, top_de=[0, 1])
    rest, top = (next(c for c in ax.collections if c.get_label().startswith(p)) for p in ("other", "top"))
    grey = [float(np.dot(to_rgb(c.get_facecolor()[0][:3]), [0.299, 0.587, 0.114])) for c in (rest, top)]
    assert grey[0] - grey[1] > 0.3
    assert top.get_sizes()[0] > rest.get_sizes()[0]
    assert rgb_to_hsv(rest.get_facecolor()[0][:3])[1] == 0


def test_a_panel_per_condition_and_a_file(tmp_path, deltas):
    predicted, true, names = deltas
    control = np.ones(50)
    truth = Truth.from_means(
        control + np.stack([true, -true, true, true]), control, conditions=["A+B", "A+ctrl", "B+ctrl", "C+ctrl"],
        top_de=[np.arange(4)] * 4,
    )  # fmt: skip
    figure = prediction_figure(np.tile(control + predicted, (4, 1)), truth, names, rows=[0, 1, 3, 2])
    titles = [ax.get_title().split("\n")[0] for ax in figure.axes if ax.axison]
    assert titles == ["A+B", "A+ctrl", "C+ctrl", "B+ctrl"]
    path = save_figure(figure, tmp_path / "new" / "figure.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in path.parent.iterdir()] == ["figure.png"]
    with pytest.raises(ValueError, match="no condition to plot"):
        prediction_figure(predicted[None], truth, rows=[])


def test_bars_are_observed_means_and_marks_predictions(names, delta_UG, by_label):
    true, predicted = delta_UG[0], delta_UG[1]
    error = np.full(12, 0.25)
    ax = gene_changes(true, {"model": predicted, "other": -predicted}, names, genes=[3, "GENE7"],
                      standard_error=error)  # fmt: skip
    assert [label.get_text() for label in ax.get_xticklabels()] == ["GENE3", "GENE7"]
    assert [bar.get_height() for bar in ax.patches] == pytest.approx(true[[3, 7]])
    drawn = by_label(ax)
    np.testing.assert_allclose(drawn["model"].get_ydata(), predicted[[3, 7]])
    np.testing.assert_allclose(drawn["other"].get_ydata(), -predicted[[3, 7]])
    assert drawn["model"].get_marker() != drawn["other"].get_marker()
    (whiskers,) = ax.containers[1].lines[2]
    np.testing.assert_allclose(
        [segment[:, 1] for segment in whiskers.get_segments()],
        np.stack([true[[3, 7]] - 0.25, true[[3, 7]] + 0.25], axis=1),
    )


def test_boxes_are_quartiles_of_the_cells(names):
    cells = np.random.default_rng(3).normal(size=(41, 12))
    ax = gene_changes(cells.mean(axis=0), {}, names, genes=[5, 0], cells_delta=cells)
    for box, gene in zip(ax.patches, [5, 0], strict=True):
        edges = box.get_path().vertices[:, 1]
        quartiles = np.quantile(cells[:, gene], [0.25, 0.75])
        np.testing.assert_allclose([edges.min(), edges.max()], quartiles, rtol=1e-9)
    means = next(c for c in ax.collections if c.get_label() == "observed mean")
    drawn = [segment[0, 1] for segment in means.get_segments()]
    np.testing.assert_allclose(drawn, cells.mean(axis=0)[[5, 0]])
    assert "observed cells (41)" in [text.get_text() for text in ax.get_legend().get_texts()]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"genes": ["GENE1", "TP53"]}, "1 gene not among the 12 that are predicted: TP53; give names"),
        ({"genes": [12]}, "not among the 12 .*positions from 0 to 11"),
        ({"genes": []}, "no gene to draw; give at least one"),
        ({"predicted": {"m": np.zeros(3)}}, r"predicted\['m'\] has shape \(3,\); expected one value per gene, \(12,\)"),
        ({"predicted": {str(i): np.zeros(12) for i in range(7)}}, "7 methods to draw; expected at most 6"),
        ({"cells_delta": np.zeros((4, 3))}, r"shape \(4, 3\); expected at least one cell and 12 genes"),
        ({"gene_names": ["A"]}, "1 gene name for 12 genes; give one name per gene"),
        ({"true_delta": np.zeros((2, 12))}, r"true_delta has shape \(2, 12\); expected one value per gene"),
    ],
    ids=["unknown", "position", "none", "length", "methods", "cells", "names", "table"],
)  # fmt: skip
def test_wrong_input_is_refused(change, message, names, delta_UG):
    arguments = {"true_delta": delta_UG[0], "predicted": {}, "gene_names": names} | change
    with pytest.raises(ValueError, match=message):
        gene_changes(**arguments)
    with pytest.raises(ValueError, match="one value per gene"):
        predicted_vs_true(delta_UG[0][:-1], delta_UG[1])
    with pytest.raises(ValueError, match="11 gene names for 12 genes"):
        predicted_vs_true(delta_UG[0], delta_UG[1], names[:-1])


@pytest.fixture(scope="module")
def model(tmp_path_factory, toy_template, toy_go):
    return network_of(pert_data_of(tmp_path_factory.mktemp("plots"), toy_template, gene2go=toy_go, split="simulation"))


def test_the_published_figure_is_written_and_shown_on_request_and_in_a_notebook(model, monkeypatch, tmp_path):
    from types import SimpleNamespace

    import IPython.display
    from matplotlib import pyplot

    pyplot.close("all")  # of other tests
    windows, displayed = [], []
    monkeypatch.setattr(pyplot, "show", lambda: windows.append(pyplot.gcf().canvas.manager.canvas.figure))
    monkeypatch.setattr(IPython.display, "display", displayed.append)
    assert model.plot_perturbation("GX01+GX00", tmp_path / "figure.png").get_title() == "GX00+GX01"
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert not pyplot.get_fignums()
    ax = model.plot_perturbation("GX03", n_genes=5, show=True)
    assert windows == [ax.get_figure()]
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(kernel=None))
    model.plot_perturbation("GX03", n_genes=5)
    assert len(displayed) == 1
    assert displayed[0].data.startswith(b"\x89PNG")
    model.plot_perturbation("GX03", n_genes=5, show=False)
    model.plot_perturbation("GX03", n_genes=5, ax=ax)
    assert len(displayed) == len(windows) == 1
    pyplot.close("all")


def test_the_published_figure_needs_a_perturbed_condition_of_the_screen(model):
    with pytest.raises(KeyError, match="no condition 'GX00\\+GX07'"):
        model.plot_perturbation("GX00+GX07")
    with pytest.raises(ValueError, match="control has no change to plot; give a perturbed condition"):
        model.plot_perturbation("ctrl")
