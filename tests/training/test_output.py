"""What a default training prints: few lines that fit a terminal, and one table."""

import html
import logging
import re

import anndata
import pytest
from small_models import network_of

from gears import PertData, PerturbationModel, simulated_screen
from gears.evaluation import DECISIVE, verdict_table

SMALL = {"default_pert_graph": False, "device": "cpu", "network": {"hidden_size": 8}}


@pytest.fixture(scope="module")
def adata():
    return simulated_screen(n_genes=60, n_singles=14, n_pairs=8, cells_per_condition=10, n_control=40, seed=0)[0]


@pytest.mark.parametrize("kind", ["plain", "contexts", pytest.param("papalexi2021_subset", marks=pytest.mark.shared)])
def test_a_default_training_prints_eight_lines_and_a_table_of_twelve(adata, kind, caplog, request):
    if kind.endswith("subset"):
        folder = request.getfixturevalue("shared") / "data"
        adata, options = anndata.read_h5ad(folder / f"{kind}.h5ad"), {"device": "cpu"}
    else:
        adata = adata.copy()
        adata.obs["line"] = ["K562" if cell % 2 else "RPE1" for cell in range(adata.n_obs)]
        options = SMALL | ({"context_key": "line"} if kind == "contexts" else {})
    with caplog.at_level(logging.INFO, logger="gears"):
        result = PerturbationModel(adata, **options).train()
    printed = [line for message in caplog.messages for line in message.splitlines()]
    head = next(row for row, line in enumerate(printed) if line.startswith("metric "))
    lines, table = printed[:head], printed[head:]
    assert len(lines) <= 8
    assert len(table) <= 12
    assert max(map(len, printed)) <= 80
    assert len(set(printed)) == len(printed)
    assert [line.split()[0] for line in table[1 : 1 + len(DECISIVE)]] == list(DECISIVE)
    assert "best baseline" in lines[-1] or "conditions" in lines[-1]  # the verdict
    assert str(result).splitlines()[: len(table) + 1] == [lines[-1], *table]


@pytest.fixture(scope="module")
def data(adata, tmp_path_factory):
    data = PertData(tmp_path_factory.mktemp("output"), default_pert_graph=False)
    data.new_data_process("screen", adata.copy())
    return data


def trained(data, test, **options):
    """A model whose split tests these conditions; its prior is refitted to all others."""
    others = [label for label in data.screen.labels if label not in {*test, "ctrl"}]
    parts = {"train": ["ctrl", *others[2:]], "val": others[:2], "test": list(test)}
    data.prepare_split("custom", seed=1, split_dict=parts)
    model = network_of(data)
    return model, model.train(**options)


@pytest.fixture(scope="module")
def few(data):
    perturbed = [label for label in data.screen.labels if label != "ctrl"]
    return trained(data, perturbed[:3], verbose=False)


def test_with_few_test_conditions_all_are_predicted_without_themselves(data, few):
    """Scores are those of a prior and baselines fitted to the other four folds, for every condition once."""
    model, result = few
    table = result.table
    perturbed = [label for label in data.screen.labels if label != "ctrl"]
    assert set(table["condition"]) == set(perturbed)
    assert (verdict_table(table)["n_conditions"].max(), table.attrs["folds"]) == (22, 5)
    held_out = perturbed[3::5]
    other, _ = trained(data, held_out, evaluate_test=False, verbose=False)
    expected = other.evaluate("test", n_split_half=0)
    for method in ("gears", "additive_ridge", "train_mean"):
        for metric in ("mse", "interval_score_90", "pearson_delta_ref"):
            rows = [
                one[(one["method"] == method) & (one["metric"] == metric) & one["condition"].isin(held_out)]
                for one in (table, expected)
            ]
            values = [one.set_index("condition")["value"].reindex(held_out).tolist() for one in rows]
            assert values[0] == pytest.approx(values[1], rel=1e-5, nan_ok=True), (method, metric)
    data.prepare_split("custom", seed=1, split_dict=model.parts.split.parts)
    assert set(model.evaluate("test")["condition"]) == set(perturbed[:3])
    assert set(model.evaluate(n_split_half=0)["condition"]) == set(perturbed)


def test_the_closing_table_says_how_many_and_a_notebook_shows_columns(few):
    lines = str(few[1]).splitlines()
    assert "22 in 5 folds" in lines[0]
    assert "3 test conditions: too few, so priors fitted in folds predict all 22" in lines
    assert "stricter, held out as in the split: model.cross_validate()" in lines
    text = few[1]._repr_html_()
    tables = re.findall(r"<table.*?</table>", text, flags=re.DOTALL)
    assert len(tables) == 1
    heads = [html.unescape(head) for head in re.findall(r"<th>([^<]*)</th>", tables[0])]
    assert heads[:5] == ["metric", "gears", "best baseline", "mean", "95 % of gain"]
    assert heads[-1] == "verdict"
    assert tables[0].count("<tr") == 1 + len(DECISIVE)
    assert "model.cross_validate()" in text
    assert "<pre" not in text


def test_a_network_that_is_used_is_not_in_folds(data):
    perturbed = [label for label in data.screen.labels if label != "ctrl"]
    model, result = trained(data, perturbed[:3], epochs=1, prior=None, verbose=False)
    assert set(result.table["condition"]) == set(perturbed[:3])
    assert str(result).startswith("Too few conditions to say (3; 10 needed)")
    with pytest.raises(ValueError, match="predictions come from the prior alone; use cross_validate"):
        model.evaluate("folds")


def test_in_a_notebook_lines_go_to_stdout_and_the_table_is_not_logged(data, monkeypatch, capsys):
    perturbed = [label for label in data.screen.labels if label != "ctrl"]
    monkeypatch.setattr("gears.distributed._log.in_notebook", lambda: True)
    monkeypatch.setattr("gears.gears.in_notebook", lambda: True)
    monkeypatch.setattr("gears.training._fitting.in_notebook", lambda: True)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    model, result = trained(data, perturbed[:10])
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.splitlines()[-1] == str(result).splitlines()[0]
    assert "pearson_delta_ref" not in shown.out
    comparison = model.cross_validate(folds=2)
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1] == str(comparison).splitlines()[0]
    assert "pearson_delta_ref" not in shown


def test_a_level_that_the_user_has_set_stays(data, monkeypatch, capsys):
    perturbed = [label for label in data.screen.labels if label != "ctrl"]
    logger = logging.getLogger("gears")
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    logger.setLevel(logging.ERROR)
    trained(data, perturbed[:10], evaluate_test=False)
    assert capsys.readouterr().err == ""
    logger.setLevel(logging.NOTSET)
    trained(data, perturbed[:10], evaluate_test=False)
    assert "prior fitted" in capsys.readouterr().err
