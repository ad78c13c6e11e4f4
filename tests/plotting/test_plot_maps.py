"""Heat map of changes and map of interactions: each value stands where its names say."""

import math

import numpy as np
import pandas as pd
import pytest

from gears.plotting import delta_heat_map, interaction_map


def labels(axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


@pytest.mark.parametrize("cluster", [False, True])
def test_every_value_stands_at_its_condition_and_gene(cluster, names, conditions, delta_UG):
    ax = delta_heat_map(delta_UG, conditions, names, cluster=cluster, n_genes=6)
    shown = ax.images[0].get_array()
    assert shown.shape == (5, 6)
    plain = ["A", "B", "A+B", "C", "A+C"]
    rows = [plain.index(label) for label in labels(ax.yaxis)]
    columns = [names.index(label) for label in labels(ax.xaxis)]
    np.testing.assert_allclose(shown, delta_UG[np.ix_(rows, columns)])
    assert sorted(columns) == sorted(np.argsort(-delta_UG.std(axis=0))[:6])
    if not cluster:
        assert rows == list(range(5))
        assert (np.diff(delta_UG[:, columns].mean(axis=0)) >= 0).all()


def test_what_falls_has_a_minus(names, conditions, delta_UG):
    ax = delta_heat_map(delta_UG, conditions, names, genes=names, limit=1.0)
    (signs,) = ax.collections
    places = {(int(y), int(x)) for x, y in np.asarray(signs.get_offsets())}
    assert places == {tuple(place) for place in np.argwhere(delta_UG < -0.15).tolist()}
    assert ax.images[0].get_clim() == (-1.0, 1.0)


def test_wrong_heat_maps_are_refused(names, conditions, delta_UG):
    with pytest.raises(ValueError, match=r"delta_UG has shape \(5, 12\); expected one row for each of 4"):
        delta_heat_map(delta_UG, conditions[:4], names)
    with pytest.raises(ValueError, match="11 gene names for 12 genes"):
        delta_heat_map(delta_UG, conditions, names[:11])
    with pytest.raises(ValueError, match="1 gene not among the 12"):
        delta_heat_map(delta_UG, conditions, names, genes=["X"])
    with pytest.raises(ValueError, match="no condition to draw"):
        delta_heat_map(np.zeros((0, 12)), [], names)


def pairs(*rows: tuple[str, str, str, float]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["gene_1", "gene_2", "kind", "strength"])


UPPER = pairs(("A", "B", "synergy", 1.6), ("B", "C", "suppression", 0.5), ("A", "C", "additive", 1.0))
LOWER = pairs(("A", "B", "additive", 1.1), ("B", "D", "synergy", 1.9))


def test_one_table_fills_both_triangles():
    ax = interaction_map(UPPER)
    shown = ax.images[0].get_array().filled(np.nan)
    expected = np.array([[np.nan, 1.6, 1.0], [1.6, np.nan, 0.5], [1.0, 0.5, np.nan]])
    np.testing.assert_allclose(shown, expected)
    assert labels(ax.xaxis) == labels(ax.yaxis) == ["A", "B", "C"]
    signs = sorted((text.get_text(), *text.get_position()) for text in ax.texts)
    assert signs == [("+", 0, 1), ("+", 1, 0), ("\N{MINUS SIGN}", 1, 2), ("\N{MINUS SIGN}", 2, 1)]
    low, high = ax.images[0].get_clim()
    assert (low + high) / 2 == pytest.approx(1.0)  # additive is the middle of the colours


def test_two_tables_have_a_triangle_each():
    ax = interaction_map(UPPER, lower=LOWER, names=("model", "cells"))
    shown = ax.images[0].get_array().filled(np.nan)
    assert (shown[0, 1], shown[1, 0]) == (1.6, 1.1)
    assert math.isnan(shown[1, 3])
    assert shown[3, 1] == 1.9
    assert ax.get_xlabel() == "above the diagonal: model; below: cells"


def test_wrong_tables_are_refused():
    with pytest.raises(ValueError, match=r"lacks kind \(its columns: gene_1, gene_2, strength\); expected"):
        interaction_map(UPPER.drop(columns="kind"))
    with pytest.raises(ValueError, match="unknown score 'strenght'; did you mean 'strength'"):
        interaction_map(UPPER, score="strenght")
    with pytest.raises(ValueError, match="unknown score 'kind'"):
        interaction_map(UPPER, score="kind")
    with pytest.raises(ValueError, match="holds no pair; predict pairs together with both"):
        interaction_map(UPPER.iloc[:0])
