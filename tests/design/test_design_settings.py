"""Models of screens with contexts: one setting is designed with, several are an error with the remedy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from anndata import AnnData
from design_models import trained

from gears import PertData
from gears.design import hits, interactions_table, power, reverse, suggest


def prepared(folder: Path, adata: AnnData, toy_go: dict) -> PertData:
    data = PertData(folder, gene2go=toy_go)
    data.new_data_process(
        "lines", adata, context_key="cell_type", batch_key=["batch"], perturbation_type_key="guide"
    )
    data.prepare_split("simulation", seed=1)
    return data


def test_several_settings_are_an_error_that_names_them_and_the_remedy(
    tmp_path: Path, divided: AnnData, toy_go: dict
) -> None:
    data = prepared(tmp_path, divided, toy_go)
    model = trained(data)
    message = re.escape("prepare the cells of one alone, such as adata[adata.obs[column] == name]")
    for function in (suggest, interactions_table, lambda model: hits(model, threshold=0.1)):
        with pytest.raises(ValueError, match=r"L1.*L2.*" + message):
            function(model)
    with pytest.raises(ValueError, match=r"give one of them: screen.setting\(context, type\)"):
        power(data.screen, cells=20)
    assert len(power(data.screen.settings[0], cells=20)) == len(model.gene_list)


def test_a_model_of_one_named_setting_answers_without_its_name(
    tmp_path: Path, divided: AnnData, toy_go: dict
) -> None:
    is_one = (divided.obs["cell_type"] == "L1") & (divided.obs["guide"] != "CRISPRa")
    data = prepared(tmp_path, divided[is_one].copy(), toy_go)
    model = trained(data)
    measured = model.parts.fitted_conditions()[0]
    assert measured.suffix
    table = suggest(model, n=3)
    assert len(table) == 3
    assert not any("@" in name for name in table["condition"])
    table = suggest(model, [measured.name, *table["condition"]])
    assert table.attrs["excluded"] == {measured.plain.name: "already measured"}
    assert len(hits(model, [f"{table['condition'][0]} @ L1"], threshold=0.1)) == 1
    other = hits(model, [f"{table['condition'][0]} @ L2", table["condition"][1]], threshold=0.1)
    assert list(other.attrs["excluded"].values()) == [
        "names a context or perturbation type that the model does not have"
    ]
    assert "@" not in reverse(model, {model.gene_list[0]: 1}, n=1)["condition"][0]
    pairs = interactions_table(model)
    assert pairs["strength"].notna().any()
    assert pairs["measured"].sum() == sum(len(one) == 2 for one in model.parts.fitted_conditions())
