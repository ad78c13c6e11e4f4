"""The mapping that predict returns."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from gears.conditions import Condition
from gears.prediction._stream import listed_order
from gears.prediction.predictions import Predictions


@pytest.fixture
def predictions():
    labels = ["A+ctrl", "A+B", "C+B+A", "ctrl"]
    expression = np.arange(12, dtype=float).reshape(4, 3)
    return Predictions(
        tuple(map(Condition.parse, labels)), ("g1", "g2", "g3"), expression, np.array([1.0, 1.0, 1.0]),
        cell_sd=np.full((4, 3), 2.0), sd=np.full((4, 3), 0.5),
    )  # fmt: skip


@pytest.mark.parametrize("key", ["A_B", "B_A", "A+B", "B+A", ("A", "B"), ["B", "A"], Condition(("A", "B"))])
def test_spellings_of_a_key(predictions, key):
    assert predictions[key].tolist() == [3.0, 4.0, 5.0]
    assert key in predictions


def test_keys_that_are_unknown_or_ambiguous_are_refused(predictions):
    assert predictions["A"].tolist() == predictions["A+ctrl"].tolist() == [0.0, 1.0, 2.0]
    assert predictions["B_C_A"].tolist() == [6.0, 7.0, 8.0]
    assert predictions["ctrl"].tolist() == [9.0, 10.0, 11.0]
    assert list(predictions.keys()) == ["A", "A_B", "A_B_C", "ctrl"]
    assert len(predictions) == 4
    with pytest.raises(KeyError, match="unknown condition 'A\\+X'"):
        predictions["A+X"]
    assert "X" not in predictions
    conditions = (Condition(("A_B", "C")), Condition(("A", "B_C")), Condition(("D",)))
    predictions = Predictions(conditions, ("g",), np.array([[1.0], [2.0], [3.0]]), np.zeros(1))
    with pytest.raises(KeyError, match="fits several conditions"):
        predictions["A_B_C"]
    assert predictions["A_B+C"].tolist() == [1.0]
    assert predictions[("A", "B_C")].tolist() == [2.0]


def test_those_with_a_spread_of_cells_unpack_into_two_mappings(predictions):
    """As published: expression, and exp(-mean log-variance). All other iteration gives names."""
    pred, unc = predictions
    assert (pred, unc) == predictions.with_confidence()
    assert list(predictions) == [*predictions] == sorted(predictions) == list(predictions.keys())
    first, _, _, last = predictions
    assert (first, last) == ("A", "ctrl")
    assert list(pred) == list(unc) == list(predictions.keys()) == ["A", "A_B", "A_B_C", "ctrl"]
    assert pred["A_B"].tolist() == predictions["B_A"].tolist()
    assert list(unc.values()) == pytest.approx([0.25] * 4)
    uneven = replace(predictions, cell_sd=np.tile([1.0, 2.0, 4.0], (4, 1)))
    assert uneven.with_confidence()[1]["A"] == pytest.approx(np.exp(-np.log([1, 4, 16]).mean()))
    assert {name: values.tolist() for name, values in predictions.items()} == {
        name: values.tolist() for name, values in dict(predictions).items()
    }
    assert np.array_equal(list(predictions.values()), predictions.expression_UG)


def test_those_without_iterate_over_the_names(predictions):
    plain = replace(predictions, cell_sd=None)
    assert list(plain) == list(plain.keys()) == ["A", "A_B", "A_B_C", "ctrl"]
    two = replace(plain, conditions=plain.conditions[:2])
    first, second = two
    assert (first, second) == ("A", "A_B")
    with pytest.raises(ValueError, match="predicts no spread of cells"):
        plain.with_confidence()
    assert list(plain.items())[1][1].tolist() == [3.0, 4.0, 5.0]


def test_names_have_the_order_in_which_genes_were_listed(predictions):
    plain = replace(predictions, cell_sd=None)
    order = listed_order([["B", "A"], ["A", "ctrl"], "C+B", ["C", "A", "B"], Condition(("D", "C"))])
    assert order == {("A", "B"): ("B", "A"), ("A", "B", "C"): ("C", "A", "B")}
    ordered = replace(plain, gene_order=order)
    assert list(ordered) == list(ordered.keys()) == ["A", "B_A", "C_A_B", "ctrl"]
    assert [values.tolist() for values in ordered.values()] == plain.expression_UG.tolist()
    assert ordered["A_B"].tolist() == ordered["B_A"].tolist() == plain["A_B"].tolist()
    assert ordered.to_frame().index.tolist() == ["A+ctrl", "A+B", "A+B+C", "ctrl"]
    many = tuple("ABCDEF")
    long = replace(plain, conditions=(Condition(many), *plain.conditions[1:]), gene_order={many: many[::-1]})
    assert long["F_E_D_C_B_A"].tolist() == long["A_B_C_D_E_F"].tolist() == [0.0, 1.0, 2.0]


def test_frame_adata_and_top(predictions):
    frame = predictions.to_frame("delta")
    assert frame.loc["A+B"].tolist() == [2.0, 3.0, 4.0]
    assert list(frame.columns) == ["g1", "g2", "g3"]
    adata = predictions.to_adata()
    assert adata.shape == (4, 3)
    assert np.array_equal(adata.layers["delta"], predictions.delta_UG)
    assert adata.obs["n_genes"].tolist() == [1, 2, 3, 0]
    top = predictions.top(2)
    assert top.groupby("condition").size().tolist() == [2, 2, 2, 2]
    assert top[top["condition"] == "A+B"]["gene"].tolist() == ["g3", "g2"]
    with pytest.raises(ValueError, match="unknown values"):
        predictions.to_frame("deltas")
    for wrong in (-1, 0, 2.0, True):
        with pytest.raises(ValueError, match="expected a whole number of at least 1"):
            predictions.top(wrong)
    assert len(predictions.top(99)) == 4 * len(predictions.gene_names)


def test_intervals_stand_beside_changes(predictions):
    """1.96 standard deviations of the change on both sides; none without a prior."""
    top = predictions.top(1).set_index("condition").loc["A+B"]
    half = 0.5 * NormalDist().inv_cdf(0.975)
    assert (top["delta"], top["low"], top["high"]) == pytest.approx((4.0, 4.0 - half, 4.0 + half))
    first, _, pair, *_ = repr(predictions).splitlines()
    assert first == "Predictions of 4 conditions x 3 genes: change over control, 95 % interval"
    assert pair == "  A+B: g3 +4 +- 0.98, g2 +3 +- 0.98, g1 +2 +- 0.98"
    html = predictions._repr_html_()
    assert html.count("95 % interval") == 1
    assert "<th>low</th>" in html
    without = replace(predictions, sd=None)
    assert "low" not in without.top(1)
    assert "interval" not in repr(without)


def test_sd_that_a_model_does_not_predict():
    plain = Predictions((Condition(("A",)),), ("g",), np.zeros((1, 1)), np.zeros(1))
    assert plain.sd is None
    assert plain.cell_sd is None
    assert set(plain.to_adata().layers) - {None} == {"delta"}
    with pytest.raises(ValueError, match="uncertainty=True"):
        plain.to_frame("cell_sd")
    with pytest.raises(ValueError, match="with a prior"):
        plain.to_frame("sd")


def test_logvar_is_the_earlier_name_of_cell_sd(predictions):
    of = predictions
    for former in (lambda: of.logvar("A"), lambda: of.logvar_UG, lambda: of.to_frame("logvar")):
        with pytest.warns(DeprecationWarning, match="use cell_sd"):
            assert np.allclose(former(), np.log(4.0))
