"""Files that nest or point elsewhere: refused before they leave their place."""

import gzip
import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from anndata import AnnData
from readers import GENES
from scipy import sparse
from scipy.io import mmwrite

from gears import cli
from gears.data import open_screen
from gears.data.splits import make_split
from gears.data.splits._registry import read_split_dict
from gears.files.formats import read_json
from gears.graphs import GeneAnnotation
from gears.graphs._nodes import read_gene_set

MARK = "guard-was-here"


def test_hdf5_files_that_point_elsewhere(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret bytes here")
    with h5py.File(tmp_path / "raw.h5ad", "w") as file:
        file.create_group("obs")
        file.create_group("var")
        file.create_dataset("X", shape=(16,), dtype="u1", external=[(str(secret), 0, 16)])
    with h5py.File(tmp_path / "link.h5ad", "w") as file:
        file["obs"] = h5py.ExternalLink("other.h5", "/obs")
        file.create_group("var")
    with h5py.File(tmp_path / "circle.h5ad", "w") as file:
        file.create_group("obs")["again"] = file["/"]
        file.create_group("var")
    for name, words in (
        ("raw", "stored in other files"), ("link", "stored in other files"),
        ("circle", "read"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=rf"{name}\.h5ad .*{words}"):
            open_screen(tmp_path / f"{name}.h5ad")


def test_zarr_stores_with_links(tmp_path):
    store = tmp_path / "screen.zarr"
    (store / "X").mkdir(parents=True)
    (store / ".zgroup").write_text('{"zarr_format": 2}')
    (store / "X" / "0").symlink_to("/etc/hostname")
    with pytest.raises(ValueError, match=r"screen\.zarr has links \(X/0\)"):
        open_screen(store)


JSON_BOMBS = {
    "nested": "[" * 100_000,
    "nested objects": '{"a":' * 100_000,
    "a huge number": "1" * 10_000,
    "a huge number inside": f'{{"a": {"9" * 5000}}}',
    "no text": b"\xff\xfe\x00",
    "half a surrogate": '{"\\ud800": ["T1"]}',
    "a page": "<!DOCTYPE html><html></html>",
}


@pytest.mark.parametrize("kind", JSON_BOMBS)
def test_json_that_breaks_readers(kind, tmp_path):
    text = JSON_BOMBS[kind]
    for name, read_file in (
        ("split.json", read_split_dict), ("annotation.json", GeneAnnotation.from_path),
        ("genes.json", read_gene_set), ("plain.json", read_json),
    ):  # fmt: skip
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        if (kind == "half a surrogate") or (name == "genes.json" and kind in ("a huge number", "a page")):
            continue  # valid JSON, or a list of (odd) names in plain text
        with pytest.raises(ValueError, match=name.replace(".", r"\.")):
            read_file(path)


def test_text_bombs(tmp_path):
    row = "DB\tID\t{gene}\t\tGO:1\tREF\tIDA\t\tP\tname\tOLD\tprotein\ttaxon:9606\t20200101\tDB\n"
    long = row.format(gene="G" * 200_000)
    (tmp_path / "long.gaf").write_text(long)
    with pytest.raises(ValueError, match=r"long\.gaf, after line 1, cannot be read as a table .*field larger"):
        GeneAnnotation.from_path(tmp_path / "long.gaf")
    (tmp_path / "cut.gaf.gz").write_bytes(gzip.compress(row.format(gene="A").encode() * 50)[:-12])
    with pytest.raises(ValueError, match=r"cut\.gaf\.gz.*cannot be read as text"):
        GeneAnnotation.from_path(tmp_path / "cut.gaf.gz")
    names = [f"{'N' * 100_000}{number}" for number in range(20)]
    (tmp_path / "split.json").write_text(json.dumps({"train": names, "val": [], "test": []}))
    labels = ["ctrl", *[f"{gene}+ctrl" for gene in GENES]]
    with pytest.raises(ValueError, match="characters") as caught:
        make_split(labels, "custom", split_dict=read_split_dict(tmp_path / "split.json"))
    assert len(str(caught.value)) < 5000


def test_settings_in_yaml_are_data(tmp_path):
    """Tags that make objects are refused."""
    bodies = {
        "tag": f"data: !!python/object/apply:os.system ['touch {tmp_path / MARK}']\n",
        "name": "data: !!python/name:os.system\n",
        "no yaml": "data: [1, 2\n",
        "a list": "- 1\n- 2\n",
        "a page": "<!DOCTYPE html><html></html>",
    }
    for kind, body in bodies.items():
        (tmp_path / "run.yaml").write_text(body)
        assert cli.main(["train", "--config", str(tmp_path / "run.yaml")]) == 2, kind
    assert not (tmp_path / MARK).exists()


def make_mtx(folder: Path, adata: AnnData) -> None:
    mmwrite(folder / "matrix.mtx", sparse.csr_matrix(adata.X).T)
    (folder / "barcodes.tsv").write_text("\n".join(adata.obs_names))
    (folder / "features.tsv").write_text("\n".join(f"{g}\t{g}\tGene Expression" for g in adata.var["gene_name"]))


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_matrices_of_text_with_zero_bytes(packed, tmp_path, toy_template):
    """scipy's reader of matrices ends the process where a number should be."""
    make_mtx(tmp_path, toy_template)
    whole = (tmp_path / "matrix.mtx").read_bytes()
    path = tmp_path / ("matrix.mtx.gz" if packed else "matrix.mtx")
    (tmp_path / "matrix.mtx").unlink()
    for place in (60, len(whole) // 2, 64_319, len(whole) - 43):
        content = whole[:place] + bytes(43) + whole[place + 43 :]
        path.write_bytes(gzip.compress(content) if packed else content)
        with pytest.raises(ValueError, match=r"matrix\.mtx.* cannot be read as a MatrixMarket file .*zero bytes"):
            open_screen(tmp_path)
    path.write_bytes(gzip.compress(whole) if packed else whole)
    np.testing.assert_allclose(open_screen(tmp_path).X.toarray(), toy_template.X.toarray(), rtol=1e-6)


@pytest.mark.parametrize("end", [b"1 1 1.0 5", b"1 1 1.0\x94"], ids=repr)
def test_matrices_of_text_with_more_on_the_last_line(end, tmp_path, toy_template):
    """Without a line feed after it scipy's reader ends the process."""
    make_mtx(tmp_path, toy_template)
    head = b"\n".join((tmp_path / "matrix.mtx").read_bytes().split(b"\n")[:3])
    (tmp_path / "matrix.mtx").write_bytes(head + b"\n" + end)
    with pytest.raises(ValueError, match=r"matrix\.mtx cannot be read as a MatrixMarket file .*Truncated"):
        open_screen(tmp_path)
