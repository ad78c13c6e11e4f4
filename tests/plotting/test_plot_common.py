"""What every plot has in common: given Axes, pyplot left alone, marks that differ; `gears.pl` with scanpy's habits."""

import inspect
import sys
from types import SimpleNamespace

import networkx
import numpy as np
import pandas as pd
import pytest

import gears
import gears.plotting as plots
from gears import pl, plotting
from gears.evaluation.uncertainty import calibration
from gears.plotting._style import MARKS

NAMES = [f"G{i}" for i in range(10)]
DELTA = np.random.default_rng(0).normal(size=(4, 10))
CONDITIONS = ["A+ctrl", "B+ctrl", "A+B", "C+ctrl"]
PAIRS = pd.DataFrame({"gene_1": ["A"], "gene_2": ["B"], "kind": ["synergy"], "strength": [1.6]})
DEPARTURES = PAIRS.assign(departure=0.6, fdr_score=0.1)
DIFFERENCES = pd.DataFrame(
    [("x", "mse", 0.1, 0.0, 0.2, "model")], columns=["against", "metric", "difference", "low", "high", "better"]
)


def judged():
    return {"one": calibration(np.zeros(50), np.ones(50), np.linspace(-2, 2, 50))}


REPLAYED = pd.DataFrame(
    {"aim": ["x", "x", "y"], "repeat": [0, 1, 0], "n_measured": [5, 5, 9], "error": [0.5, 0.6, 0.4]}
)
RATES = pd.DataFrame({"readout": ["gene"], "expected": [0.4], "observed": [0.5], "n": [9]})
PARTS = pd.DataFrame(
    [
        ("condition", "A+ctrl", "own", 0.8, -0.7),
        ("others", "9 others", "GO", 0.1, np.nan),
        ("offset", "", "", 0.1, np.nan),
    ],
    columns=["part", "condition", "similarity", "share", "without"],
)

DRAW = {
    "predicted_vs_true": lambda ax: plots.predicted_vs_true(DELTA[0], DELTA[1], NAMES, top_de=[1, 2], ax=ax),
    "gene_changes": lambda ax: plots.gene_changes(DELTA[0], {"model": DELTA[1]}, NAMES, ax=ax),
    "volcano": lambda ax: plots.volcano(DELTA[0], np.full(10, 0.001), NAMES, ax=ax),
    "delta_heat_map": lambda ax: plots.delta_heat_map(DELTA, CONDITIONS, NAMES, cluster=True, ax=ax),
    "training_curves": lambda ax: plots.training_curves([{"epoch": 1, "train_loss": 1.0}], ax=ax),
    "go_neighbourhood": lambda ax: plots.go_neighbourhood(networkx.path_graph(["A", "B", "C"]), "B", ax=ax),
    "interaction_map": lambda ax: plots.interaction_map(PAIRS, ax=ax),
    "interaction_volcano": lambda ax: plots.interaction_volcano(DEPARTURES, ax=ax),
    "coverage_curve": lambda ax: plots.coverage_curve(judged(), ax=ax),
    "error_against_spread": lambda ax: plots.error_against_spread(judged(), ax=ax),
    "embedding": lambda ax: plots.embedding(DELTA, CONDITIONS, ax=ax),
    "replay_curve": lambda ax: plots.replay_curve(REPLAYED, ax=ax),
    "evidence": lambda ax: plots.evidence(PARTS, ax=ax),
    "rate_calibration": lambda ax: plots.rate_calibration(RATES, ax=ax),
    "method_differences": lambda ax: plots.method_differences(DIFFERENCES, "mse", ax=ax),
}


@pytest.mark.parametrize("name", sorted(DRAW))
def test_draws_on_given_axes_or_on_new_ones_and_leaves_pyplot_alone(name):
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    before = dict(rcParams)
    pyplot = sys.modules.get("matplotlib.pyplot")
    open_before = pyplot.get_fignums() if pyplot else []
    random_before = np.random.get_state()[1].copy()  # noqa: NPY002
    ax = Figure().subplots()
    assert DRAW[name](ax) is ax
    assert ax.has_data()
    new = DRAW[name](None)
    assert new is not ax
    assert new.figure.canvas.manager is None  # belongs to no window
    assert dict(rcParams) == before
    assert (pyplot.get_fignums() if pyplot else []) == open_before
    assert "matplotlib.pyplot" not in sys.modules or pyplot
    np.testing.assert_array_equal(np.random.get_state()[1], random_before)  # noqa: NPY002


def test_every_public_plot_is_tried_here_and_has_the_habits_of_scanpy():
    helpers = {"image_bytes", "new_axes", "new_figure", "save_figure", "spread_p_values"}
    composed = {"prediction_figure", "plot_perturbation"}  # tests of their own
    assert set(plots.__all__) - helpers - composed == set(DRAW)
    assert gears.pl is pl
    for name in set(plots.__all__) - helpers:
        assert {"show", "save", "return_fig"} <= set(inspect.signature(getattr(pl, name)).parameters), name


def test_marks_differ_in_shape_and_a_figure_gives_the_same_bytes_twice():
    assert len({mark for _, mark in MARKS}) == len({colour for colour, _ in MARKS}) == len(MARKS)
    first, second = (plots.volcano(DELTA[0], np.full(10, 0.001), NAMES).figure for _ in range(2))
    assert plots.image_bytes(first) == plots.image_bytes(second)
    assert plots.image_bytes(first, "svg").startswith(b"<?xml")


CHANGES = np.array([0.1, -0.3, 0.5]), np.array([0.2, -0.2, 0.4])


def test_a_figure_is_saved_and_the_axes_are_returned(tmp_path):
    ax = pl.predicted_vs_true(*CHANGES, save=tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert ax.get_xlabel().startswith("true")
    figure = pl.predicted_vs_true(*CHANGES, return_fig=True)
    assert figure.axes[0].get_xlabel() == ax.get_xlabel()


def test_in_a_notebook_the_figure_appears_once(monkeypatch):
    shown: list[bytes] = []
    display = SimpleNamespace(Image=lambda data: data, display=shown.append)
    # matplotlib asks for the version when the first figure of a process is made
    ipython = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=1), version_info=(8, 24))
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    assert pl.predicted_vs_true(*CHANGES) is None
    assert len(shown) == 1
    assert shown[0].startswith(b"\x89PNG")
    assert pl.predicted_vs_true(*CHANGES, show=False) is not None
    assert pl.predicted_vs_true(*CHANGES, ax=plotting.new_axes()) is not None
    assert len(shown) == 1


@pytest.mark.slow
def test_show_opens_a_window_of_pyplot(monkeypatch):
    from matplotlib import pyplot

    pyplot.close("all")  # of other tests
    opened: list[int] = []
    monkeypatch.setattr(pyplot, "show", lambda: opened.append(len(pyplot.get_fignums())))
    pl.predicted_vs_true(*CHANGES, show=True)
    pyplot.close("all")
    assert opened == [1]
