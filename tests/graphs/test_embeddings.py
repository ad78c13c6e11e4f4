"""Gene vectors: their forms, nearest neighbours, and the start of a table."""

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData

from gears.graphs import GeneEmbedding

NAMES = [f"G{i}" for i in range(12)]


@pytest.fixture
def values():
    return np.random.default_rng(5).normal(size=(12, 6))


def test_every_form_is_the_same(tmp_path, values, monkeypatch):
    frame = pd.DataFrame(values, index=NAMES)
    np.savez(tmp_path / "e.npz", names=np.array(NAMES), values=values)
    np.save(tmp_path / "e.npy", values)
    (tmp_path / "names.txt").write_text("\n".join(NAMES) + "\n")
    frame.to_csv(tmp_path / "e.csv")
    cells = AnnData(np.zeros((3, 12), dtype=np.float32), var=pd.DataFrame(index=NAMES))
    cells.varm["own"] = values
    cells.write_h5ad(tmp_path / "varm.h5ad")
    genes = AnnData(values.astype(np.float32), obs=pd.DataFrame(index=NAMES))
    genes.write_h5ad(tmp_path / "genes.h5ad")
    want = GeneEmbedding(tuple(NAMES), values)
    forms = [want, frame, dict(zip(NAMES, values, strict=True)), tmp_path / "e.npz", tmp_path / "e.csv"]
    for form in forms:
        found = GeneEmbedding.of(form)
        assert found.names == want.names
        np.testing.assert_allclose(found.values, values, rtol=1e-12)
    assert GeneEmbedding.of(values, names=NAMES).content_hash == want.content_hash
    assert GeneEmbedding.of(tmp_path / "e.npy", names=tmp_path / "names.txt").content_hash == want.content_hash
    assert GeneEmbedding.of(tmp_path / "varm.h5ad", key="varm/own").content_hash == want.content_hash
    np.testing.assert_allclose(GeneEmbedding.of(tmp_path / "genes.h5ad").values, values, rtol=1e-6)
    (tmp_path / "e.parquet").write_bytes(b"")
    monkeypatch.setattr(pd, "read_parquet", lambda path: frame)
    assert GeneEmbedding.of(tmp_path / "e.parquet").content_hash == want.content_hash


@pytest.mark.parametrize(
    ("names", "change", "message"),
    [
        (["G0", "G0"], None, "more than once: G0"),
        (["G0"], None, "one row per gene"),
        (["G0", "G1"], np.nan, r"NaN or infinity \(G1\)"),
    ],
    ids=["repeated", "shape", "nan"],
)
def test_wrong_vectors_are_refused(names, change, message):
    values = np.ones((2, 2))
    if change is not None:
        values[1, 0] = change
    with pytest.raises(ValueError, match=message):
        GeneEmbedding(tuple(names), values)


def test_files_that_say_too_little(tmp_path, values):
    np.save(tmp_path / "e.npy", values)
    with pytest.raises(ValueError, match="give names="):
        GeneEmbedding.of(tmp_path / "e.npy")
    AnnData(values.astype(np.float32)).write_h5ad(tmp_path / "e.h5ad")
    with pytest.raises(ValueError, match="has no 'obsm/none'"):
        GeneEmbedding.of(tmp_path / "e.h5ad", key="obsm/none")
    (tmp_path / "e.pkl").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"expected \.npz"):
        GeneEmbedding.of(tmp_path / "e.pkl")


def test_neighbours_are_those_of_the_cosine(values):
    nodes = [*NAMES[::-1], "unknown"]
    graph = GeneEmbedding(tuple(NAMES), values).graph(nodes, k=3)
    centred = values - values.mean(axis=0)
    unit = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    cosine = unit @ unit.T
    frame = graph.to_frame()
    for target in NAMES:
        row = cosine[NAMES.index(target)].copy()
        row[NAMES.index(target)] = -1
        best = [NAMES[i] for i in np.argsort(-row)[:3] if row[i] > 0]
        own = frame[(frame["target"] == target) & (frame["source"] != target)]
        assert set(own["source"]) == set(best)
        np.testing.assert_allclose(own["weight"], [row[NAMES.index(s)] for s in own["source"]], atol=1e-9)
    assert not (frame["target"] == "unknown").any()
    again = GeneEmbedding(tuple(NAMES), values).graph(sorted(nodes), k=3)
    assert sorted(again.to_frame().itertuples(index=False)) == sorted(frame.itertuples(index=False))
    with pytest.raises(ValueError, match="no gene of the graph has a vector"):
        GeneEmbedding(tuple(NAMES), values).graph(["X", "Y"], k=3)


@pytest.mark.parametrize("size", [2, 6, 8])
def test_start_keeps_the_leading_components(values, size):
    start = GeneEmbedding(tuple(NAMES), values).start([*NAMES, "none"], size)
    assert np.isnan(start[-1]).all()
    centred = values - values.mean(axis=0)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    want = (u * s)[:, :size]
    np.testing.assert_allclose(start[:-1] @ start[:-1].T, want @ want.T / (want**2).sum(axis=1).mean(), atol=1e-10)
    assert np.isclose((start[:-1] ** 2).sum(axis=1).mean(), 1)
