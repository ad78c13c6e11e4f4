"""Tables of effects: every form gives the same numbers, what cannot be used is said in a line."""

from pathlib import Path

import anndata
import networkx as nx
import numpy as np
import pandas as pd
import pytest

from gears import PertData
from gears.graphs import GeneEffects, read_effects
from gears.graphs._effects import NodeEffects
from gears.graphs._sources import rows_of_source


def cosines(rows: np.ndarray) -> np.ndarray:
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit @ unit.T


def test_effects_of_a_screen_are_changes_of_its_singles(small_data: PertData) -> None:
    effects, prepared = small_data.effects(), small_data.screen
    singles = [one for one in prepared.conditions if len(one) == 1]
    assert effects.genes == tuple(one.genes[0] for one in singles)
    expected = prepared.statistics.delta(np.array([prepared.id_of(one) for one in singles]))
    np.testing.assert_allclose(effects.values, expected, atol=1e-12)
    x = prepared.cells.rows(np.flatnonzero(np.isin(prepared.cell_condition, [prepared.id_of(one) for one in singles])))
    of_cell = np.asarray(x).std(axis=0)
    assert np.corrcoef(of_cell, np.asarray(effects.sd))[0, 1] > 0.9


def test_scaled_effects_depart_from_their_mean_in_cells_sd_without_the_perturbed_gene_itself() -> None:
    values = np.array([[-9.0, 1.0, 3.0], [1.0, -8.0, 5.0], [3.0, 3.0, 4.0]])
    effects = GeneEffects(("A", "B", "C"), ("A", "B", "X"), values, np.array([1.0, 2.0, 0.0]))
    np.testing.assert_allclose(effects.scaled(), [[0, -0.5, 0], [-1, 0, 0], [1, 0.5, 0]])
    alone = GeneEffects(("A", "B", "C"), ("A", "B", "X"), values).scaled()
    np.testing.assert_allclose(alone[:, 2], (values[:, 2] - 4) / values[:, 2].std())


def test_every_form_gives_the_same_table(small_data, small_screen_adata, tmp_path: Path) -> None:
    effects = small_data.effects()
    frame = pd.DataFrame(effects.values, index=list(effects.genes), columns=list(effects.measured))
    table = anndata.AnnData(frame, var=pd.DataFrame({"cell_sd": effects.sd}, index=frame.columns))
    table.write_h5ad(tmp_path / "table.h5ad")
    small_screen_adata.write_h5ad(tmp_path / "cells.h5ad")
    long = frame.rename_axis("perturbed").reset_index().melt("perturbed", var_name="gene", value_name="effect")
    long["se"] = long["gene"].map(dict(zip(effects.measured, np.asarray(effects.sd), strict=True)))
    long.to_csv(tmp_path / "long.tsv.gz", sep="\t", index=False)
    for name in ("some.npz", "some.csv", "some.tsv.gz"):
        effects.save(tmp_path / name)
    forms = {
        "object": effects, "prepared": small_data, "folder": small_data.dataset_path, "frame": frame,
        "AnnData of cells": small_screen_adata,
        **{file.name: file for file in sorted(tmp_path.iterdir()) if file.is_file()},
    }  # fmt: skip
    assert len(forms) == 11
    expected = frame.sort_index()[sorted(frame.columns)]
    for name, source in forms.items():
        found = read_effects(source)
        wide = pd.DataFrame(found.values, list(found.genes), list(found.measured)).sort_index()[expected.columns]
        np.testing.assert_allclose(wide, expected, atol=2e-3, err_msg=name)
        has_sd = name not in ("frame", "some.csv", "some.tsv.gz")
        assert (found.sd is not None) == has_sd, name
    assert (tmp_path / "some.npz").stat().st_size < 9000


def test_genes_are_found_under_their_other_names() -> None:
    values = np.random.default_rng(1).normal(size=(3, 3))
    effects = GeneEffects(("MLL", "KLF1", "NONE1"), ("MLL", "AHR", "X"), values)
    resolve = {"MLL": "KMT2A", "KMT2A": "KMT2A"}.get
    found = NodeEffects.of(effects, ["AHR", "KLF1", "KMT2A"], ["KMT2A", "GATA1"], lambda name: resolve(name))
    assert found.nodes_N.tolist() == [1, 2]
    assert found.column_G.tolist() == [0, -1]
    np.testing.assert_array_equal(found.here()[:, 1], 0)


GOOD = pd.DataFrame(np.arange(9.0).reshape(3, 3) ** 2, index=["A", "B", "C"], columns=["X", "Y", "Z"])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (GOOD.replace(4.0, np.nan), "effects of 1 gene are NaN or infinite .A."),
        (GOOD.iloc[:1], "expected two or more of each"),
        (GOOD.set_axis(["A", "B", "A"]), "perturbed genes of a table of effects must be unique"),
        (3, "takes screens, files and tables; found 3"),
        (GOOD.assign(one="a", two="b", three="c"), "has text in 3 columns"),
    ],
)
def test_what_is_no_table_is_said(source: object, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words) as error:
        read_effects(source)
    assert "\n" not in str(error.value)


def test_a_screen_of_pairs_or_of_counts_is_refused_in_a_line(small_screen_adata, tmp_path: Path) -> None:
    pairs = small_screen_adata[~small_screen_adata.obs["condition"].str.endswith("+ctrl")].copy()
    with pytest.raises(ValueError, match="perturbs 0 genes alone"):
        read_effects(pairs)
    counts = small_screen_adata.copy()
    counts.X = counts.layers["counts"]
    counts.write_h5ad(tmp_path / "counts.h5ad")
    with pytest.raises(ValueError, match=r"counts\.h5ad cannot be used .*normalize.*`gears effects`") as error:
        read_effects(tmp_path / "counts.h5ad")
    assert "\n" not in str(error.value)


def test_edges_become_a_diffusion_kernel_and_vectors_a_cosine(small_data: PertData, tmp_path: Path) -> None:
    nodes = [str(name) for name in small_data.pert_names][:6]
    graph = nx.path_graph(5)
    edges = pd.DataFrame([(nodes[i], nodes[j]) for i, j in graph.edges], columns=["protein1", "protein2"])
    edges.assign(combined_score=900).to_csv(tmp_path / "links.txt.gz", sep=" ", index=False)
    rows = rows_of_source(tmp_path / "links.txt.gz", nodes, small_data.annotation)
    assert np.isnan(rows[5]).all()
    kernel = cosines(rows[:5])
    assert (np.diff(kernel[0]) < 0).all(), "similarity falls along the path"
    laplacian = nx.normalized_laplacian_matrix(graph).toarray()
    values, vectors = np.linalg.eigh(laplacian)
    exact = (vectors * np.exp(-4 * values)) @ vectors.T
    np.testing.assert_allclose(kernel, exact / np.sqrt(np.outer(np.diag(exact), np.diag(exact))), atol=1e-9)
    vectors = pd.DataFrame(np.random.default_rng(0).normal(size=(6, 3)), index=nodes)
    vectors.to_csv(tmp_path / "vectors.csv")
    found = rows_of_source(tmp_path / "vectors.csv", nodes, small_data.annotation)
    np.testing.assert_allclose(cosines(found), cosines((vectors - vectors.mean()).to_numpy()), atol=1e-6)
    with pytest.raises(ValueError, match="no gene that can be perturbed here has a vector"):
        rows_of_source(vectors.set_axis([f"NO{i}" for i in range(6)]), nodes, small_data.annotation)
