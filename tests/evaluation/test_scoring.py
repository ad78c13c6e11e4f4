"""The one scorer of `GEARS.evaluate` and `compare`: control cells, subgroups, settings, fitted conditions."""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from scipy import sparse
from small_models import network_of

from gears import GEARS, PertData
from gears.conditions import Condition
from gears.data.splits import Split, subgroup_names
from gears.evaluation import compare
from gears.evaluation._fitted import fitted_line, means_in, subgroup_line
from gears.evaluation.baselines import Additive

METRICS = (
    "pearson_delta", "pearson_delta_ref", "mse_top20_de", "discrimination", "mse", "spread", "energy_distance",
)  # fmt: skip
SCORES: dict[str, Any] = {"metrics": METRICS, "n_split_half": 1, "max_cells": 8}
FEW = ["additive", "train_mean", "additive_ridge_coexpression"]
LINES = {"L3": 5, "L1": 9, "L2": 16}
GENES = [f"GX{i:02d}" for i in range(30)]


@pytest.fixture(scope="module")
def lines():
    """Three contexts, out of order and of unequal size: five singles and two pairs in each."""
    rng = np.random.default_rng(5)
    labels = ["ctrl", *(f"{gene}+ctrl" for gene in GENES[:5]), "GX00+GX01", "GX02+GX03"]
    rows, rates = [], []
    for number, (line, n_cells) in enumerate(LINES.items()):
        base = rng.uniform(0.5, 6.0, size=30)
        for label in labels:
            rate = base.copy()
            for gene in (GENES.index(name) for name in label.split("+") if name != "ctrl"):
                rate[gene + 1 : gene + 4] *= 3.0 / (number + 1)
            n = 4 * n_cells if label == "ctrl" else n_cells
            rows += [(label, line)] * n
            rates += [rate] * n
    obs = pd.DataFrame(rows, columns=["condition", "cell_type"], index=[f"c{i}" for i in range(len(rows))])
    var = pd.DataFrame({"gene_name": GENES}, index=[f"E{i}" for i in range(30)])
    return AnnData(sparse.csr_matrix(np.log1p(rng.poisson(np.array(rates))).astype(np.float32)), obs=obs, var=var)


@pytest.fixture
def data(tmp_path, lines, toy_adata, toy_go):
    """Makes the PertData of a screen, plain or of three contexts, with its split."""

    def make(screen: str, **split: Any) -> PertData:
        made = PertData(tmp_path / screen, gene2go=toy_go, default_pert_graph=False)
        if screen == "contexts":
            made.new_data_process("lines", lines.copy(), context_key="cell_type")
        else:
            made.new_data_process("toy", toy_adata)
        made.prepare_split("simulation", seed=1, **split)
        return made

    return make


class Predicting:
    """A method of a comparison that predicts what a model does."""

    def __init__(self, model: GEARS) -> None:
        self.model = model

    def fit(self, screen: Any, split: Split) -> None:
        self.screen = screen

    def predict(self, conditions: Any) -> np.ndarray:
        return self.model.predict(list(conditions), clip=False).expression_UG


@pytest.mark.parametrize(
    ("screen", "shares", "masked"),
    [("plain", None, True), ("plain", (0.6, 0.2, 0.2), False), ("contexts", (0.6, 0.2, 0.2), True)],
)
def test_evaluate_and_compare_give_the_same_table(data, screen, shares, masked):
    pert_data = data(screen, **({} if shares is None else {"control_shares": shares}))
    model = network_of(pert_data, mask_target=masked)
    scores = SCORES | ({"baselines": FEW} if shares else {})
    evaluated = model.evaluate("test", **scores)
    for shown in (pert_data.screen, pert_data.whole_screen):
        method = Predicting(model)
        compared = compare(
            {"gears": method}, shown, pert_data.split, annotation=pert_data.annotation, mask_target=masked, **scores
        )  # fmt: skip
        assert method.screen.content_hash == pert_data.screen.content_hash
        pd.testing.assert_frame_equal(compared.table.drop(columns=["split", "seed"]), evaluated, check_exact=True)
        assert compared.table.attrs["notes"] == evaluated.attrs["notes"]
        assert compared.left_out == evaluated.attrs["left_out"]
    assert len(evaluated) > 50
    assert set(evaluated.get("context", [])) == (set(LINES) if screen == "contexts" else set())


def test_true_changes_count_from_the_control_cells_of_the_part(data):
    pert_data = data("plain", control_shares=(0.6, 0.2, 0.2))
    model = network_of(pert_data)
    table = model.evaluate("test", metrics=["pearson_delta"], n_split_half=0)
    whole = pert_data.whole_screen
    train, test = pert_data.screen.statistics.mean, pert_data.screen_of("test").statistics.mean
    assert np.abs(train[whole.control_id] - test[whole.control_id]).max() > 0.01
    condition = table["condition"].iloc[0]
    predicted = np.maximum(model.predict([condition], clip=False).expression_UG[0], 0)
    true, origin = test[whole.id_of(condition)], test[whole.control_id]
    value = table.loc[(table["condition"] == condition) & (table["method"] == "gears"), "value"].item()
    assert value == pytest.approx(np.corrcoef(predicted - origin, true - origin)[0, 1])


def test_a_held_out_context_gets_the_mean_change_of_the_others_each_once(data):
    screen = data("contexts").screen
    view = screen.setting("L2", "")
    fitted = [Condition.parse(f"GX00+ctrl @ {line}") for line in ("L1", "L3")]
    cells = screen.cells.csr().toarray()

    def mean(label: str) -> np.ndarray:
        return cells[screen.cell_condition == screen.id_of(label)].astype(np.float64).mean(axis=0)

    changes = [mean(f"GX00+ctrl @ {line}") - mean(f"ctrl @ {line}") for line in ("L1", "L3")]
    expected = mean("ctrl @ L2") + (changes[0] + changes[1]) / 2
    means = means_in(screen, view, fitted)
    assert [condition.name for condition in means.train] == ["GX00+ctrl"]
    np.testing.assert_allclose(means.mean_CG[means.train_ids[0]], expected, atol=1e-6)
    np.testing.assert_allclose(means.reference_mean(), expected, atol=1e-6)
    # fitted in the context itself, its measured mean counts and the others' do not
    here = means_in(screen, view, [*fitted, Condition.parse("GX00+ctrl @ L2")])
    np.testing.assert_allclose(here.mean_CG[here.train_ids[0]], mean("GX00+ctrl @ L2"), atol=1e-6)


class Recording(Additive):
    """A baseline that keeps the conditions it was fitted to."""

    given: tuple[Condition, ...] = ()

    def _fit(self, means: Any) -> None:
        self.given = means.train
        super()._fit(means)


class Refitted(Predicting):
    """A method that says that it was fitted to validation conditions as well."""

    fitted_parts = ("train", "val")


@pytest.mark.parametrize("refitted", [False, True])
def test_all_methods_are_fitted_to_the_same_conditions(data, refitted, monkeypatch):
    """Counted by a baseline that records what it is given, in `compare` and in `evaluate`."""
    pert_data = data("plain")
    split = pert_data.split
    parts = {part: [c for c in split.conditions(part) if not c.is_control] for part in ("train", "val")}
    expected = set(parts["train"]) | (set(parts["val"]) if refitted else set())
    assert parts["val"]
    model = network_of(pert_data)
    model.parts = dataclasses.replace(model.parts, fitted_parts=("train", "val") if refitted else ("train",))
    recording = Recording()
    method = (Refitted if refitted else Predicting)(model)
    few: dict[str, Any] = {"baselines": ["additive", "train_mean"], "metrics": ["mse", "pearson_delta_ref"]}
    compared = compare({"gears": method, "mine": recording}, pert_data.screen, split, n_split_half=0, **few)
    assert set(recording.given) == expected
    assert len(recording.given) == len(expected)
    assert set(compared.runs["n_train"]) == {len(expected)}

    fits = []
    monkeypatch.setattr(Additive, "_fit", lambda self, means, fit=Additive._fit: (fits.append(means), fit(self, means)))
    evaluated = model.evaluate("test", n_split_half=0, **few)
    assert [set(means.train) for means in fits] == [expected]
    n_train, n_val = len(parts["train"]), len(parts["val"])
    validation = f" and {n_val} validation" if refitted else ""
    line = f"all methods fitted to {n_train} training{validation} conditions"
    assert evaluated.attrs["notes"][0] == compared.table.attrs["notes"][0] == line
    # the train mean is the reference O of the same conditions
    for table in (evaluated, compared.table):
        rows = (table["method"] == "train_mean") & (table["metric"] == "pearson_delta_ref")
        assert table.loc[rows, "value"].isna().all()


def test_the_notes_name_methods_fitted_otherwise_and_subgroups_named_otherwise():
    both = [{"train": 24, "val": 4}]
    counts = {"gears": both, "mine": [{"train": 24}], "additive": both}
    assert fitted_line(counts) == (
        "gears, additive fitted to 24 training and 4 validation conditions; mine fitted to 24 training conditions"
    )
    assert fitted_line({"a": [{"train": 1}]}) == "a fitted to 1 training condition"
    parts = {"train": ("ctrl", "A+ctrl"), "val": ("B+ctrl",), "test": ("A+B", "C+ctrl")}
    published = {"test_subgroup": {"combo_seen2": ["A+B"], "unseen_single": ["C+ctrl"]}}
    split = Split("simulation", 1, {}, parts, published)
    conditions, fitted = split.conditions("test"), [Condition.parse("A+ctrl")]
    assert subgroup_line(split, "test", conditions, fitted) == (
        "1 of 2 subgroup labels differ from the split file's (docs/screens.md), such as A+B combo_seen1, "
        "there combo_seen2"
    )
    assert subgroup_line(split, "test", conditions, [*fitted, Condition.parse("B+ctrl")]) is None
    fitted = [Condition.parse(label) for label in ("A+ctrl", "B+C")]
    conditions = [Condition.parse(c) for c in ("B+ctrl", "D+ctrl", "A+B", "A+D", "D+E", "A+B+D", "ctrl")]
    assert subgroup_names(conditions, fitted) == [
        "seen_single", "unseen_single", "combo_seen2", "combo_seen1", "combo_seen0", "combo_seen2_of_3", "ctrl",
    ]  # fmt: skip


def test_subgroups_count_genes_of_the_fitted_conditions(data):
    pert_data = data("plain")
    model = network_of(pert_data)
    for fitted_parts in (("train",), ("train", "val")):
        model.parts = dataclasses.replace(model.parts, fitted_parts=fitted_parts)
        seen = {gene for condition in model.parts.fitted_conditions() for gene in condition.genes}
        table = model.evaluate("test", metrics=["mse"], baselines=["no_change"], n_split_half=0)
        table = table.drop_duplicates("condition")
        adata = model.predict(table["condition"].tolist()).to_adata()
        assert table["subgroup"].tolist() == adata.obs["subgroup"].tolist()
        for label, name in zip(table["condition"], table["subgroup"], strict=True):
            genes = Condition.parse(label).genes
            n_seen = sum(gene in seen for gene in genes)
            single = "seen_single" if n_seen else "unseen_single"
            assert name == (f"combo_seen{n_seen}" if len(genes) == 2 else single)
        known = [
            condition.name in set(adata.obs_names[adata.obs["trained"]])
            for condition in model.parts.fitted_conditions()
        ]
        assert not any(known)  # no test condition is among them
