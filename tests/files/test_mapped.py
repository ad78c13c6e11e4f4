"""Large mapped arrays: pieces, pages let go of, tables written rows after rows."""

import os
from pathlib import Path

import numpy as np
import pytest

from gears.data.screen.cells import map_array
from gears.files import mapped


def resident_pages(array: np.ndarray) -> int:
    """Pages of the array's map that count in this process's size."""
    start = array.__array_interface__["data"][0]
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(start // os.sysconf("SC_PAGE_SIZE") * 8)
        entries = np.frombuffer(file.read(8 * (array.nbytes // os.sysconf("SC_PAGE_SIZE"))), dtype=np.uint64)
    return int((entries >> np.uint64(63)).sum())


@pytest.mark.skipif(
    not Path("/proc/self/pagemap").exists(), reason="the system does not tell which pages are there"
)
def test_pages_of_large_read_only_maps_are_let_go_of(tmp_path, monkeypatch):
    values = np.arange(1 << 20, dtype=np.float64)
    np.save(tmp_path / "values.npy", values)
    array = map_array(tmp_path / "values.npy")
    assert array.sum() == values.sum()
    assert resident_pages(array) > 1000
    mapped.release(array)  # a small file stays
    assert resident_pages(array) > 1000
    monkeypatch.setattr(mapped, "LARGE", 1)
    monkeypatch.setattr(mapped, "PIECE", 1 << 16)
    mapped.release(array)
    for number, piece in enumerate(mapped.pieces(array[5:])):
        assert resident_pages(array) == 0
        assert piece[0] == values[5 + number * (1 << 16)]
    assert resident_pages(array) == 0
    np.testing.assert_array_equal(array, values)  # read again


@pytest.mark.parametrize("shape", [(0,), (7,), (5, 3)])
def test_files_are_those_of_numpy(shape, tmp_path, monkeypatch):
    monkeypatch.setattr(mapped, "PIECE", 2)
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    np.save(tmp_path / "numpy.npy", array)
    with mapped.TableWriter(tmp_path / "own.npy", array.dtype, array.shape[1:]) as writer:
        writer.add(array[:2])
        writer.add(array[2:])
    assert (tmp_path / "own.npy").read_bytes() == (tmp_path / "numpy.npy").read_bytes()
    assert len(list(mapped.pieces(array))) == {0: 0, 7: 4, 5: 5}[shape[0]]
