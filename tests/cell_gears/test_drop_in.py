"""Scripts written for cell-gears: its README and tutorials by statement, and what others do with its objects."""

import contextlib
import copy
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from old_screens import SYMBOLS, few_genes, put_norman, renamed

from gears import GEARS, PertData

# the README of cell-gears 0.1.2, but for the device and the length of the training
README = """
from gears import PertData, GEARS

# get data
pert_data = PertData('./data')
# load dataset in paper: norman, adamson, dixit.
pert_data.load(data_name = 'norman')
# specify data split
pert_data.prepare_split(split = 'simulation', seed = 1)
# get dataloader with batch size
pert_data.get_dataloader(batch_size = 32, test_batch_size = 128)

# set up and train a model
gears_model = GEARS(pert_data, device = 'cpu')
gears_model.model_initialize(hidden_size = 64)
gears_model.train(epochs = 1)

# save/load model
gears_model.save_model('gears')
gears_model.load_pretrained('gears')

# predict
predicted = gears_model.predict([['CBL', 'CNN1'], ['FEV']])
scores = gears_model.GI_predict(['CBL', 'CNN1'], GI_genes_file=None)

# your own dataset
pert_data.new_data_process(dataset_name = 'XXX', adata = adata)
pert_data.load(data_path = './data/XXX')
"""


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    here = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(here)


@pytest.fixture(scope="module")
def annotation():
    return few_genes()


@pytest.fixture(scope="module")
def script(tmp_path_factory, toy_template, annotation):
    """The names of the README, run as it stands where cell-gears had put a screen."""
    folder, adata = tmp_path_factory.mktemp("drop_in"), renamed(toy_template.copy())
    put_norman(folder, adata)
    names: dict[str, Any] = {"adata": adata.copy(), "folder": folder}
    with inside(folder), pytest.MonkeyPatch.context() as patch:
        patch.setattr("gears.graphs._annotation._human", lambda: annotation)
        exec(README, names)
    return names


@pytest.fixture(scope="module")
def pert_data(script, annotation):
    """The screen of the README with its split and loaders, from any working directory."""
    data = PertData(script["folder"] / "data", gene2go=annotation)
    data.load(data_name="norman")
    data.prepare_split(split="simulation", seed=1)
    data.get_dataloader(batch_size=32, test_batch_size=128)
    return data


@pytest.fixture(scope="module")
def model(script, pert_data):
    """The model of the README, loaded for that screen."""
    model = GEARS(pert_data, device="cpu")
    model.load_pretrained(script["folder"] / "gears")
    return model


def test_predict_gives_profiles_under_the_published_keys(script):
    predicted = script["predicted"]
    assert list(predicted) == ["CBL_CNN1", "FEV"]
    assert {key: value.shape for key, value in predicted.items()} == {"CBL_CNN1": (30,), "FEV": (30,)}
    singles = {f"dcor_{which}" for which in ("singles", "first", "second")}
    published = {"c1", "c2", "mag", "dcor", "corr_fit", "dominance", "eq_contr"} | singles
    assert published <= set(script["scores"])
    assert all(isinstance(script["scores"][name], float) for name in published)
    assert (script["folder"] / "gears" / "model.pt").is_file()


def test_a_data_set_of_ones_own_is_processed_and_loaded(script):
    assert (script["folder"] / "data" / "XXX" / "perturb_processed.h5ad").is_file()
    data = PertData(script["folder"] / "data", gene2go={gene: {"T"} for gene in SYMBOLS})
    data.load(data_path=script["folder"] / "data" / "xxx")  # cell-gears writes names in lower case
    assert data.dataset_name == "XXX"
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        data.load(data_path=script["folder"] / "data" / "YYY")


def test_the_screen_has_the_published_attributes(pert_data):
    assert pert_data.adata.n_obs == 216
    assert set(pert_data.ctrl_adata.obs["condition"]) == {"ctrl"}
    assert pert_data.gene_names.values.tolist() == SYMBOLS
    assert pert_data.node_map == {gene: i for i, gene in enumerate(SYMBOLS)}
    assert [pert_data.node_map_pert[gene] for gene in pert_data.pert_names] == list(range(len(pert_data.pert_names)))
    assert pert_data.get_pert_idx("CNN1+CBL") == [pert_data.node_map_pert[gene] for gene in ("CNN1", "CBL")]
    assert pert_data.get_pert_idx("ctrl") == [-1]


def test_the_published_lists_in_uns(pert_data):
    adata = pert_data.adata
    condition2name = dict(adata.obs[["condition", "condition_name"]].drop_duplicates().values)
    id2gene = dict(zip(adata.var.index.values, adata.var.gene_name.values, strict=True))
    name = condition2name["FEV+ctrl"]
    assert name == "cellA_FEV+ctrl_1+1"
    for key in ("rank_genes_groups_cov_all", "top_non_dropout_de_20", "top_non_zero_de_20"):
        genes = [id2gene[i] for i in adata.uns[key][name]]
        assert len(set(genes)) == (30 if key == "rank_genes_groups_cov_all" else 20)
    for key in ("non_dropout_gene_idx", "non_zeros_gene_idx"):
        assert set(adata.uns[key][name]) <= set(range(30))


def test_set2conditions_and_subgroup(pert_data):
    assert set(pert_data.set2conditions) == {"train", "val", "test"}
    assert "ctrl" in pert_data.set2conditions["train"]
    groups = pert_data.subgroup["test_subgroup"]
    assert set(groups) == {"combo_seen0", "combo_seen1", "combo_seen2", "unseen_single"}
    assert sorted(label for labels in groups.values() for label in labels) == sorted(pert_data.set2conditions["test"])
    assert pert_data.split == "simulation"
    assert f"{pert_data.split}_{pert_data.seed}_{pert_data.train_gene_set_size}" == "simulation_1_0.75"


def test_the_model_has_the_published_attributes(model, pert_data):
    assert model.pert_list == pert_data.pert_names.tolist()
    assert model.gene_list == SYMBOLS
    assert (model.num_genes, model.num_perts) == (30, len(pert_data.pert_names))
    for name in ["adata", "dataloader", "node_map", "node_map_pert", "set2conditions", "subgroup", "split", "seed"]:
        assert getattr(model, name) is getattr(pert_data, name)
    assert (model.dataset_name, model.default_pert_graph) == ("norman-prepared", True)
    control = np.asarray(pert_data.ctrl_adata.X.mean(axis=0)).ravel()
    np.testing.assert_allclose(model.ctrl_expression.numpy(), control, rtol=1e-6)
    name = "cellA_FEV+ctrl_1+1"
    np.testing.assert_array_equal(model.dict_filter["FEV+ctrl"], pert_data.adata.uns["non_zeros_gene_idx"][name])
    assert all(model.gene_list[column] == model.pert_list[node] for node, column in model.pert2gene.items())
    assert len(model.pert2gene) == 30
    assert model.config["hidden_size"] == 64
    assert isinstance(model.best_model, torch.nn.Module)
    texts = model.tunable_parameters()
    assert "GO graph" in texts["num_go_gnn_layers"]
    assert texts["hidden_size"].endswith("Default 64.")
    assert set(texts) == set(model.config)
    with pytest.raises(AttributeError, match="keep the result of predict"):
        model.saved_pred  # noqa: B018


def test_a_batch_itself_is_moved(pert_data):
    """``batch.to(device)`` as a statement, its result not kept."""
    batch = next(iter(pert_data.dataloader["val_loader"]))
    batch.to("meta")
    assert {batch.x.device.type, batch.y.device.type, batch.batch.device.type} == {"meta"}


def test_the_second_input_column_of_older_releases(pert_data):
    from gears.utils import pert_flags

    for batch in pert_data.dataloader["test_loader"]:
        flags = pert_flags(batch)
        assert flags.shape == batch.y.shape
        for label, row in zip(batch.pert, flags, strict=True):
            assert {SYMBOLS[int(i)] for i in row.nonzero()} == set(label.split("+")) - {"ctrl"}
        assert torch.equal(flags, batch.pert_flags(pert_data.node_map))
        two_columns = torch.stack([batch.x[:, 0], flags.flatten()], dim=1)
        assert two_columns[:, 1].long().view(len(batch.y), -1).max() == 1


def test_each_pass_over_the_training_cells_has_an_order_of_its_own(pert_data):
    loader = pert_data.get_dataloader(batch_size=32)["train_loader"]
    passes = [[batch.cell.tolist() for batch in loader] for _ in range(3)]
    assert passes[0] != passes[1] != passes[2]
    loader.set_epoch(1)
    assert [batch.cell.tolist() for batch in loader] == passes[1]
    tests = [[batch.control_cell.tolist() for batch in pert_data.dataloader["test_loader"]] for _ in range(2)]
    assert tests[0] == tests[1]


def test_the_best_model_called_with_a_batch_is_the_whole_model(model, pert_data):
    """Also the prior, to which the network's change is added."""
    assert model.parts.prior is not None
    for name in ("val_loader", "train_loader"):
        batch = next(iter(pert_data.get_dataloader(batch_size=32)[name]))
        with torch.no_grad():
            pred = model.best_model.eval()(batch)
        expected = model.predict(list(dict.fromkeys(batch.pert)), clip=False)
        for change_G, label in zip((pred - batch.x_BG).numpy(), batch.pert, strict=True):
            np.testing.assert_allclose(change_G, expected.delta(label), atol=1e-5)


def test_control_cells_under_a_perturbation_for_torch_geometric(model, pert_data):
    from torch_geometric.loader import DataLoader

    from gears.utils import create_cell_graph_dataset_for_prediction

    adata = pert_data.adata
    ctrl_adata = adata[adata.obs["condition"] == "ctrl"]
    graphs = create_cell_graph_dataset_for_prediction(
        ["FEV", "CBL"], ctrl_adata, model.pert_list, "cpu", num_samples=10
    )
    batch = next(iter(DataLoader(graphs, batch_size=10, shuffle=False)))
    assert batch.x.shape == (300, 1)
    assert batch.pert == [["FEV", "CBL"]] * 10
    assert batch.pert_idx == [[model.node_map_pert["FEV"], model.node_map_pert["CBL"]]] * 10
    with torch.no_grad():
        pred = model.best_model.eval()(batch)
    change = pred - batch.x.reshape(10, 30)
    np.testing.assert_allclose(change[0], model.predict(["CBL+FEV"], clip=False).delta("CBL+FEV"), atol=1e-5)
    same = create_cell_graph_dataset_for_prediction(["FEV", "ctrl"], ctrl_adata, SYMBOLS, num_samples=10)
    assert torch.equal(same[3].x, graphs[3].x)
    assert same[0].pert_idx == [SYMBOLS.index("FEV")]
    with pytest.raises(ValueError, match=r"gene 'FEW' is not among the 30 gene_names \(near: FEV"):
        create_cell_graph_dataset_for_prediction(["FEW"], ctrl_adata, SYMBOLS)


def test_cells_by_condition(pert_data):
    cells = pert_data.dataset_processed
    assert set(cells) == set(pert_data.adata.obs["condition"])
    assert len(cells["FEV+ctrl"]) == 12
    one = cells["FEV+ctrl"][0]
    assert (one.pert, one.pert_idx) == ("FEV+ctrl", [pert_data.node_map_pert["FEV"]])
    assert (one.x.shape, one.y.shape, len(one.de_idx)) == ((30, 1), (1, 30), 20)
    assert len(cells["ctrl"][:3]) == 3


def test_parts_of_ones_own_are_assigned(pert_data):
    data = copy.copy(pert_data)
    labels = [label for label in data.screen.labels if label != "ctrl"]
    set2conditions = {"train": ["ctrl", *labels[:9]], "val": labels[9:11], "test": labels[11:]}
    data.set2conditions = set2conditions
    data.split = "custom"
    data.subgroup = None
    data.seed = 1
    data.train_gene_set_size = 0.75
    data.get_dataloader(batch_size=32, test_batch_size=128)
    assert data.split == "custom"
    assert {label for batch in data.dataloader["test_loader"] for label in batch.pert} == set(labels[11:])
    data.set2conditions["val"].append(data.set2conditions["test"].pop())
    data.get_dataloader(batch_size=32)
    assert {label for batch in data.dataloader["val_loader"] for label in batch.pert} == {*labels[9:11], labels[-1]}
    with pytest.raises(ValueError, match="did you mean 'FEV"):
        data.set2conditions = set2conditions | {"val": ["FEW+ctrl"]}
    with pytest.raises(ValueError, match="prepare_split"):
        data.split = "simulation"


def test_graphs_by_the_published_helpers(pert_data, model, annotation):
    from gears.utils import GeneSimNetwork, get_similarity_network

    more: dict[str, Any] = {"adata": pert_data.adata, "set2conditions": pert_data.set2conditions}
    table = get_similarity_network("co-express", threshold=0.4, k=20, **more)
    assert list(table.columns) == ["source", "target", "importance"]
    network = GeneSimNetwork(table, model.gene_list, node_map=model.node_map)
    np.testing.assert_array_equal(network.edge_index, model.parts.coexpress.edge_index)
    np.testing.assert_allclose(network.edge_weight, model.parts.coexpress.weight, rtol=1e-6)
    assert network.G.number_of_nodes() == 30
    assert network.G.number_of_edges() == len(table) > 0
    first = table.iloc[0]
    assert network.G.edges[first.source, first.target]["importance"] == pytest.approx(first.importance)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gears.graphs._annotation._human", lambda: annotation)
        table = get_similarity_network("go", k=20, pert_list=model.pert_list)
    network = GeneSimNetwork(table, model.pert_list, node_map=model.node_map_pert)
    np.testing.assert_array_equal(network.edge_index, model.parts.go.edge_index)
    again = GEARS(pert_data, device="cpu")
    again.model_initialize(hidden_size=8, G_go=network.edge_index, G_go_weight=network.edge_weight)
    assert again.parts.go.n_edges == model.parts.go.n_edges
    with pytest.raises(ValueError, match="needs pert_list"):
        get_similarity_network("go")
    with pytest.raises(ValueError, match="did you mean 'co-express'"):
        get_similarity_network("coexpress")


def test_interaction_helpers(model, pert_data, tmp_path):
    from gears.utils import get_GI_genes_idx, get_GI_params

    predicted = model.predict([["CBL"], ["CNN1"], ["CBL", "CNN1"]], clip=False)
    changes = {key: predicted.delta(key) for key in predicted}
    assert get_GI_params(changes, ["CBL", "CNN1"]) == model.GI_predict(["CBL", "CNN1"])
    np.save(tmp_path / "genes_with_hi_mean.npy", np.array(["KLF1", "FEV"], dtype=object), allow_pickle=True)
    assert get_GI_genes_idx(pert_data.adata, tmp_path / "genes_with_hi_mean.npy").tolist() == [2, 3]


@pytest.mark.long
def test_the_readme_with_the_whole_annotation(tmp_path, toy_template):
    adata = renamed(toy_template.copy())
    put_norman(tmp_path, adata)
    names: dict[str, Any] = {"adata": adata}
    with inside(tmp_path):
        exec(README.replace("epochs = 1)", "epochs = 20)"), names)
    assert len(names["gears_model"].pert_list) > 10_000
