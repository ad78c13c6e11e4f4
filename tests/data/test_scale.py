"""The scale of values is recognised by several signs, and every wrong one is a problem with its remedy."""

from typing import Any

import anndata
import numpy as np
import pytest
from anndata import AnnData
from scipy import sparse

from gears.data import inspect_screen
from gears.data.checks._scale import detect_scale
from gears.data.screen.prepare import prepare_screen
from gears.pertdata import PertData


def in_scale(counts: np.ndarray, scale: str, target: float = 1e4) -> np.ndarray:
    """Counts (N, G) of all measured genes on a scale."""
    normalised = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    linear = normalised * target
    values = {
        "counts": counts, "fractions": normalised, "normalised": linear, "log1p": np.log1p(linear),
        "log2": np.log2(1 + linear), "log10": np.log10(1 + linear), "log1p-twice": np.log1p(np.log1p(linear)),
        "sqrt": np.sqrt(counts), "anscombe": 2 * np.sqrt(counts + 3 / 8),
        "scaled": (linear - linear.mean(0)) / (linear.std(0) + 1),
    }  # fmt: skip
    return values[scale]


SCALES = ["counts", "fractions", "normalised", "log1p", "log2", "log10", "log1p-twice", "sqrt", "scaled"]


@pytest.fixture(scope="module")
def drawn():
    """Counts of 150 cells x 400 genes, about 2 per gene."""
    rng = np.random.default_rng(3)
    return rng.poisson(rng.gamma(0.4, 5.0, size=400) * rng.lognormal(0, 0.4, size=(150, 1))).astype(float)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    ("kept", "target"), [("all genes", 1e6), ("50 genes", 1e4), ("high genes", "median"), ("shallow", 1e4)]
)
def test_each_scale_is_recognised(scale, target, kept, drawn):
    counts = np.random.default_rng(0).binomial(drawn.astype(int), 0.2) if kept == "shallow" else drawn
    values = in_scale(counts, scale, float(np.median(counts.sum(1))) if target == "median" else float(target))
    order = np.argsort(-counts.sum(0), kind="stable")
    genes = {"50 genes": slice(0, None, 8), "high genes": order[:50]}.get(kept, slice(None))
    assert detect_scale(sparse.csr_matrix(values[:, genes].astype(np.float32))) == scale


@pytest.mark.shared
def test_real_screens_give_no_finding(shared):
    for file in sorted((shared / "data").glob("*_subset.h5ad")):
        adata = anndata.read_h5ad(file)
        for genes in (slice(None), slice(0, 50)):
            assert detect_scale(sparse.csr_matrix(adata.X[:, genes])) == "log1p", (file, genes)


@pytest.mark.parametrize(
    ("other", "n_other"), [("counts", 12), ("normalised", 110), ("log2", 12), ("log10", 110), ("fractions", 12)]
)
def test_cells_of_two_scales_are_an_error(other, n_other, toy_adata, tmp_path):
    """As of two batches, each normalised in its own way."""
    cells = np.random.default_rng(0).permutation(216)[:n_other]
    whole = np.expm1(toy_adata.X.toarray()).round()
    values = in_scale(whole, "log1p")
    values[cells] = in_scale(whole, other)[cells]
    toy_adata.X = sparse.csr_matrix(values.astype(np.float32))
    with pytest.raises(ValueError, match="X holds cells of 2 scales"):
        prepare_screen(toy_adata, tmp_path / "toy")
    with pytest.raises(ValueError, match="X holds cells of 2 scales"):
        prepare_screen(toy_adata, tmp_path / "toy", normalize=True)
    assert prepare_screen(toy_adata, tmp_path / "toy", scale="log1p").manifest["scale"] == "log1p"


REMEDIES = {
    "fractions": "multiply by 1e4 and apply scanpy.pp.log1p",
    "normalised": "apply scanpy.pp.log1p",
    "log2": "0.6931",
    "log10": "2.3026",
    "log1p-twice": "numpy.expm1 once",
    "sqrt": "give counts with normalize=True",
}


def with_values(adata: AnnData, scale: str) -> AnnData:
    counts = np.expm1(adata.X.toarray()).round()
    adata.X = sparse.csr_matrix(in_scale(counts, scale).astype(np.float32))
    return adata


@pytest.mark.parametrize("scale", REMEDIES)
def test_a_wrong_scale_is_an_error_that_scale_overrides(scale, toy_adata, tmp_path):
    adata = with_values(toy_adata, scale)
    with pytest.raises(ValueError, match="log1p of normalised counts is needed") as caught:
        prepare_screen(adata, tmp_path / "toy")
    assert REMEDIES[scale] in str(caught.value)
    screen = prepare_screen(adata, tmp_path / "toy", scale=scale)
    assert screen.manifest["scale"] == scale
    np.testing.assert_array_equal(screen.cells.csr().toarray(), adata.X.toarray())


@pytest.mark.parametrize(
    ("together", "form"), [(True, np.asarray), (True, sparse.csc_matrix), (False, sparse.csr_matrix)]
)
def test_values_normalised_over_genes_and_guides_are_reported(together, form, drawn):
    genes, guides = drawn[:, :395], 50.0 * drawn[:, 395:]
    values = in_scale(np.hstack([genes, guides]), "log1p")
    if not together:
        values[:, :395] = in_scale(genes, "log1p")
    kinds = ["Gene Expression"] * 395 + ["CRISPR Guide Capture"] * 5
    names = [f"g{i}" for i in range(400)]
    adata = anndata.AnnData(
        form(values.astype(np.float32)),
        obs={"condition": np.where(np.arange(150) % 2, "ctrl", "g0+ctrl")},
        var={"gene_name": names, "feature_types": kinds},
    )
    findings = {finding.kind: finding for finding in inspect_screen(adata).findings}
    assert ("shared-totals" in findings) == together
    if together:
        assert findings["shared-totals"].severity == "warning"
    assert "shared-totals" not in {finding.kind for finding in inspect_screen(adata[:, :395]).findings}


def test_layers_and_raw_are_named_where_they_hold_what_is_needed(toy_adata):
    whole = toy_adata.copy()
    adata = with_values(toy_adata, "scaled")
    assert "layer=" not in str(inspect_screen(adata))
    adata.layers["a"] = with_values(whole.copy(), "counts").X
    adata.layers["b"] = whole.X
    adata.layers["c"] = adata.X
    text = str(inspect_screen(adata))
    assert "pass layer='b' (layers['b'] holds log-normalised values)" in text
    assert "pass layer='a' with normalize=True (layers['a'] holds counts)" in text
    assert "layer='c'" not in text
    del adata.layers["a"], adata.layers["b"]
    adata.raw = whole
    assert "pass layer='raw' (adata.raw holds log-normalised values)" in str(inspect_screen(adata))
    adata.raw = whole[:, 6:].copy()
    assert "adata.raw does not measure 6 genes" in str(inspect_screen(adata, layer="raw"))


@pytest.mark.parametrize(
    ("place", "options"), [("raw", {"layer": "raw"}), ("counts", {"layer": "counts", "normalize": True})]
)
def test_scaled_values_beside_others_are_an_error_that_scale_confirms(place, options, toy_adata, tmp_path):
    adata = with_values(toy_adata.copy(), "scaled")
    if place == "raw":
        adata.raw = toy_adata
    else:
        adata.layers["counts"] = with_values(toy_adata.copy(), "counts").X
    make: dict[str, Any] = {"data_path": tmp_path, "default_pert_graph": False, "verbose": False}
    with pytest.raises(ValueError, match=r"X has negative values .* or scale='scaled' to use the scaled") as caught:
        PertData.from_adata(adata, **make)
    assert f"pass layer={place!r}" in str(caught.value)
    assert not PertData.from_adata(adata, **make, **options).screen.manifest["has_negative"]
    assert PertData.from_adata(adata, **make, scale="scaled").screen.manifest["has_negative"]


def test_a_file_and_memory_give_the_same_advice(toy_adata, tmp_path):
    adata = with_values(toy_adata.copy(), "scaled")
    adata.raw = toy_adata
    adata.layers["umi"] = with_values(toy_adata.copy(), "counts").X.tocsr()
    adata.layers["dense"] = toy_adata.X.toarray()
    adata.layers["columns"] = toy_adata.X.tocsc()  # its cells are not read; nor does its name tell a scale
    adata.write_h5ad(tmp_path / "toy.h5ad")
    with pytest.raises(ValueError, match="X has negative values") as caught:
        PertData(tmp_path / "work", default_pert_graph=False).load(data_path=tmp_path / "toy.h5ad")
    for advice in ("layer='raw' (", "layer='dense' (", "layer='umi' with normalize=True ("):
        assert f"pass {advice}" in str(caught.value)
        assert f"pass {advice}" in str(inspect_screen(adata))
