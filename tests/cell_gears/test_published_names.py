"""Public names of cell-gears 0.1.2: each works, with its arguments, or its error names the replacement.

``python tests/cell_gears/test_published_names.py`` writes their table in ``benchmarks/results/cell_gears_names.md``.
"""

import inspect
import pkgutil
import re
from typing import Any

import pytest
from test_scripts import PAGE, with_table

from gears import GEARS, PertData
from gears.core._lazy import Gone

NAMES: dict[str, dict[str, str]] = {
    "gears": {"GEARS": "", "PertData": ""},
    "gears.version": {"__version__": ""},
    "gears.pertdata": {"PertData": ""},
    "gears.gears": {
        "GEARS": "", "GEARS_Model": "", "GeneSimNetwork": "", "compute_metrics": "", "deeper_analysis": "",
        "create_cell_graph_dataset_for_prediction": "", "evaluate": "", "get_GI_genes_idx": "", "get_GI_params": "",
        "get_mean_control": "", "get_similarity_network": "", "loss_fct": "", "non_dropout_analysis": "",
        "parse_any_pert": "", "print_sys": "", "uncertainty_loss_fct": "",
    },
    "gears.utils": {
        "GeneSimNetwork": "edge_list gene_list node_map",
        "combine_res": "", "create_cell_graph_for_prediction": "", "get_GO_edge_list": "", "get_coeffs": "",
        "create_cell_graph_dataset_for_prediction": "pert_gene ctrl_adata gene_names device num_samples",
        "dataverse_download": "url save_path",
        "filter_pert_in_go": "condition pert_names",
        "get_GI_genes_idx": "adata GI_gene_file",
        "get_GI_params": "preds combo",
        "get_coexpression_network_from_train": "", "get_go_auto": "", "make_GO": "",
        "get_genes_from_perts": "perts",
        "get_mean_control": "adata",
        "get_similarity_network": (
            "network_type adata threshold k data_path data_name split seed train_gene_set_size set2conditions "
            "default_pert_graph pert_list"
        ),
        "loss_fct": "pred y perts ctrl direction_lambda dict_filter",
        "np_pearson_cor": "x y",
        "parse_any_pert": "", "parse_combo_pert": "", "parse_single_pert": "",
        "print_sys": "s",
        "tar_data_download_wrapper": "", "zip_data_download_wrapper": "",
        "uncertainty_loss_fct": "pred logvar y perts reg ctrl direction_lambda dict_filter",
    },
    "gears.inference": {
        "GI_subgroup": "", "batch_predict": "", "get_all_vectors": "", "get_high_umi_idx": "", "get_mean_ctrl": "",
        "compute_metrics": "results",
        "deeper_analysis": "adata test_res de_column_prefix most_variable_genes",
        "evaluate": "loader model uncertainty device",
        "get_single_name": "", "get_test_set_results_seen2": "", "node_specific_batch_out": "",
        "non_dropout_analysis": "adata test_res",
        "non_zero_analysis": "adata test_res",
    },
    "gears.model": {"GEARS_Model": "", "MLP": ""},
    "gears.data_utils": {
        "DataSplitter": "", "get_DE_genes": "", "get_dropout_non_zero_genes": "", "rank_genes_groups_by_cov": "",
        "parse_any_pert": "", "parse_combo_pert": "", "parse_single_pert": "", "print_sys": "",
    },
}  # fmt: skip
"""Module -> name -> arguments in their order; the labels of the ``parse_`` functions have another name here."""

METHODS = {
    PertData: {
        "create_cell_graph": "", "create_cell_graph_dataset": "", "create_dataset_file": "", "set_pert_genes": "",
        "get_dataloader": "batch_size test_batch_size",
        "get_pert_idx": "pert_category",
        "load": "data_name data_path",
        "new_data_process": "dataset_name adata skip_calc_de",
        "prepare_split": (
            "split seed train_gene_set_size combo_seen2_train_frac combo_single_split_test_set_fraction test_perts "
            "only_test_set_perts test_pert_genes split_dict_path"
        ),
    },
    GEARS: {
        "GI_predict": "combo GI_genes_file",
        "load_pretrained": "path",
        "model_initialize": (
            "hidden_size num_go_gnn_layers num_gene_gnn_layers decoder_hidden_size num_similar_genes_go_graph "
            "num_similar_genes_co_express_graph coexpress_threshold uncertainty uncertainty_reg direction_lambda G_go "
            "G_go_weight G_coexpress G_coexpress_weight no_perturb"
        ),
        "plot_perturbation": "query save_file",
        "predict": "pert_list",
        "save_model": "path",
        "train": "epochs lr weight_decay",
        "tunable_parameters": "",
    },
}  # fmt: skip
ATTRIBUTES = {
    PertData: (
        "adata ctrl_adata data_path dataloader dataset_name dataset_path dataset_processed default_pert_graph gene2go "
        "gene_names gene_set_path node_map node_map_pert pert_names seed set2conditions split subgroup "
        "train_gene_set_size"
    ),
    GEARS: (
        "G_coexpress G_coexpress_weight G_go G_go_weight adata best_model config ctrl_adata ctrl_expression data_path "
        "dataloader dataset_name default_pert_graph device dict_filter gene_list model node_map node_map_pert "
        "num_genes num_perts pert2gene pert_list saved_logvar_sum saved_pred seed set2conditions split subgroup "
        "train_gene_set_size wandb weight_bias_track"
    ),
}
ALL = [(module, name) for module, names in NAMES.items() for name in names]
REPLACED = re.compile(r"\S+ of cell-gears does not exist here: (\S.*)")


def imported(module: str, name: str) -> Any:
    """What ``from module import name`` gives, or the replacement that its error names."""
    names: dict[str, Any] = {}
    try:
        exec(f"from {module} import {name}", names)
    except ImportError as error:
        message = str(error)
    else:
        return names[name]
    match = REPLACED.fullmatch(message)
    assert match, message
    return match[1]


@pytest.fixture(scope="module")
def model(tmp_path_factory, toy_template, toy_go):
    data = PertData(tmp_path_factory.mktemp("names"), default_pert_graph=False, gene2go=toy_go)
    data.new_data_process("toy", toy_template)
    data.prepare_split(split="simulation", seed=1)
    data.get_dataloader(batch_size=32)
    model = GEARS(data, device="cpu")
    model.model_initialize(hidden_size=8)
    return model


@pytest.mark.parametrize(("module", "name"), ALL)
def test_a_name_is_imported_or_its_replacement_is_named(module, name):
    found = imported(module, name)
    if isinstance(found, str) and name != "__version__":
        for path in re.findall(r"\bgears\.[\w.]*\w", found):  # the replacement exists
            assert pkgutil.resolve_name(path)
    elif NAMES[module][name]:
        assert names_of(found)[: len(NAMES[module][name].split())] == NAMES[module][name].split()


def names_of(function: Any) -> list[str]:
    """Arguments that can be given by position."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.name != "self"]


@pytest.mark.parametrize("owner", METHODS)
def test_methods_take_the_published_arguments(owner, model):
    for name, arguments in METHODS[owner].items():
        method = getattr(owner, name)
        if not isinstance(method, Gone):
            assert names_of(method) == arguments.split()
    assert names_of(PertData.__init__) == ["data_path", "gene_set_path", "default_pert_graph"]
    assert model.pert_data.create_dataset_file() is None


@pytest.mark.parametrize(("owner", "name"), [(owner, name) for owner in METHODS for name in [
    *METHODS[owner], *ATTRIBUTES[owner].split()]])  # fmt: skip
def test_an_attribute_is_there_or_its_replacement_is_named(owner, name, model):
    instance: Any = model if owner is GEARS else model.pert_data
    if isinstance(getattr(owner, name, None), Gone):
        with pytest.raises(AttributeError, match=REPLACED.pattern):
            getattr(instance, name)
    else:
        getattr(instance, name)


def test_paths_join_to_strings(model):
    assert model.data_path + "/toy" == str(model.pert_data.dataset_path)


def test_a_misspelt_name_is_still_an_error():
    with pytest.raises(ImportError, match="cannot import name 'dataverse'"):
        exec("from gears.utils import dataverse")


def table() -> str:
    """Names that work, and replacements of the others."""
    works: dict[str, list[str]] = {}
    gone: dict[str, list[str]] = {}
    for module, name in ALL:
        found = imported(module, name)
        if isinstance(found, str) and name != "__version__":
            gone.setdefault(found, []).append(f"`{module}.{name}`")
        else:
            works.setdefault(f"`{module}`", []).append(f"`{name}`")
    for owner in METHODS:
        for name in [*METHODS[owner], *ATTRIBUTES[owner].split()]:
            attribute = getattr(owner, name, None)
            if isinstance(attribute, Gone):
                gone.setdefault(attribute.instead, []).append(f"`{owner.__name__}.{name}`")
            else:
                works.setdefault(f"`{owner.__name__}`", []).append(f"`{name}`")
    rows = ["| where | names that work |", "|---|---|"]
    rows += [f"| {where} | {', '.join(names)} |" for where, names in works.items()]
    rows += ["", "| name that raises an error | use instead |", "|---|---|"]
    rows += [f"| {', '.join(names)} | {instead} |" for instead, names in gone.items()]
    return "\n".join(rows)


def test_the_page_has_the_table_of_these_names():
    page = PAGE.read_text()
    assert table() in page
    assert with_table(page, "names", table()) == page


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(), "names", table()))
