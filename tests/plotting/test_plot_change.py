"""Predicted against true changes: what is drawn."""

import numpy as np
import pytest

from gears.evaluation import Truth
from gears.plotting import predicted_vs_true, prediction_figure, save_figure


@pytest.fixture
def deltas():
    rng = np.random.default_rng(0)
    true = rng.normal(0, 0.3, 50)
    return true + rng.normal(0, 0.1, 50), true, [f"GENE{gene}" for gene in range(50)]


def offsets(collection) -> np.ndarray:
    return np.asarray(collection.get_offsets())


def test_points_are_true_against_predicted_with_top_genes_apart(deltas):
    predicted, true, names = deltas
    top = np.argsort(-np.abs(true))[:5]
    ax = predicted_vs_true(predicted, true, names, top_de=top, title="A+B")
    by_label = {c.get_label(): offsets(c) for c in ax.collections}
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
    ax = predicted_vs_true(predicted, true, top_de=[3, 49], sd_G=sd)
    (bars,) = (c for c in ax.collections if c.get_label() == "_nolegend_" or hasattr(c, "get_segments"))
    ends = [np.asarray(segment)[:, 1] for segment in bars.get_segments()]
    for gene, (low, high) in zip([3, 49], ends, strict=True):
        np.testing.assert_allclose(
            [low, high], predicted[gene] + 1.6449 * sd[gene] * np.array([-1, 1]), rtol=1e-3
        )
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


def test_no_change_is_undefined_and_drawn_all_the_same(deltas):
    _, true, names = deltas
    ax = predicted_vs_true(np.zeros(50), true, names)
    assert ax.get_title() == "r = undefined"
    assert predicted_vs_true(np.zeros(3), np.zeros(3)).get_xlim() == (-1, 1)


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


def test_lengths_must_agree(deltas):
    predicted, true, names = deltas
    with pytest.raises(ValueError, match="one value per gene"):
        predicted_vs_true(predicted[:-1], true)
    with pytest.raises(ValueError, match="49 gene names for 50 genes"):
        predicted_vs_true(predicted, true, names[:-1])
