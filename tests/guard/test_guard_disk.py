"""A disk that is full, a folder that may not be written, one that vanishes: named errors, earlier results intact."""

import contextlib
import faulthandler
import hashlib
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from anndata import AnnData
from driving import closed
from readers import GENES, make_run

from gears import GEARS, PertData
from gears.data.screen.prepare import prepare_screen

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files as Linux does"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


@contextlib.contextmanager
def full_disk(n_bytes: int) -> Iterator[None]:
    """No file can grow beyond so many bytes: what the system says is an OSError, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder and its hash; hidden leftovers included."""
    found = (path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".lock"))
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


@pytest.fixture(scope="module")
def run(toy_template, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    make_run(folder, toy_template.copy())
    return folder


@pytest.fixture
def copy(run, tmp_path):
    shutil.copytree(run, tmp_path / "copy")
    return tmp_path / "copy"


def opened(folder: Path) -> GEARS:
    data = PertData(folder / "data", gene2go={gene: {f"T{i % 7}", f"T{i % 5}"} for i, gene in enumerate(GENES)})
    data.load("toy")
    data.prepare_split("simulation", seed=1)
    data.get_dataloader(batch_size=64)
    model = GEARS(data, device="cpu")
    model.load_pretrained(folder / "run")
    return model


def prepare_again(folder: Path, adata: AnnData) -> None:
    prepare_screen(adata[:180].copy(), folder / "data" / "toy")


def train_on(folder: Path, _: AnnData) -> None:
    opened(folder).train(steps=2, evaluate_test=False, verbose=False, save_path=str(folder / "run"), resume=True)


def predict(folder: Path, _: AnnData) -> None:
    opened(folder).predict_to_file([["GX00"], ["GX01"]], folder / "run.h5ad")


WRITERS: dict[str, tuple[Callable[[Path, AnnData], Any], str, int]] = {
    "preparing": (prepare_again, "toy could not be written", 2000),
    "saving": (lambda folder, _: opened(folder).save_model(folder / "run"), "run could not be written", 2000),
    "training": (train_on, r"epoch-.*\.pt could not be written|run could not be written", 3000),
}


@pytest.mark.parametrize("what", WRITERS)
def test_a_full_disk(what, copy, toy_adata):
    """The error names what could not be written; every earlier file is as it was, and nothing is left over."""
    write, words, size = WRITERS[what]
    before = contents(copy)
    with full_disk(size), pytest.raises(OSError, match=words) as caught:
        write(copy, toy_adata)
    assert str(caught.value).count("what was there before is unchanged") == 1
    after = contents(copy)
    assert all(after.get(name) == value for name, value in before.items() if "metrics" not in name)
    assert not [name for name in after if ".tmp" in name]
    write(copy, toy_adata)  # there is room again
    opened(copy) if what != "preparing" else None


def in_fork(action: Callable[[], Any]) -> str:
    """What is raised in a process of its own: HDF5's library does not outlive a disk that fills up under it."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        faulthandler.disable()  # that it ends by a signal after the error is known
        torch.set_num_threads(1)  # OpenMP's threads, which earlier tests may have started, are not in a fork
        try:
            action()
            os.write(writer, b"nothing was raised")
        except BaseException as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode()[:4000])
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with os.fdopen(reader, "rb") as file:
        return file.read().decode()


@pytest.mark.parametrize("what", ["predicting", "preparing"])
def test_a_disk_that_fills_up_within_hdf5(what, copy, toy_adata):
    before = contents(copy)

    def write() -> None:
        with full_disk(2000 if what == "predicting" else 50_000):
            (predict if what == "predicting" else prepare_again)(copy, toy_adata)

    words = in_fork(write)
    assert words.startswith("OSError")
    assert f"{'run.h5ad' if what == 'predicting' else 'toy'} could not be written" in words
    assert contents(copy) == before


def test_no_room_is_said_before_anything_is_written(copy, toy_adata, monkeypatch):
    before = contents(copy)
    monkeypatch.setattr("gears.files._atomic.shutil.disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 0))
    with pytest.raises(OSError, match=r"toy needs about 0 MB, 0 MB are free"):
        prepare_again(copy, toy_adata)
    with pytest.raises(OSError, match=r"run\.h5ad needs about"):
        predict(copy, toy_adata)
    assert contents(copy) == before


def test_a_folder_that_may_only_be_read(copy, toy_adata):
    """Reading works; writing is an error that names the place."""
    before = contents(copy)
    with closed(copy):
        model = GEARS.from_pretrained(copy / "run", device="cpu")
        assert np.isfinite(model.predict([["GX00"]])["GX00"]).all()
        with pytest.raises(PermissionError, match="run"):
            model.save_model(copy / "run")
        with pytest.raises(PermissionError, match="toy"):
            prepare_screen(toy_adata[:180].copy(), copy / "data" / "toy")
    assert contents(copy) == before


def test_a_folder_that_vanishes(copy):
    """The screen of an open model is removed: what needs it says so, what does not goes on."""
    model = opened(copy)
    shutil.rmtree(copy / "data")
    shutil.rmtree(copy / "run")
    assert np.isfinite(model.predict([["GX00"]])["GX00"]).all()
    with pytest.raises((OSError, ValueError), match="toy"):
        model.train(steps=1, evaluate_test=False, verbose=False, save_path=str(copy / "other"))
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*run; give the folder"):
        GEARS.from_pretrained(copy / "run")
