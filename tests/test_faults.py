"""What users of earlier packages met, where no other test covers it."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
from driving import gears_of, pert_data_of

from gears.data.screen.prepare import folder_name
from gears.gears import GEARS
from gears.pertdata import PertData

Go = dict[str, set[str]]
PARTS = {
    "train": ["ctrl", "GX00+ctrl", "GX01+ctrl", "GX02+ctrl", "GX03+ctrl"],
    "val": ["GX04+ctrl"],
    "test": ["GX05+ctrl", "GX00+GX01"],
}


def edges(data: PertData, parts: dict[str, list[str]]) -> tuple[np.ndarray, np.ndarray]:
    """Edges of the co-expression and the GO graph of a model."""
    data.prepare_split("custom", split_dict=parts)
    model = gears_of(data, coexpress_threshold=0.1)
    return np.asarray(model.parts.coexpress.edge_index), np.asarray(model.parts.go.edge_index)


def test_coexpression_follows_the_custom_split(toy_data, tmp_path, toy_adata, toy_go):
    """Two custom splits on one data set: the second has its own edges, those that a fresh folder gives."""
    train, test = ["ctrl", "GX05+ctrl", "GX06+ctrl", "GX07+ctrl"], ["GX00+ctrl", "GX00+GX01"]
    other = PARTS | {"train": train, "test": test}
    first, second = edges(toy_data, PARTS)[0], edges(toy_data, other)[0]
    fresh = pert_data_of(tmp_path / "fresh", toy_adata, gene2go=toy_go)
    np.testing.assert_array_equal(second, edges(fresh, other)[0])
    np.testing.assert_array_equal(first, edges(toy_data, PARTS)[0])
    assert first.shape != second.shape or not np.array_equal(first, second)


def test_a_training_part_of_doubles_only(toy_data):
    """All training cells enter the co-expression, whatever their label."""
    doubles = {"train": ["GX00+GX01", "GX02+GX03", "GX04+GX05"], "val": ["GX00+GX02"], "test": ["GX01+GX03"]}
    assert edges(toy_data, doubles)[0].shape[1] > 0


def test_the_go_graph_follows_the_annotation_and_the_folder(toy_data, tmp_path, toy_adata, toy_go):
    """Same data set name, another annotation or another project: never the first one's edges."""
    first = edges(toy_data, PARTS)[1]
    turned = {gene: toy_go[other] for gene, other in zip(toy_go, reversed(list(toy_go)), strict=True)}
    same_folder = PertData(tmp_path / "data", gene2go=turned)
    same_folder.load("toy")
    assert not np.array_equal(edges(same_folder, PARTS)[1], first)
    elsewhere = pert_data_of(tmp_path / "other", toy_adata, gene2go=turned)
    np.testing.assert_array_equal(edges(elsewhere, PARTS)[1], edges(same_folder, PARTS)[1])


def test_one_perturbation_is_a_clear_refusal(toy_adata, toy_go, tmp_path):
    data = pert_data_of(tmp_path, toy_adata[:72].copy(), "one", gene2go=toy_go)
    words = r"without a perturbed condition.* of 1 single and 0 combinations"
    for split, mode in (("simulation", "published"), ("no_test", "strict"), ("single", "strict")):
        with pytest.raises(ValueError, match=words):
            data.prepare_split(split, mode=mode)
    data.prepare_split("no_split")


def test_nothing_is_printed_the_second_time_either(toy_adata, toy_go, tmp_path, capsys):
    for _ in range(2):
        data = pert_data_of(tmp_path, toy_adata, gene2go=toy_go)
        data.load("toy")
        data.prepare_split("simulation")
        data.get_dataloader(8)
        GEARS(data, device="cpu").model_initialize(hidden_size=8)
    shown = capsys.readouterr()
    assert shown.out == shown.err == ""


@pytest.mark.parametrize("name", ["", " ", "a/b", "a\\b", "..", "C:x", ".hidden"])
def test_names_that_are_paths_are_refused(name):
    with pytest.raises(ValueError, match="cannot name a folder"):
        folder_name(name)


def test_batches_say_which_measured_genes_are_perturbed(toy_adata, toy_go, tmp_path):
    data = pert_data_of(tmp_path, toy_adata[:, 1:].copy(), gene2go=toy_go, split="no_split")
    seen = set()
    for batch in data.get_dataloader(16)["test_loader"]:
        flags = batch.pert_flags(data.node_map)
        assert flags.shape == (len(batch), 29)
        for label, row in zip(batch.pert, flags, strict=True):
            genes = {gene for gene in label.split("+") if gene != "ctrl"}
            assert {data.screen.gene_names[i] for i in row.nonzero().flatten()} == genes - {"GX00"}
        seen |= set(batch.unmeasured(data.node_map))
    assert seen == {"GX00"}


def test_perturbed_cells_always_carry_their_perturbation(toy_adata, toy_go, tmp_path):
    """Blanks, mirrored and unannotated genes, triples: never [-1], never a part of the genes only."""
    labels = toy_adata.obs["condition"].astype(str).to_numpy()
    new = {"GX00+ctrl": " GX00 + ctrl", "GX01+ctrl": "ctrl+GX01"}
    new |= {"GX02+GX03": "GX03+NOVEL1", "GX04+GX05": "GX04+GX05+GX06"}
    toy_adata.obs["condition"] = [new.get(label, label) for label in labels]
    data = pert_data_of(tmp_path, toy_adata, gene2go=toy_go, split="no_split")
    n = 0
    for batch in data.get_dataloader(16)["test_loader"]:
        for label, nodes in zip(batch.pert, batch.pert_idx, strict=True):
            genes = {token.strip() for token in label.split("+")} - {"ctrl"}
            assert {data.pert_names[node] for node in nodes} == genes
            n += 1
    assert n == 156


@pytest.mark.long
def test_memory_of_preparing_is_bounded(tmp_path):
    """20,000 cells x 2,000 genes: the dense matrix alone would be 160 MB twice over, the old graphs many times that."""
    script = textwrap.dedent(f"""
        import resource, sys
        from gears.simulate import simulate_to_h5ad
        from gears.pertdata import PertData
        path = {str(tmp_path / "big.h5ad")!r}
        if sys.argv[1] == "make":
            simulate_to_h5ad(path, n_genes=2000, n_singles=60, n_pairs=30, cells_per_condition=200, n_control=2000)
        else:
            data = PertData({str(tmp_path / "data")!r}, default_pert_graph=False)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            data.load(data_path=path)
            data.prepare_split("simulation")
            assert data.screen.cells.shape == (20000, 2000)
            print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    """)
    for what in ("make", "load"):
        done = subprocess.run([sys.executable, "-c", script, what], capture_output=True, text=True, check=True)
    before, most = map(int, done.stdout.split())
    stored = (tmp_path / "big.h5ad").stat().st_size / 1024
    assert most - before < 300_000 + 2 * stored  # KiB: the values twice, and what the libraries take
