"""``gears.pl``: the plots with scanpy's show, save and return_fig."""

import inspect
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import gears
from gears import pl, plotting

CHANGES = np.array([0.1, -0.3, 0.5]), np.array([0.2, -0.2, 0.4])
NOT_PLOTS = {"image_bytes", "new_axes", "new_figure", "save_figure", "spread_p_values"}


def test_every_plot_has_the_habits():
    assert gears.pl is pl
    for name in set(plotting.__all__) - NOT_PLOTS:
        assert {"show", "save", "return_fig"} <= set(inspect.signature(getattr(pl, name)).parameters), name


def test_a_figure_is_saved_and_the_axes_are_returned(tmp_path):
    ax = pl.predicted_vs_true(*CHANGES, save=tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert ax.get_xlabel().startswith("true")
    figure = pl.predicted_vs_true(*CHANGES, return_fig=True)
    assert figure.axes[0].get_xlabel() == ax.get_xlabel()


def test_in_a_notebook_the_figure_appears_once(monkeypatch):
    shown: list[bytes] = []
    display = SimpleNamespace(Image=lambda data: data, display=shown.append)
    monkeypatch.setitem(
        sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=1))
    )
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

    opened: list[int] = []
    monkeypatch.setattr(pyplot, "show", lambda: opened.append(len(pyplot.get_fignums())))
    pl.predicted_vs_true(*CHANGES, show=True)
    pyplot.close("all")
    assert opened == [1]
