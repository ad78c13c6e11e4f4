"""Several methods, seeds and splits at once; what is written of them."""

import json
import logging
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from anndata import read_h5ad

from gears import PertData
from gears.conditions import Condition
from gears.data.splits import folds
from gears.evaluation import Truth, compare, make_baseline, verdict_table
from gears.evaluation.baselines import Additive, NoChange
from gears.evaluation.cell_eval import write_cell_eval_pair
from gears.prediction.predictions import Predictions
from gears.report import Profiles, write_report
from gears.report._page import shown_rows

FAST = {"n_split_half": 1, "metrics": ["discrimination_ref", "relative_error", "mse", "spread"]}
FEW = {"baselines": ["no_change", "train_mean", "additive"], **FAST}


class Noisy:
    """The true means with noise of a seed: a method whose scores are known to be good."""

    def __init__(self, seed: int = 0, size: float = 0.001) -> None:
        self.seed, self.size = seed, size

    def fit(self, screen, split):
        self.screen = screen

    def predict(self, conditions):
        rng = np.random.default_rng(self.seed)
        mean = np.array([self.screen.statistics.mean[self.screen.id_of(c)] for c in conditions])
        return mean + rng.normal(0, self.size, mean.shape)


class Refusing(Noisy):
    def predict(self, conditions):
        msg = "this one knows no <gene>"
        raise ValueError(msg)


def test_folds_seeds_and_models_in_one_tidy_table(small_data):
    splits = list(folds(small_data.screen, 3, repeats=2))
    result = compare({"noisy": Noisy, "same": lambda seed: Additive()}, small_data.screen, splits, seeds=[1, 2], **FEW)
    assert list(result.table.columns[:8]) == [
        "split", "seed", "condition", "subgroup", "n_cells", "method", "metric", "value",
    ]  # fmt: skip
    assert result.table["split"].unique().tolist() == [f"repeat {r} fold {f}" for r in (0, 1) for f in range(3)]
    single = result.table[(result.table["metric"] == "mse")]
    assert single.groupby("method").size().to_dict() == {
        "noisy": 18 * 2 * 2, "same": 18 * 2 * 2, "no_change": 18 * 2, "train_mean": 18 * 2, "additive": 18 * 2,
    }  # fmt: skip
    noisy = single[single["method"] == "noisy"].set_index(["split", "condition", "seed"])["value"]
    assert not np.allclose(noisy.xs(1, level="seed"), noisy.xs(2, level="seed"))
    summary = result.summary().set_index(["subgroup", "method", "metric"])
    assert summary.loc[("all", "noisy", "mse"), "n_conditions"] == 18
    assert summary.loc[("all", "same", "mse"), "mean"] == pytest.approx(summary.loc[("all", "additive", "mse"), "mean"])
    # exact predictions are better than every baseline; a tie is no defeat
    outcomes = verdict_table(result.table, method="noisy").set_index("metric")["verdict"]
    assert outcomes.to_dict() == {"discrimination_ref": "better", "relative_error": "better"}
    tied = verdict_table(result.table, method="same").set_index("metric")
    assert set(tied["verdict"]) == {"not distinguishable"}
    assert result.verdict("same").startswith("No better and no worse")
    differences = result.differences("same").set_index(["subgroup", "metric", "against"])
    assert differences.loc[("all", "mse", "additive"), "difference"] == pytest.approx(0)
    assert differences.loc[("all", "mse", "noisy"), "better"] == "other"
    costs = result.costs().set_index("method")
    assert costs.loc["noisy", "runs"] == 12
    assert (result.runs[["seconds", "cpu_seconds"]] >= 0).all().all()
    assert (result.runs["peak_mb"] > 10).all()


def test_baselines_alone_on_one_split_are_saved_as_tables(small_data, tmp_path):
    result = compare({}, small_data.screen, small_data.split, **FEW)
    assert set(result.table["method"]) == set(FEW["baselines"])
    assert result.verdict("additive")
    assert result.models == ()
    assert set(result.save(tmp_path / "saved")) == {"table", "summary", "differences", "json"}
    assert sorted(path.suffix for path in (tmp_path / "saved").iterdir()) == [".csv", ".csv", ".csv", ".json"]


def test_what_cannot_be_fitted_is_left_out_with_its_reason(small_data, caplog):
    with caplog.at_level(logging.WARNING, logger="gears"):
        result = compare({"noisy": Noisy(), "bad": Refusing}, small_data.screen, {"mine": small_data.split}, **FEW)
    assert result.left_out == {"bad": "this one knows no <gene>"}
    assert "bad is excluded" in caplog.text
    assert set(result.table["split"]) == {"mine"}


def test_bad_calls_are_named(small_data):
    cases = [
        (({"additive": Noisy()}, small_data.split), {}, "share names: additive"),
        (({}, []), {}, "no split"),
        (({}, small_data.split), {"part": "tset"}, "did you mean 'test'"),
        (({}, small_data.split), {"metrics": ["spread"]}, "value per condition"),
        (({}, small_data.split), {"metrics": ["msee"]}, "did you mean 'mse'"),
        (({}, small_data.split), {"baselines": ["aditive"]}, "did you mean 'additive'"),
        (({}, small_data.split), {"n_split_half": -1}, "n_split_half"),
        (({"a": Noisy()}, small_data.split), {"seeds": [1]}, "one object"),
    ]
    for (models, splits), options, message in cases:
        with pytest.raises(ValueError, match=message):
            compare(models, small_data.screen, splits, **options)
    with pytest.raises(TypeError, match="fit and predict"):
        compare({"a": 3}, small_data.screen, small_data.split)

    class Wrong(Noisy):
        def predict(self, conditions):
            return np.zeros((1, 2))

    left_out = compare({"wrong": Wrong}, small_data.screen, small_data.split, **FEW).left_out
    assert "expected (" in left_out["wrong"]


class Page(HTMLParser):
    """Texts of cells and of the first line, attributes that refer to something, and whether tags are balanced."""

    VOID = ("meta", "img", "br", "wbr")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.texts: list[str] = []
        self.values: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        given = dict(attrs)
        self.sources += [value for key, value in given.items() if key in ("src", "href")]
        if "data-value" in given:
            self.values.append(given["data-value"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script", "title") and data.strip():
            self.texts.append(data.strip())


@pytest.fixture(scope="module")
def written(small_data, tmp_path_factory):
    models = {"<b>bad</b>": NoChange, "fine": Noisy}
    result = compare(models, small_data.screen, small_data.split, **FEW)
    truth = Truth.of(small_data.screen, small_data.split.conditions("test"), small_data.split.conditions("train"))
    predictions = {
        name: make_baseline(name).fit(small_data.screen, small_data.split).predict(truth.conditions)
        for name in ("no_change", "additive")
    }
    paths = write_report(
        result.table,
        tmp_path_factory.mktemp("report"),
        title="A & B",
        models=result.models,
        runs=result.runs,
        left_out={"<i>": "why & how"},
        profiles=Profiles(truth, predictions, small_data.screen.gene_names),
        details={"screen": "<small>"},
    )
    return result.table, paths


def test_page_is_whole_refers_to_nothing_outside_and_escapes_what_comes_from_data(written):
    text = written[1]["page"].read_text()
    page = Page()
    page.feed(text)
    assert page.open == []
    assert all(source.startswith(("#", "data:image/png;base64,")) for source in page.sources)
    assert len([source for source in page.sources if source.startswith("data:")]) >= 3
    assert not [raw for raw in ("<b>bad", "<i>", "<small>&", "A & B<", "http://", "https://") if raw in text]
    for words in ("&lt;b&gt;bad&lt;/b&gt;", "why &amp; how", "Cost of a fit with its prediction"):
        assert words in text
    # a baseline is better; weak references are marked and explained
    (said,) = [text for text in page.texts if text.startswith("<b>bad</b>: Too few conditions to say (8; 10 needed)")]
    assert "a baseline is ahead on 2 of" in said
    assert "additive~" in page.texts
    assert [text for text in page.texts if text.endswith("not seen alone. A weak reference (~).")]


def test_csv_and_json_say_the_same_and_figures_are_png_and_svg(written):
    table, paths = written
    again = pd.read_csv(paths["table"])
    again["reason"] = again["reason"].fillna("")  # none
    pd.testing.assert_frame_equal(again.drop(columns="seed"), table.drop(columns="seed"), check_dtype=False)
    whole = json.loads(paths["json"].read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert len(whole["table"]) == len(table)
    assert whole["left_out"] == {"<i>": "why & how"}
    assert set(whole["verdicts"]) == {"<b>bad</b>", "fine"}
    summary = pd.read_csv(paths["summary"])
    assert summary["mean"].notna().sum() == sum(row["mean"] is not None for row in whole["summary"])
    assert set(pd.read_csv(paths["differences"])["model"]) == {"<b>bad</b>", "fine"}
    names = [name for name in paths if name.endswith((".png", ".svg"))]
    assert {"verdict.png", "verdict.svg", "conditions.png", "changes.png", "top_de_1.svg"} <= set(names)
    for name in names:
        assert paths[name].read_bytes().startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")


def test_the_report_shows_the_best_a_typical_and_the_worst_condition(small_data):
    truth = Truth.of(small_data.screen, small_data.split.conditions("test"), small_data.split.conditions("train"))
    noise = np.random.default_rng(0).standard_normal(truth.mean_UG.shape)
    wrong_U = np.linspace(0.0, 1.0, len(truth.conditions))
    predicted_UG = truth.mean_UG + wrong_U[:, None] * noise
    chosen = shown_rows(Profiles(truth, {"model": predicted_UG}, small_data.screen.gene_names))
    assert list(chosen.values()) == ["best predicted", "typical", "worst predicted"]
    assert next(iter(chosen)) == 0
    name = truth.conditions[1].name
    assert shown_rows(Profiles(truth, {"model": predicted_UG}, small_data.screen.gene_names, [name])) == {1: ""}


def test_pair_holds_the_same_controls_and_cells_with_the_predicted_means(tmp_path, toy_adata, toy_go):
    data = PertData(tmp_path / "data", gene2go=toy_go, default_pert_graph=False)
    data.new_data_process("toy", toy_adata)
    conditions = ["GX00+ctrl", "GX00+GX01"]
    predicted = np.abs(np.random.default_rng(0).normal(0.8, 0.6, (2, 30)))
    paths = write_cell_eval_pair(tmp_path / "pair", predicted, conditions, data.screen)
    assert [path.name for path in paths] == ["predicted.h5ad", "real.h5ad"]
    pair = [read_h5ad(path) for path in paths]
    for adata in pair:
        assert adata.obs["target"].value_counts().to_dict() == {"non-targeting": 60, "GX00": 12, "GX00+GX01": 12}
        assert list(adata.var_names) == data.screen.gene_names
        assert adata.X.min() >= 0
    controls = [adata[adata.obs["target"] == "non-targeting"].X.toarray() for adata in pair]
    np.testing.assert_array_equal(controls[0], controls[1])
    for row, name in enumerate(["GX00", "GX00+GX01"]):
        cells = [adata[adata.obs["target"] == name].X.toarray().astype(float) for adata in pair]
        np.testing.assert_allclose(cells[0].mean(axis=0), predicted[row], rtol=1e-5, atol=1e-6)
        true = data.screen.statistics.mean[data.screen.id_of(conditions[row])]
        np.testing.assert_allclose(cells[1].mean(axis=0), true, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="clip=True"):
        write_cell_eval_pair(tmp_path / "other", -predicted, conditions, data.screen)
    with pytest.raises(ValueError, match="one row for each of 1"):
        write_cell_eval_pair(tmp_path / "other", predicted, conditions[:1], data.screen)
    with pytest.raises(ValueError, match="needs conditions"):
        write_cell_eval_pair(tmp_path / "other", predicted, None, data.screen)
    genes, labels = tuple(data.screen.gene_names), tuple(map(Condition.parse, conditions))
    swapped = Predictions(labels, (genes[1], genes[0], *genes[2:]), predicted, np.zeros(30))
    with pytest.raises(ValueError, match="the same genes in another order"):
        write_cell_eval_pair(tmp_path / "other", swapped, None, data.screen)
    assert not (tmp_path / "other").exists()
    again = write_cell_eval_pair(
        tmp_path / "again", Predictions(labels, genes, predicted, np.zeros(30)), None, data.screen
    )
    np.testing.assert_array_equal(read_h5ad(again[0]).X.toarray(), pair[0].X.toarray())
