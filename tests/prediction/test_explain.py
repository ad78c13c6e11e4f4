"""What users see of explanations: tables that add up, texts, contexts, saved models, the command, and few cells."""

import dataclasses
import json
import logging

import numpy as np
import pytest
from small_models import trained_on

from gears import GEARS, PertData, PerturbationModel, simulated_screen
from gears.cli.main import main
from gears.conditions import Condition
from gears.design import hits

SCREENS = {
    "pairs": {"n_genes": 60, "n_singles": 16, "n_pairs": 14, "n_triples": 4},
    "contexts": {"n_genes": 50, "n_singles": 10, "n_pairs": 6, "cell_types": 2},
}


@pytest.fixture(scope="module", params=SCREENS)
def model(request, tmp_path_factory):
    adata, _ = simulated_screen(cells_per_condition=20, n_control=100, seed=4, **SCREENS[request.param])
    data = PertData(tmp_path_factory.mktemp("explain"), default_pert_graph=False)
    keys = {"context_key": "cell_type"} if request.param == "contexts" else {}
    data.new_data_process("screen", adata, **keys)
    data.prepare_split("simulation", seed=1)
    return trained_on(data)


def some(model) -> list[Condition]:
    split = model.pert_data.split
    return [one for part in split.parts for one in split.conditions(part)[:6] if not one.is_control]


def test_rows_add_up_to_the_prediction_and_shares_to_one(model, tmp_path):
    model.save_model(tmp_path / "model")
    for one in (model, GEARS.from_pretrained(tmp_path / "model", device="cpu")):
        for condition in some(model):
            found = one.explain(condition, n=5)
            predicted = one.predict([condition]).delta_UG[0]
            np.testing.assert_allclose(found.changes.sum().to_numpy(), predicted, atol=1e-6)
            np.testing.assert_allclose(found.prediction, predicted)
            assert found.table["share"].sum() == pytest.approx(1, abs=1e-5)
            assert (found.table["part"] == "condition").sum() <= 5
            assert found.groups.sum() == pytest.approx(1, abs=1e-5)


def test_genes_are_chosen_the_text_names_what_is_known_and_the_command_prints_it(model, tmp_path, capsys):
    condition, genes = some(model)[-1], model.gene_list[3:5]
    chosen, whole = model.explain(condition, genes, n=1000), model.explain(condition, n=1000)
    assert list(chosen.prediction.index) == genes
    np.testing.assert_allclose(chosen.changes.sum(), whole.prediction[genes], atol=1e-6)
    train = next(one for one in model.pert_data.split.conditions("train") if not one.is_control)
    found = model.explain(train, n=3)
    assert found.text.startswith(f"{train.name}: ")
    assert "its own measurement" in found.text
    first = found.table.iloc[0]
    assert (first["condition"], first["similarity"], first["group"]) == (train.name, "measured", "its own measurement")
    assert 0 < first["weight"] <= 1
    assert str(found).startswith(found.text)
    for wrong, words in ((("ctrl",), "control has no change to explain"), ((condition, "NOGENE"), "NOGENE cannot be")):
        with pytest.raises(ValueError, match=words):
            model.explain(*wrong)
    model.save_model(tmp_path / "model")
    output = ["--n", "3", "--json", "--output", str(tmp_path / "a.csv")]
    main(["explain", str(tmp_path / "model"), train.name, *output])
    printed = json.loads(capsys.readouterr().out)
    assert printed["text"] == found.text
    assert len(printed["rows"]) == len(found.table) == len((tmp_path / "a.csv").read_text().splitlines()) - 1


def test_a_gene_of_which_nothing_is_known_rests_on_what_all_share(tmp_path):
    adata, _ = simulated_screen(n_genes=40, n_singles=14, n_pairs=0, cells_per_condition=20, seed=1)
    labels = adata.obs["condition"].astype(str)
    _, *names = dict.fromkeys(labels[labels != "ctrl"])
    adata.obs["condition"] = labels.where(labels.isin(["ctrl", *names]), "NOSUCH9+ctrl")
    data = PertData(tmp_path, default_pert_graph=False)
    data.new_data_process("screen", adata)
    parts = {"train": ["ctrl", *names[2:]], "val": names[:2], "test": ["NOSUCH9+ctrl"]}
    data.prepare_split("custom", split_dict=parts)
    model = trained_on(data)
    found = model.explain("NOSUCH9")
    assert model.predict(["NOSUCH9"]).informed_by == ["nothing"]
    assert not found.table["part"].isin(["condition", "others"]).any()
    np.testing.assert_allclose(found.changes.sum(), model.predict(["NOSUCH9"]).delta_UG[0], atol=1e-6)


def test_contexts_are_told_apart(model):
    if model.parts.contexts is None:
        return
    here = next(one for one in model.pert_data.split.conditions("test") if one.context)
    table = model.explain(here, n=1000).table
    rows = table[(table["part"] == "condition") & (table["similarity"] != "measured")]
    other = {context for context in model.parts.contexts.contexts if context != here.context}.pop()
    is_there = rows["condition"].str.endswith(f"@ {other}")
    assert rows["group"][is_there].str.endswith(f" in {other}").all()
    assert not rows["group"][~is_there].str.endswith(f" in {other}").any()
    assert is_there.any()
    with pytest.raises(ValueError, match="is predicted in 2 contexts or types"):
        model.explain(here.plain)


def test_predictions_say_how_many_conditions_they_rest_on(model):
    conditions = some(model)
    table = model.predict(conditions).rests_on()
    n_fitted = len(model.parts.prior.basis.sets)
    assert table["n_effective"].between(1, n_fitted).all()
    explained = [model.explain(one).n_effective for one in conditions]
    np.testing.assert_allclose(table["n_effective"], explained)
    assert table["most_important"].str.count(",").eq(2).all()
    obs = model.predict(["ctrl", *conditions[:1]]).to_adata().obs
    assert np.isnan(obs["n_effective"].iloc[0])
    assert obs["n_effective"].iloc[-1] == pytest.approx(explained[0])


def test_one_condition_of_few_cells_is_reported(caplog):
    adata, _ = simulated_screen(n_genes=40, n_singles=14, n_pairs=0, cells_per_condition=30, effect_size=2.0, seed=1)
    rare = adata.obs["condition"].astype(str).value_counts().drop("ctrl").index[0]
    at = np.flatnonzero(adata.obs["condition"] == rare)
    few = adata[np.setdiff1d(np.arange(adata.n_obs), at[4:])].copy()
    model = PerturbationModel(few, device="cpu", split="no_test", default_pert_graph=False, verbose=False)
    model.train(epochs=0, verbose=False, evaluate_test=False)
    with caplog.at_level(logging.WARNING):
        model.predictions([rare])
    assert "1 prediction rests on one condition of fewer than 10 cells" in caplog.text
    assert f"({rare}, 4 cells)" in caplog.text


def test_a_model_that_keeps_nothing_says_so(model):
    other = GEARS(model.pert_data, device="cpu")
    other.parts = dataclasses.replace(model.parts, prior=dataclasses.replace(model.parts.prior, basis=None))
    with pytest.raises(ValueError, match="does not keep the measured changes"):
        other.explain(some(model)[0])
    assert other.predict(some(model)[:1]).rests_on().empty
    other.parts = dataclasses.replace(model.parts, prior=None)
    with pytest.raises(ValueError, match="only predictions of a prior"):
        other.explain(some(model)[0])


def test_probabilities_of_change_are_those_of_hits(model):
    conditions = [one for one in some(model) if len(one) > 0]
    predictions, gene = model.predict(conditions), model.gene_list[7]
    p = predictions.p_changed(0.2)
    assert p.shape == predictions.delta_UG.shape
    names = [one.name for one in conditions if gene not in one.genes]
    both = [hits(model, names, readout=gene, threshold=sign * 0.2) for sign in (1, -1)] if names else []
    known = set(both[0]["condition"]) if both else set()  # measured ones are no candidates
    for name in known:
        total = sum(table.set_index("condition")["probability"][name] for table in both)
        assert p.loc[name, gene] == pytest.approx(total)
    adata = model.predict(["ctrl", *conditions]).to_adata()
    np.testing.assert_allclose(adata.layers["p_changed"][-1], predictions.p_changed().iloc[-1])
    assert (p.to_numpy() <= predictions.p_changed(0.1).to_numpy() + 1e-12).all()
    assert (adata.layers["p_changed"][adata.obs["n_genes"] == 0] == 0).all()
    with pytest.raises(ValueError, match="threshold is 0"):
        predictions.p_changed(0)
