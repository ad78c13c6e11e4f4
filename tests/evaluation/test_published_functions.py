"""The published functions and the registered metrics: against reference values, and worked out by hand."""

import json
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData, read_h5ad
from scipy import sparse
from scipy.stats import ttest_ind_from_stats

from gears import PertData
from gears.evaluation import Truth, condition_metrics
from gears.inference import compute_metrics, deeper_analysis, evaluate, non_dropout_analysis, non_zero_analysis
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

# the reference names these as depending on ranks that are not shipped
NOT_SHIPPED = ("frac_correct_direction_20_nonzero", "top200_de", "frac_correct_direction_200")


@dataclass
class Reference:
    adata: AnnData
    results: dict[str, np.ndarray]
    values: dict


def ranking(adata: AnnData, label: str) -> list[str]:
    """Genes by absolute Welch's t rounded to 9 digits, then by name."""
    control = adata[adata.obs["condition"] == "ctrl"].X.toarray().astype(np.float64)
    cells = adata[adata.obs["condition"] == label].X.toarray().astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        sides = [(side.mean(0), side.std(0, ddof=1), len(side)) for side in (cells, control)]
        t, _ = ttest_ind_from_stats(*sides[0], *sides[1], equal_var=False)
    size = np.round(np.abs(np.nan_to_num(t)), 9)
    return sorted(adata.var_names, key=lambda gene: (-size[adata.var_names.get_loc(gene)], gene))


@pytest.fixture(scope="module")
def reference(shared):
    values = json.loads((shared / "reference" / "norman_subset_de_and_metrics.json").read_text())
    adata = read_h5ad(shared / "data" / "norman2019_subset.h5ad")
    labels = adata.obs["condition"].astype(str).to_numpy()
    adata.obs["condition_name"] = [f"K562_{label}_1+1" if label != "ctrl" else "K562_ctrl_1" for label in labels]
    for key in ("top_non_dropout_de_20", "top_non_zero_de_20", "non_zeros_gene_idx", "non_dropout_gene_idx"):
        adata.uns[key] = values[key]
    full = {label: ranking(adata, label) for label in values["metrics_input"]}
    for label, genes in full.items():  # the published order of ties is shipped for the first 50
        first = values["rank_genes_groups_cov_all_top50"][f"K562_{label}_1+1"]
        assert genes[:20] == first[:20]
        full[label] = first + [gene for gene in genes if gene not in set(first)]
    adata.uns["rank_genes_groups_cov_all"] = {f"K562_{label}_1+1": genes for label, genes in full.items()}
    chosen = np.isin(labels, list(values["metrics_input"]))
    truth = adata.X[chosen].toarray()
    pert_cat = labels[chosen]
    pred = np.array([values["metrics_input"][label] for label in pert_cat], dtype=np.float32)
    top = np.array([adata.var_names.get_indexer(full[label][:20]) for label in pert_cat])
    results = {
        "pert_cat": pert_cat, "pred": pred, "truth": truth, "pred_de": np.take_along_axis(pred, top, axis=1),
        "truth_de": np.take_along_axis(truth, top, axis=1),
    }  # fmt: skip
    return Reference(adata, results, values)


def compare(found: dict, expected: dict, left_out: tuple[str, ...] = ()) -> None:
    assert set(found) == set(expected)
    for label, scores in expected.items():
        assert set(found[label]) == set(scores)
        kept = [key for key in scores if not any(part in key for part in left_out)]
        np.testing.assert_allclose(
            [found[label][key] for key in kept], [scores[key] for key in kept], atol=1e-6, err_msg=str((label, kept))
        )


@pytest.mark.shared
def test_the_published_values(reference):
    metrics, per_condition = compute_metrics(reference.results)
    compare({"all": metrics}, {"all": reference.values["compute_metrics"]})
    compare(per_condition, reference.values["compute_metrics_per_condition"])
    compare(non_dropout_analysis(reference.adata, reference.results), reference.values["non_dropout_analysis"])
    compare(deeper_analysis(reference.adata, reference.results), reference.values["deeper_analysis"], NOT_SHIPPED)


@pytest.fixture
def small():
    """Two control cells and three cells of A over three genes (var index differs from gene names)."""
    x = np.array([[1, 0, 2], [3, 0, 2], [2, 0, 4], [2, 0, 6], [5, 0, 5]], dtype=np.float32)
    labels = ["ctrl", "ctrl", "A+ctrl", "A+ctrl", "A+ctrl"]
    obs = pd.DataFrame(
        {"condition": labels, "condition_name": ["c_ctrl_1"] * 2 + ["c_A+ctrl_1+1"] * 3}, index=list("vwxyz")
    )
    adata = AnnData(x, obs, pd.DataFrame({"gene_name": ["a", "b", "c"]}, index=["E0", "E1", "E2"]))
    name = "c_A+ctrl_1+1"
    adata.uns = {
        "rank_genes_groups_cov_all": {name: ["E2", "E0", "E1"]},
        "top_non_dropout_de_20": {name: ["E2", "E0", "E1"]},
        "top_non_zero_de_20": {name: ["E2", "E0"]},
        "non_zeros_gene_idx": {name: np.array([0, 2])},
        "non_dropout_gene_idx": {name: np.array([0, 1, 2])},
    }
    pred = np.tile(np.array([1.0, 0.0, 4.0], dtype=np.float32), (5, 1))
    results = {
        "pert_cat": np.array(labels), "pred": pred, "truth": x, "pred_de": pred[:, [2, 0]], "truth_de": x[:, [2, 0]],
    }  # fmt: skip
    return adata, results


def test_compute_metrics_by_hand_and_the_control_has_no_de_score(small):
    metrics, per_condition = compute_metrics(small[1])
    # true means: control (2, 0, 2), A (3, 0, 5)
    assert per_condition["A+ctrl"]["mse"] == pytest.approx((4 + 0 + 1) / 3)
    assert per_condition["A+ctrl"]["mse_de"] == pytest.approx((1 + 4) / 2)
    assert per_condition["ctrl"]["mse"] == pytest.approx((1 + 0 + 4) / 3)
    assert np.isnan(per_condition["ctrl"]["mse_de"])
    assert metrics["mse"] == pytest.approx(5 / 3)
    assert metrics["mse_de"] == pytest.approx(2.5)


def test_deeper_analysis_with_three_genes_by_hand(small):
    scores = deeper_analysis(*small)["A+ctrl"]
    # predicted changes (-1, 0, 2), true changes (1, 0, 3)
    assert scores["frac_correct_direction_all"] == pytest.approx(2 / 3)
    assert scores["frac_correct_direction_20"] == pytest.approx(2 / 3)
    assert scores["frac_correct_direction_20_nonzero"] == pytest.approx(1 / 2)
    assert scores["mse_top20_de"] == pytest.approx(5 / 3)
    assert scores["fold_change_gap_all"] == pytest.approx((1.0 + 0.5) / 2)
    assert "fold_change_gap_upreg_3" not in scores
    # gene c lies within its cells' range (4 to 6), gene a below (2 to 5)
    assert scores["frac_in_range"] == pytest.approx(0.5)
    sigma = np.array([1 / np.sqrt(2 / 3), 2 / np.sqrt(2)])
    assert scores["mean_sigma"] == pytest.approx(sigma.mean())
    assert scores["frac_sigma_below_2"] == 1


def test_list_analyses_by_hand_and_the_control_has_no_lists(small):
    adata, results = small
    scores = non_dropout_analysis(adata, results)
    assert scores["ctrl"] == {}
    assert "frac_in_range" not in deeper_analysis(adata, results)["ctrl"]
    scores = scores["A+ctrl"]
    assert scores["frac_correct_direction_top20_non_dropout"] == pytest.approx(2 / 3)
    assert scores["frac_opposite_direction_non_zero"] == pytest.approx(1 / 2)
    assert scores["frac_0/1_direction_non_dropout"] == 0
    assert scores["mse_top20_de_non_dropout"] == pytest.approx(5 / 3)
    assert non_zero_analysis(adata, results)["A+ctrl"]["mse_top20_de_non_zero"] == pytest.approx(5 / 2)
    del adata.uns["top_non_dropout_de_20"]
    with pytest.raises(KeyError, match="skip_calc_de"):
        non_dropout_analysis(adata, results)


def test_analyses_leave_the_screen_as_it_is_and_take_sparse_input(small):
    adata, results = small
    before = adata.X.copy()
    dense = deeper_analysis(adata, results)
    np.testing.assert_array_equal(adata.X, before)
    adata.X = sparse.csr_matrix(before)
    again = deeper_analysis(adata, results)
    for label, scores in dense.items():
        assert list(again[label]) == list(scores)
        np.testing.assert_allclose(list(again[label].values()), list(scores.values()))


def test_evaluate_takes_any_module_that_is_called_with_a_batch():
    torch = pytest.importorskip("torch")

    class Batch:
        x = torch.tensor([[1.0], [2], [3], [4], [5], [6], [7], [8], [9]])
        y = torch.tensor([[1.0, 1, 1], [2, 2, 2], [3, 3, 3]])
        pert = ("A+B", "ctrl", "B+A")
        de_idx = (np.array([2, 0]), np.array([-1, -1]), np.array([2, 0]))

        def to(self, device):
            return self

    class Network(torch.nn.Module):
        def forward(self, batch):
            assert not self.training
            return batch.x.reshape(3, 3) + 4, batch.y + 100

    results = evaluate([Batch(), Batch()], Network(), True, "cpu")
    assert results["pred"].tolist() == [[5, 6, 7], [8, 9, 10], [11, 12, 13]] * 2
    assert results["logvar"][:3, 0].tolist() == [101, 102, 103]
    assert results["truth_de"][0].tolist() == [1, 1]
    assert np.isnan(results["pred_de"][1]).all()
    assert results["pred_de"][2].tolist() == [13, 11]
    assert results["pert_cat"].tolist() == ["A+B", "ctrl", "B+A"] * 2


# registered metric: (published function, its key)
SHARED = {
    "mse": ("compute_metrics_per_condition", "mse"),
    "mse_top20_de": ("compute_metrics_per_condition", "mse_de"),
    "pearson": ("compute_metrics_per_condition", "pearson"),
    "pearson_delta": ("deeper_analysis", "pearson_delta"),
    "pearson_delta_top20_de": ("deeper_analysis", "pearson_delta_top20_de"),
    "direction_accuracy_top20": ("deeper_analysis", "frac_correct_direction_20"),
    "within_one_sigma_top20": ("deeper_analysis", "frac_sigma_below_1"),
    "mse_top20_de_non_dropout": ("non_dropout_analysis", "mse_top20_de_non_dropout"),
}


@pytest.mark.shared
def test_registered_metrics_give_the_published_values(shared, tmp_path):
    values = json.loads((shared / "reference" / "norman_subset_de_and_metrics.json").read_text())
    data = PertData(tmp_path, default_pert_graph=False)
    data.new_data_process("norman", read_h5ad(shared / "data" / "norman2019_subset.h5ad"))
    conditions = list(values["metrics_input"])
    predicted = np.array([values["metrics_input"][label] for label in conditions], dtype=np.float32)
    truth = Truth.of(data.screen, conditions)
    found = condition_metrics(predicted, truth, list(SHARED))
    for column, (function, key) in enumerate(SHARED.values()):
        expected = [values[function][label][key] for label in conditions]
        np.testing.assert_allclose(found[:, column], expected, atol=1e-6, err_msg=key)


def test_labels_are_parsed_in_their_own_order():
    assert parse_single_pert("A+ctrl") == parse_single_pert(" ctrl + A ") == "A"
    assert parse_combo_pert("B+A") == ("B", "A")
    assert parse_any_pert("C+ctrl") == ["C"]
    assert parse_any_pert("CTRL1+ctrlX") == ["CTRL1", "ctrlX"]  # the control is a token, never a substring
    assert get_genes_from_perts(["B+A", "ctrl", "A+ctrl"]) == ["A", "B"]
    assert get_genes_from_perts("B+ctrl") == ["B"]
    assert filter_pert_in_go("A+ctrl", ["A"])
    assert filter_pert_in_go("ctrl", [])
    assert not filter_pert_in_go("A+B", ["A"])
    with pytest.raises(ValueError, match="one perturbed gene"):
        parse_single_pert("A+B")
    with pytest.raises(ValueError, match="two perturbed genes"):
        parse_combo_pert("A+ctrl")


def test_mean_control_correlation_and_lines(capsys):
    obs = pd.DataFrame({"condition": ["ctrl", "ctrl", "A+ctrl"]}, list("abc"))
    adata = AnnData(np.array([[1.0, 2], [3, 4], [9, 9]]), obs)
    assert get_mean_control(adata).tolist() == [2, 3]
    with pytest.raises(ValueError, match="no control cells"):
        get_mean_control(adata[2:])
    r = np_pearson_cor(np.array([[1.0, 1], [2, 1], [4, 1]]), np.array([2.0, 4, 8]))
    assert r[:, 0] == pytest.approx([1, np.nan], nan_ok=True)
    print_sys("a line")
    assert capsys.readouterr() == ("", "a line\n")
