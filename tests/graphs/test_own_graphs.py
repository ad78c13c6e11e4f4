"""Graphs, embeddings and annotations of the user's own, from set-up to a saved model that needs none of their files."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from gears import GEARS, PertData
from gears.files.formats import checksums_of, read_json, read_npz, write_npz
from gears.graphs import GeneEmbedding, Graph
from gears.jobs._job import TrainingJob
from gears.model._folder import MODEL

GENES = [f"GX{i:02d}" for i in range(30)]


@pytest.fixture
def pert_data(tmp_path, toy_adata, toy_go):
    data = PertData(tmp_path / "data", gene2go=toy_go)
    data.new_data_process("toy", toy_adata)
    data.prepare_split("simulation", seed=1)
    return data


def test_several_graphs_and_a_start_are_saved_with_the_model(tmp_path, pert_data):
    values = np.random.default_rng(0).normal(size=(29, 12))
    np.savez(tmp_path / "vectors.npz", names=np.array(GENES[:29]), values=values)
    table = tmp_path / "string.tsv"
    table.write_text("node1\tnode2\tcombined_score\nGX00\tGX01\t0.9\nGX02\tGX20\t0.5\n")
    model = GEARS(pert_data, device="cpu")
    model.model_initialize(
        hidden_size=8, seed=4, G_go=["go", str(table), {"embedding": str(tmp_path / "vectors.npz"), "k": 3}],
        G_coexpress=["coexpression", {"path": str(table)}], pert_embedding=tmp_path / "vectors.npz",
    )  # fmt: skip
    start = GeneEmbedding.of(tmp_path / "vectors.npz").start(pert_data.pert_names.tolist(), 8)
    rows = model.model.pert_emb.weight.detach().numpy()
    np.testing.assert_allclose(rows[:29], start[:29], rtol=1e-6)
    plain = GEARS(pert_data, device="cpu")
    plain.model_initialize(hidden_size=8, seed=4)
    assert torch.equal(plain.model.pert_emb.weight[29], model.model.pert_emb.weight[29])
    assert torch.equal(plain.model.gene_emb.weight, model.model.gene_emb.weight)
    edge = model.parts.go.to_frame().set_index(["source", "target"])["weight"]
    assert edge["GX20", "GX02"] > 0
    model.train(epochs=0, verbose=False, evaluate_test=False)
    model.save_model(tmp_path / "model")
    want = model.predict(["GX00+GX09", "GX29"])
    for path in (table, tmp_path / "vectors.npz"):
        path.unlink()
    loaded = GEARS.from_pretrained(tmp_path / "model", device="cpu")
    np.testing.assert_array_equal(loaded.predict(["GX00+GX09", "GX29"]).expression_UG, want.expression_UG)
    again = GEARS(pert_data, device="cpu")
    again.load_pretrained(tmp_path / "model")
    scores = {"baselines": ["additive"], "n_split_half": 0}
    methods = [set(one.evaluate("test", **scores)["method"]) for one in (model, again)]
    assert methods[0] - methods[1] == {"embedding_ridge"}  # a saved model holds no embeddings
    assert loaded.parts.go.hash == model.parts.go.hash


def test_a_model_saved_before_graphs_were_stored_normalised_predicts_the_same(tmp_path, pert_data):
    model = GEARS(pert_data, device="cpu")
    model.model_initialize(hidden_size=8)
    model.train(steps=1, prior=None, verbose=False, evaluate_test=False)
    folder = tmp_path / "model"
    model.save_model(folder)
    arrays = read_npz(folder / "graphs.npz")
    older = {name: array for name, array in arrays.items() if "normalised" not in name}
    assert len(older) == len(arrays) - 2
    write_npz(folder / "graphs.npz", older)
    manifest = read_json(folder / "manifest.json")
    manifest["checksums"] |= checksums_of(folder, ["graphs.npz"])
    MODEL.write(folder, manifest)
    loaded = GEARS.from_pretrained(folder, device="cpu").predict(["GX00+GX09"])
    np.testing.assert_array_equal(loaded.expression_UG, model.predict(["GX00+GX09"]).expression_UG)


def test_a_gene_in_no_graph_takes_the_mean_of_the_trained(pert_data):
    """The network's part of a gene without neighbour or training is that of the mean message of trained genes."""
    trained = sorted({gene for condition in pert_data.split.conditions("train") for gene in condition.genes})
    alone = [gene for gene in GENES if gene not in trained][:2]
    table = pd.DataFrame({"source": trained, "target": [*trained[1:], trained[0]], "weight": 1.0})
    model = GEARS(pert_data, device="cpu")
    model.model_initialize(hidden_size=8, G_go=table, num_go_gnn_layers=2)
    model.train(steps=2, prior=None, verbose=False, evaluate_test=False)
    network = model.best_model.eval()
    assert {network.n_perts - len(trained)} == {len(network.fallback.unknown)}
    one, two = model.predict(alone, clip=False).delta_UG
    np.testing.assert_array_equal(one, two)
    with torch.no_grad():
        nodes = network.node_messages()
        places = [pert_data.node_map_pert[gene] for gene in trained]
        torch.testing.assert_close(nodes[pert_data.node_map_pert[alone[0]]], nodes[places].mean(0))
        row, node = torch.tensor([0]), torch.tensor([pert_data.node_map_pert[alone[0]]])
        whole, _ = network(row, node, torch.ones(1))
    np.testing.assert_allclose(whole[0].numpy(), one, atol=1e-5)


def test_a_mouse_like_species(tmp_path, toy_adata):
    """Annotation from a GAF file with an ontology: nodes, neighbours, training, and a model without either file."""
    symbols = [gene.capitalize() for gene in GENES]
    toy_adata.var["gene_name"] = symbols
    toy_adata.obs["condition"] = [str(c).replace("GX", "Gx") for c in toy_adata.obs["condition"]]
    rng = np.random.default_rng(3)
    lines = ["!gaf-version: 2.2"]
    for symbol in symbols:
        for term in rng.choice(8, size=3, replace=False):
            columns = ["MGI", f"MGI:{symbol}", symbol, "involved_in", f"GO:{term:07d}", "PMID:1", "IDA", ""]
            lines.append("\t".join([*columns, "P", "", "", "protein", "taxon:10090", "20260101", "MGI", "", ""]))
    (tmp_path / "mgi.gaf").write_text("\n".join(lines) + "\n")
    terms = [f"[Term]\nid: GO:{term:07d}\nis_a: GO:{8 + term % 2:07d}\n" for term in range(8)]
    terms += [f"[Term]\nid: GO:{term:07d}\nis_a: GO:0000010\n" for term in (8, 9)] + ["[Term]\nid: GO:0000010\n"]
    (tmp_path / "go.obo").write_text("\n".join(terms))
    data = PertData(tmp_path / "data", gene2go=str(tmp_path / "mgi.gaf"), obo=tmp_path / "go.obo")
    data.new_data_process("mouse", toy_adata)
    assert data.pert_names.tolist() == symbols
    assert "GO:0000008" in data.annotation.terms
    assert "GO:0000010" not in data.annotation.terms
    data.prepare_split("simulation", seed=1)
    model = GEARS(data, device="cpu")
    model.model_initialize(hidden_size=8)
    assert model.parts.go.n_edges > len(symbols)
    model.train(epochs=0, verbose=False, evaluate_test=False)
    model.save_model(tmp_path / "model")
    want = model.predict(["Gx00", "Gx29"]).expression_UG
    (tmp_path / "mgi.gaf").unlink()
    (tmp_path / "go.obo").unlink()
    loaded = GEARS.from_pretrained(tmp_path / "model", device="cpu")
    np.testing.assert_array_equal(loaded.predict(["Gx00", "Gx29"]).expression_UG, want)


def test_workers_read_the_graphs_that_were_made_for_them(tmp_path, pert_data):
    import networkx as nx

    nodes = pert_data.pert_names.tolist()
    table = pd.DataFrame({"source": nodes[:2], "target": nodes[1:3], "weight": [0.5, 0.25]})
    vectors = pd.DataFrame(np.random.default_rng(0).normal(size=(len(nodes), 4)), index=nodes)
    edges, weight = np.array([[0, 1], [1, 2]]), np.array([0.5, 0.25])
    forms = [
        {"G_go": table},
        {"G_go": table.assign(weight=[0.5, -0.25])},
        {"G_go": nx.from_pandas_edgelist(table, edge_attr=True)},
        {"G_go": Graph.from_frame(table, nodes).to_data()},
        {"G_go": edges, "G_go_weight": weight, "G_coexpress": edges, "G_coexpress_weight": weight},
        {"G_go": {"embedding": vectors, "k": 2}, "pert_embedding": vectors},
        {"G_go": [table, "go"], "G_coexpress": "coexpression", "pert_embedding": {"embedding": vectors}},
    ]
    split, data = {"split": "simulation", "seed": 1}, {"gene2go": pert_data.annotation}
    for form in forms:
        model = {"hidden_size": 8, **form}
        args = {"save_path": str(tmp_path / "model"), "prior": None, "model_config": model}
        job = TrainingJob.check(tmp_path / "data", "toy", split, args, data)
        screen, prepared = job.prepare(1)
        sent = json.loads(json.dumps(prepared.worker_args()))
        read = TrainingJob.check(tmp_path / "data", "toy", split, sent)
        want, found = job.model(screen, device="cpu").parts, read.model(read.load(), device="cpu").parts
        assert (found.go.hash, found.coexpress.hash) == (want.go.hash, want.coexpress.hash)
        np.testing.assert_array_equal(found.inputs.start_PH, want.inputs.start_PH)
