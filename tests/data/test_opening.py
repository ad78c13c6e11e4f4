"""Files and folders of every kind give the same screen; messages name what was given and what makes a screen of it."""

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from anndata.io import write_elem
from scipy import io, sparse

from gears.data import add_guides, open_screen
from gears.data.reading import _open as reading
from gears.data.reading._matrix import layers_of
from gears.data.screen.prepare import LoadCall, locate_screen, obtain_screen, prepare_screen
from gears.pertdata import PertData


@pytest.fixture
def raw(toy_adata):
    """The toy screen as counts."""
    toy_adata.X.data = np.rint(np.expm1(toy_adata.X.data))
    return toy_adata


def write_10x_h5(adata: AnnData, path: Path, *, version: int = 3, guides: int = 0) -> None:
    of_guides = sparse.csr_matrix(np.ones((adata.n_obs, guides)))
    counts = sparse.hstack([adata.X, of_guides]).tocsr().astype(np.int32)
    ids = [*adata.var_names, *(f"guide{i}" for i in range(guides))]
    names = [*adata.var["gene_name"], *(f"guide{i}" for i in range(guides))]
    with h5py.File(path, "w") as file:
        group = file.create_group("matrix" if version == 3 else "GRCh38")
        for name, values in (("data", counts.data), ("indices", counts.indices), ("indptr", counts.indptr)):
            group[name] = values
        group["shape"] = [len(ids), adata.n_obs]
        group["barcodes"] = np.array(adata.obs_names, dtype="S")
        if version == 3:
            features = group.create_group("features")
            features["id"], features["name"] = np.array(ids, dtype="S"), np.array(names, dtype="S")
            kinds = ["Gene Expression"] * adata.n_vars + ["CRISPR Guide Capture"] * guides
            features["feature_type"] = np.array(kinds, dtype="S")
        else:
            group["genes"], group["gene_names"] = np.array(ids, dtype="S"), np.array(names, dtype="S")


def write_10x_mtx(adata: AnnData, folder: Path, *, zipped: bool = True, prefix: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    io.mmwrite(folder / f"{prefix}matrix.mtx", sparse.coo_matrix(adata.X.T.astype(np.int32)))
    features = pd.DataFrame({"id": adata.var_names, "name": adata.var["gene_name"], "type": "Gene Expression"})
    features.to_csv(folder / f"{prefix}features.tsv", sep="\t", header=False, index=False)
    pd.Series(adata.obs_names).to_csv(folder / f"{prefix}barcodes.tsv", header=False, index=False)
    for path in folder.iterdir() if zipped else ():
        with open(path, "rb") as source, gzip.open(f"{path}.gz", "wb") as target:
            shutil.copyfileobj(source, target)
        path.unlink()


def write_guides(adata: AnnData, path: Path) -> Path:
    genes = [[t for t in label.split("+") if t != "ctrl"] for label in adata.obs["condition"]]
    targets = ["|".join(g) or "Non-Targeting" for g in genes]
    table = pd.DataFrame({"cell_barcode": adata.obs_names, "target_gene": targets})
    table.to_csv(path, index=False)
    return path


def split_up(adata: AnnData, folder: Path) -> None:
    folder.mkdir()
    adata[:100].copy().write_h5ad(folder / "a.h5ad")
    adata[100:, ::-1].copy().write_h5ad(folder / "b.h5ad")


WRITTEN: dict[str, tuple[Callable[[AnnData, Path], None], str]] = {
    "h5ad": (lambda a, p: a.write_h5ad(p), "screen.h5ad"),
    "h5ad under another name": (lambda a, p: a.write_h5ad(p), "screen.hdf5"),
    "zarr": (lambda a, p: a.write_zarr(p), "screen.zarr"),
    "10x h5": (write_10x_h5, "screen.h5"),
    "10x h5 under another name": (write_10x_h5, "screen.h5ad"),
    "10x h5 with guides": (lambda a, p: write_10x_h5(a, p, guides=3), "screen.h5"),
    "10x h5 of version 2": (lambda a, p: write_10x_h5(a, p, version=2), "screen.h5"),
    "10x mtx": (write_10x_mtx, "screen"),
    "10x mtx with prefix": (lambda a, p: write_10x_mtx(a, p, zipped=False, prefix="GSM1_"), "screen"),
    "several": (split_up, "screen"),
}


@pytest.mark.filterwarnings("ignore:.*zarr.*")
@pytest.mark.parametrize("kind", WRITTEN)
def test_every_kind_of_file_gives_the_same_screen(kind, raw, toy_go, tmp_path):
    write, name = WRITTEN[kind]
    write(raw, tmp_path / name)
    expected = prepare_screen(raw, tmp_path / "expected", normalize=True)
    data = PertData(tmp_path / "data", gene2go=toy_go)
    guides = write_guides(raw, tmp_path / "guides.csv")
    options = {"guides": guides} if "10x" in kind else {}
    data.load(data_path=tmp_path / name, normalize=True, style="auto", **options)
    assert data.dataset_name == "screen" or kind == "h5ad under another name"
    assert data.screen.labels == expected.labels
    assert data.screen.gene_names == expected.gene_names
    np.testing.assert_allclose(data.screen.cells.csr().toarray(), expected.cells.csr().toarray(), rtol=1e-6)
    np.testing.assert_array_equal(data.screen.cell_label, expected.cell_label)


@pytest.mark.parametrize(("form", "dense"), [(np.int64, True), (np.uint16, False)])
def test_counts_of_any_type(raw, tmp_path, form, dense):
    expected = prepare_screen(raw, tmp_path / "expected", normalize=True)
    raw.X = raw.X.toarray().astype(form) if dense else raw.X.astype(form)
    found = prepare_screen(raw, tmp_path / "found", normalize=True)
    np.testing.assert_array_equal(found.cells.csr().data, expected.cells.csr().data)


def test_the_files_of_a_folder_keep_their_names(raw, tmp_path):
    split_up(raw, tmp_path / "parts")
    whole = open_screen(tmp_path / "parts")
    assert whole.obs["source_file"].value_counts().to_dict() == {"b": 116, "a": 100}
    assert whole.obs_names.is_unique
    assert whole.var["gene_name"].tolist() == raw.var["gene_name"].tolist()
    raw[:, 3:].copy().write_h5ad(tmp_path / "parts" / "c.h5ad")
    with pytest.raises(ValueError, match=r"c.h5ad does not measure the genes of a.h5ad: 3 genes missing"):
        open_screen(tmp_path / "parts")


def bad_files(raw: AnnData, folder: Path) -> dict[str, tuple[type, str]]:
    (folder / "empty.h5ad").touch()
    (folder / "page.h5ad").write_text("<html>403</html>")
    (folder / "notes.txt").write_text("notes")
    (folder / "nothing").mkdir()
    (folder / "thesis").mkdir()
    (folder / "thesis" / "thesis.tex").touch()
    with h5py.File(folder / "other.h5", "w") as file:
        file["x"] = [1]
    write_10x_mtx(raw, folder / "lost", zipped=False)
    (folder / "lost" / "barcodes.tsv").unlink()
    write_10x_mtx(raw, folder / "mixed", zipped=False)
    (folder / "mixed" / "barcodes.tsv").write_text("AAA\nCCC\n")
    write_10x_mtx(raw, folder / "torn", zipped=False)
    (folder / "torn" / "matrix.mtx").write_text("%%MatrixMarket matrix\n")
    write_10x_mtx(raw, folder / "two", zipped=False)
    shutil.copy(folder / "two" / "matrix.mtx", folder / "two" / "b_matrix.mtx")
    raw.write_h5ad(folder / "half.h5ad")
    body = (folder / "half.h5ad").read_bytes()
    (folder / "half.h5ad").write_bytes(body[: len(body) // 2])
    return {
        "empty.h5ad": (ValueError, r"is empty \(0 bytes\)"),
        "page.h5ad": (ValueError, "cannot be read as an h5ad file"),
        "half.h5ad": (ValueError, "is damaged or cut short .*truncated file"),
        "notes.txt": (ValueError, "none of what can be read: an h5ad file, a zarr store"),
        "nothing": (ValueError, "holds no screen .it is empty."),
        "thesis": (ValueError, "holds no screen .thesis.tex."),
        "other.h5": (ValueError, "without what AnnData or 10x write .it has x."),
        "lost": (FileNotFoundError, r"has no barcodes.tsv \(plain or .gz\)"),
        "mixed": (ValueError, "30 features x 216 cells, but .* 30 features and 2 barcodes"),
        "torn": (ValueError, "cannot be read as a MatrixMarket file"),
        "two": (ValueError, "has 2 matrices"),
        "absent.h5ad": (FileNotFoundError, "there is no file or folder"),
    }


def test_what_cannot_be_read_says_why(raw, tmp_path):
    for name, (error, words) in bad_files(raw, tmp_path).items():
        with pytest.raises(error, match=words):
            open_screen(tmp_path / name)


def test_a_file_as_data_path(raw, tmp_path):
    raw.write_h5ad(tmp_path / "toy.h5ad")
    with pytest.raises(NotADirectoryError, match=r"data_path .*toy.h5ad is a file.*load\(data_path="):
        PertData(tmp_path / "toy.h5ad")
    with pytest.raises(NotADirectoryError, match="is a file"):
        PertData(tmp_path / "toy.h5ad" / "deeper")


def test_what_data_means(raw, tmp_path, monkeypatch):
    """A path, whatever is there; else a name in the folder of prepared screens."""
    work = tmp_path / "work"
    (tmp_path / "published").mkdir()
    for path in (tmp_path / "screen.h5ad", tmp_path / "published" / "perturb_processed.h5ad"):
        raw.write_h5ad(path)
    split_up(raw, tmp_path / "parts")
    for path, name in ((tmp_path / "published", "published"), (tmp_path / "parts", "parts")):
        data = PertData(work, default_pert_graph=False)
        data.load(data_path=path, normalize=True)
        assert data.dataset_path == work / name
        assert locate_screen(name, work) == locate_screen(work / name.upper()) == work / name
    monkeypatch.chdir(tmp_path)
    assert locate_screen("screen.h5ad", work) == Path("screen.h5ad")
    assert locate_screen("parts", work) == Path("parts")  # what is there comes first
    with pytest.raises(FileNotFoundError, match=r"there is no file or folder other\.h5ad$"):
        locate_screen("other.h5ad", work)
    with pytest.raises(FileNotFoundError, match=r"no file or folder partz, and .*did you mean 'parts'"):
        locate_screen("partz", work)
    for name, near in (("screen", r"; did you mean 'screen\.h5ad'\?"), ("norman", "")):
        with pytest.raises(FileNotFoundError, match=f"there is no file or folder {name}{near}$"):
            locate_screen(name)
    (work / "screen.h5").write_bytes(b"")
    assert locate_screen("screen", work) == work / "screen.h5"


def test_screens_without_cells_or_genes(raw, tmp_path):
    with pytest.raises(ValueError, match="there are no cells"):
        prepare_screen(raw[:0].copy(), tmp_path / "toy")
    with pytest.raises(ValueError, match="there are no genes"):
        prepare_screen(raw[:, :0].copy(), tmp_path / "toy")
    with pytest.raises(ValueError, match="there are no cells"):
        prepare_screen(anndata.AnnData(), tmp_path / "toy")


@pytest.mark.parametrize("version", [2, 3])
def test_a_10x_file_keeps_ids_of_repeated_symbols(raw, version, tmp_path):
    raw.var["gene_name"] = ["GX00", *raw.var["gene_name"][1:-1], "GX00"]
    write_10x_h5(raw, tmp_path / "counts.h5", version=version)
    found = open_screen(tmp_path / "counts.h5")
    assert found.var_names.tolist() == raw.var_names.tolist()
    assert found.var["gene_name"].tolist() == raw.var["gene_name"].tolist()
    np.testing.assert_array_equal(found.X.toarray(), raw.X.toarray())


def test_10x_files_that_do_not_fit_together(raw, tmp_path):
    for name, change in {
        "barcodes": lambda matrix: matrix["barcodes"][:-1],
        "indices": lambda matrix: matrix["indices"][:] + 30,
        "indptr": lambda matrix: matrix["indptr"][:] + 1,
        "features/name": lambda matrix: matrix["features/name"][:-1],
    }.items():
        path = tmp_path / f"{name.replace('/', '-')}.h5"
        write_10x_h5(raw, path)
        with h5py.File(path, "r+") as file:
            changed = change(file["matrix"])
            del file["matrix"][name]
            file["matrix"][name] = changed
        with pytest.raises(ValueError, match=rf"{path.stem}\.h5 cannot be read as a 10x h5 file"):
            open_screen(path)


# Guides


def test_guides_in_every_form(raw, toy_adata, tmp_path):
    plain = anndata.AnnData(raw.X, obs=pd.DataFrame(index=raw.obs_names), var=raw.var)
    wide = pd.read_csv(write_guides(raw, tmp_path / "wide.csv"))
    long = wide.assign(target_gene=wide["target_gene"].str.split("|")).explode("target_gene")
    targets = {f"{gene}_g1": gene for gene in long["target_gene"].unique()}
    called = wide.rename(columns={"target_gene": "feature_call"})
    called["feature_call"] = ["|".join(f"{g}_g1" for g in text.split("|")) for text in wide["target_gene"]]
    reference = pd.DataFrame({"id": targets.keys(), "name": targets.keys(), "target_gene_name": targets.values()})
    reference.to_csv(tmp_path / "features.csv", index=False)
    given = ((wide, None), (long, None), (called, targets), (called, tmp_path / "features.csv"))
    for table, of_guides in given:
        found = add_guides(plain, table, of_guides)
        assert found.obs["condition"].astype(str).tolist() == raw.obs["condition"].astype(str).tolist()
        assert found.obs["n_guides"].max() == 2
    assert "condition" not in plain.obs
    with pytest.raises(ValueError, match=r"guides \(column 'feature_call'\), not genes.*guide_targets="):
        add_guides(plain, called)
    with pytest.raises(ValueError, match="the targets of 1 guide are not given: GX00_g1"):
        add_guides(plain, called, {guide: gene for guide, gene in targets.items() if gene != "GX00"})


def test_cells_without_a_guide_are_no_controls(raw, tmp_path, caplog):
    plain = anndata.AnnData(raw.X, obs=pd.DataFrame(index=raw.obs_names), var=raw.var)
    table = pd.read_csv(write_guides(raw, tmp_path / "guides.csv"))
    table.loc[:4, "target_gene"] = "None"
    found = add_guides(plain, table[:-3])
    assert found.n_obs == 216 - 5 - 3
    assert "8 cells of 216 without a guide excluded" in caplog.text
    assert (found.obs["condition"] == "ctrl").sum() == 55
    with pytest.raises(ValueError, match=r"no barcode of the guide table is a cell: it has 'cell005-1'"):
        add_guides(plain, table.assign(cell_barcode=table["cell_barcode"] + "-1"))
    with pytest.raises(ValueError, match=r"no column of barcodes .*did you mean 'cell_barcod'"):
        add_guides(plain, table.rename(columns={"cell_barcode": "cell_barcod"}))


@pytest.mark.parametrize(
    "address", ["https://zenodo.org/a/x.h5ad", "s3://bucket/x.h5ad", "ftp://x.org/y", "gs:/b/x.zarr"]
)
def test_addresses_are_refused(address):
    for function in (open_screen, locate_screen):
        with pytest.raises(ValueError, match=r"is a web address \(\w+\).*download it first"):
            function(address)


@pytest.mark.parametrize("rna", ["rna", "GEX", "spliced_rna"])
def test_mudata_is_named_with_its_modalities(rna, toy_adata, tmp_path):
    file = tmp_path / "x.h5mu"
    with h5py.File(file, "w") as written:
        for name in (rna, "adt"):
            write_elem(written, f"mod/{name}", toy_adata)
        write_elem(written, "obs", toy_adata.obs)
        write_elem(written, "var", toy_adata.var)
    with pytest.raises(ValueError, match="MuData file") as caught:
        open_screen(file)
    assert f".mod['{rna}'].write_h5ad" in str(caught.value)


def test_loom_is_named(tmp_path):
    with h5py.File(tmp_path / "x.loom", "w") as written:
        written["matrix"] = np.ones((3, 4))
        written["row_attrs/Gene"] = np.array(["A", "B", "C"], dtype="S")
        written["col_attrs/CellID"] = np.array(["a", "b", "c", "d"], dtype="S")
    with pytest.raises(ValueError, match=r"loom file.*read_loom\('x.loom'\)"):
        open_screen(tmp_path / "x.loom")


@pytest.mark.parametrize(("code", "name"), [(32015, "zstd"), (32001, "blosc"), (32004, "lz4")])
def test_a_filter_that_is_not_installed_is_named(code, name, toy_adata, tmp_path):
    file = tmp_path / "x.h5ad"
    toy_adata.write_h5ad(file)
    with h5py.File(file, "r+") as written:
        values = written["X/data"][:]
        del written["X/data"]
        created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        created.set_chunk(values.shape)
        created.set_filter(code, h5py.h5z.FLAG_OPTIONAL)
        space, kind = h5py.h5s.create_simple(values.shape), h5py.h5t.py_create(values.dtype)
        stored = h5py.h5d.create(written["X"].id, b"data", kind, space, created)
        stored.write_direct_chunk((0,), b"not zeros", 0)
    with pytest.raises(ValueError, match=rf"compressed with {name}, .*hdf5plugin"):
        open_screen(file)


@pytest.fixture
def toy_file(toy_adata, tmp_path):
    toy_adata.layers["counts"] = sparse.csr_matrix(np.rint(np.expm1(toy_adata.X.toarray())))
    toy_adata.obsm["X_pca"] = np.zeros((toy_adata.n_obs, 2))
    toy_adata.write_h5ad(tmp_path / "toy.h5ad")
    return tmp_path / "toy.h5ad"


@pytest.mark.parametrize(("form", "most_in_memory"), [("csr", None), ("csr", 0), ("dense", 0), ("csc", 0)])
def test_a_file_gives_the_screen_of_its_object(form, most_in_memory, toy_file, toy_screen, tmp_path, monkeypatch):
    if most_in_memory is not None:
        monkeypatch.setattr(reading, "MOST_IN_MEMORY", most_in_memory)
        monkeypatch.setattr(reading, "CHUNK_VALUES", 300)
    adata = anndata.read_h5ad(toy_file)
    adata.X = {"csr": adata.X, "dense": adata.X.toarray(), "csc": adata.X.tocsc()}[form]
    adata.write_h5ad(toy_file)
    screen = obtain_screen(tmp_path / "screens", LoadCall(data_path=toy_file), lambda: lambda _: True)
    assert screen.content_hash == toy_screen.content_hash
    np.testing.assert_array_equal(screen.statistics.m4, toy_screen.statistics.m4)
    np.testing.assert_array_equal(screen.cells.csr().toarray(), toy_screen.cells.csr().toarray())
    backed = anndata.read_h5ad(toy_file, backed="r")
    again = prepare_screen(backed, tmp_path / "backed")
    view = prepare_screen(backed[:, :], tmp_path / "view")
    backed.file.close()
    assert again.content_hash == view.content_hash == toy_screen.content_hash
    assert sorted(place.name for place in (tmp_path / "screens").iterdir()) == [".toy.lock", "toy"]


def test_what_is_read_of_a_file(toy_file, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "CELLS_OF_OTHERS", 3)
    adata = reading.open_lean(toy_file, None, tmp_path)
    assert np.flatnonzero(np.diff(adata.X.indptr)).max() > 200
    assert list(layers_of(adata)) == ["counts"]
    assert np.flatnonzero(np.diff(adata.layers["counts"].indptr)).tolist() == [0, 1, 2]
    assert not adata.obsm
    monkeypatch.setattr(reading, "MOST_IN_MEMORY", 0)
    adata = reading.open_lean(toy_file, "counts", tmp_path)
    assert adata.layers["counts"].nnz > adata.X.nnz == 0
    assert not adata.layers["counts"].data.flags.writeable  # the mapped file itself, no copy
    assert [place.name for place in tmp_path.iterdir()] == ["toy.h5ad"]
