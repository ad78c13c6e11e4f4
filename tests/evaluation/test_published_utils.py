"""The published helpers for labels and correlations."""

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData

from gears.utils import (
    filter_pert_in_go,
    get_genes_from_perts,
    get_mean_control,
    np_pearson_cor,
    parse_any_pert,
    parse_combo_pert,
    parse_single_pert,
    print_sys,
)


def test_labels_are_parsed_in_their_own_order():
    assert parse_single_pert("A+ctrl") == parse_single_pert(" ctrl + A ") == "A"
    assert parse_combo_pert("B+A") == ("B", "A")
    assert parse_any_pert("C+ctrl") == ["C"]
    assert parse_any_pert("CTRL1+ctrlX") == ["CTRL1", "ctrlX"]  # the control is a token, never a substring
    assert get_genes_from_perts(["B+A", "ctrl", "A+ctrl"]) == ["A", "B"]
    assert get_genes_from_perts("B+ctrl") == ["B"]


def test_wrong_number_of_genes_is_named():
    with pytest.raises(ValueError, match="one perturbed gene"):
        parse_single_pert("A+B")
    with pytest.raises(ValueError, match="two perturbed genes"):
        parse_combo_pert("A+ctrl")


def test_conditions_within_the_graph():
    assert filter_pert_in_go("A+ctrl", ["A"])
    assert filter_pert_in_go("ctrl", [])
    assert not filter_pert_in_go("A+B", ["A"])


def test_mean_control():
    adata = AnnData(
        np.array([[1.0, 2], [3, 4], [9, 9]]),
        pd.DataFrame({"condition": ["ctrl", "ctrl", "A+ctrl"]}, list("abc")),
    )
    assert get_mean_control(adata).tolist() == [2, 3]
    with pytest.raises(ValueError, match="no control cells"):
        get_mean_control(adata[2:])


def test_correlation_of_columns():
    x = np.array([[1.0, 1], [2, 1], [4, 1]])
    r = np_pearson_cor(x, np.array([2.0, 4, 8]))
    assert r[0, 0] == pytest.approx(1)
    assert np.isnan(r[1, 0])


def test_lines_go_to_stderr(capsys):
    print_sys("a line")
    assert capsys.readouterr() == ("", "a line\n")
