"""Files and values that are not read: the message names what was given and what makes a screen of it."""

import h5py
import numpy as np
import pytest
from anndata.io import write_elem

from gears.data.reading.open import open_screen
from gears.data.screen.prepare import locate_screen


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
