"""Blocks of conditions on processes, ranks of torchrun and dask workers: one result, and no block twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest
from driving import dying_once, workers_by_fork
from test_streaming import model_of

from gears import GEARS
from gears.distributed._devices import one_thread
from gears.distributed._signals import stop_requested
from gears.prediction.predictions import Predictions

CHUNK = 10  # of 66 pairs: seven blocks, the last of six


@pytest.fixture(scope="module")
def model() -> GEARS:
    return model_of(30, uncertainty=True)


@pytest.fixture
def genes(model: GEARS) -> list[str]:
    return model.pert_list[:12]


@pytest.fixture(autouse=True)
def in_one_thread() -> Iterator[None]:
    """As a worker computes: without workers torch takes all threads, which add in another order."""
    with one_thread():
        yield


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The user's cache folder, where blocks of rankings are; no launcher's variables."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gears" / "blocks"


def noting(file: Path, fails: Callable[[int], bool] = lambda _: False) -> Callable[[Predictions], np.ndarray]:
    """A score that notes in a file the first pair of each block; it may fail from a number of notes on."""

    def score(predictions: Predictions) -> np.ndarray:
        with file.open("a") as notes:
            notes.write(f"{predictions.conditions[0].name}\n")
        if fails(len(file.read_text().splitlines())):
            msg = "no more"
            raise OSError(msg)
        return predictions.delta_UG[:, 0]

    return score


def test_any_number_of_processes_ranks_alike(model, genes, tmp_path, cache):
    expected = model.rank_pairs(noting(tmp_path / "notes"), genes, chunk=CHUNK)
    for n_at_once in (1, 3):
        notes = tmp_path / f"notes{n_at_once}"
        with workers_by_fork():
            found = model.rank_pairs(noting(notes), genes, chunk=CHUNK, n_at_once=n_at_once)
        pd.testing.assert_frame_equal(found, expected, check_exact=True)
        assert sorted(notes.read_text().split()) == sorted((tmp_path / "notes").read_text().split())
    assert not any(cache.iterdir())


@pytest.mark.parametrize("suffix", [".h5ad", ".zarr"])
def test_a_file_of_two_processes_is_that_of_one(suffix, model, genes, tmp_path, quick_workers):
    pairs = model.pairs(genes)
    plain = model.predict_to_file(pairs, tmp_path / f"plain{suffix}", chunk=CHUNK)
    two = model.predict_to_file(pairs, tmp_path / f"two{suffix}", chunk=CHUNK, n_at_once=2)
    one, other = (getattr(anndata, f"read_{suffix[1:]}")(path) for path in (plain, two))
    np.testing.assert_array_equal(other.X, one.X)
    assert set(other.layers) == set(one.layers) == {"delta", "cell_sd"}
    for name in one.layers:
        np.testing.assert_array_equal(other.layers[name], one.layers[name])
    pd.testing.assert_frame_equal(other.obs, one.obs)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "cache") == [plain.name, two.name]


def test_a_call_goes_on_after_an_error(model, genes, tmp_path, cache, quick_workers):
    notes, broken = tmp_path / "notes", tmp_path / "broken"
    broken.touch()
    score = noting(notes, lambda n: broken.exists() and n == 5)
    with pytest.raises(RuntimeError, match="no more"):
        model.rank_pairs(score, genes, chunk=CHUNK, n_at_once=1)
    assert len(list(cache.rglob("block-*.npz"))) == 4
    broken.unlink()
    found = model.rank_pairs(score, genes, chunk=CHUNK, n_at_once=2)
    assert len(notes.read_text().split()) == 5 + 3, "four blocks were there"
    expected = model.rank_pairs(lambda one: one.delta_UG[:, 0], genes, chunk=CHUNK)
    pd.testing.assert_frame_equal(found, expected, check_exact=True)
    other = model.rank_pairs(lambda one: -one.delta_UG[:, 0], genes, chunk=CHUNK, n_at_once=1)
    np.testing.assert_array_equal(np.sort(other["score"]), np.sort(-expected["score"]))


def test_a_signal_stops_workers_after_their_block_and_the_call_goes_on(model, genes, tmp_path, cache, quick_workers):
    notes, caller = tmp_path / "notes", os.getpid()
    note = noting(notes)

    def score(predictions: Predictions) -> np.ndarray:
        values = note(predictions)
        if len(notes.read_text().splitlines()) == 2:
            os.kill(caller, signal.SIGTERM)
            while not stop_requested():
                time.sleep(0.01)
        return values

    with pytest.raises(SystemExit):
        model.rank_pairs(score, genes, chunk=CHUNK, n_at_once=1)
    assert len(notes.read_text().split()) == len(list(cache.rglob("block-*.npz"))) == 2
    model.rank_pairs(score, genes, chunk=CHUNK, n_at_once=1)
    assert len(notes.read_text().split()) == 7


def as_rank(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, str(value))


def test_ranks_share_the_blocks_and_the_first_waits_for_nobody(model, genes, tmp_path, cache, monkeypatch):
    notes = tmp_path / "notes"
    expected = model.rank_pairs(lambda one: one.delta_UG[:, 0], genes, chunk=CHUNK)
    as_rank(0, monkeypatch)
    broken = tmp_path / "broken"
    broken.touch()
    score = noting(notes, lambda _: broken.exists())
    with pytest.raises(OSError, match="no more"):
        model.rank_pairs(score, genes, chunk=CHUNK)
    broken.unlink()
    as_rank(1, monkeypatch)
    assert model.rank_pairs(score, genes, chunk=CHUNK).empty
    assert len(list(cache.rglob("block-*.npz"))) == 3, "the second, fourth and sixth of seven"
    as_rank(0, monkeypatch)
    pd.testing.assert_frame_equal(model.rank_pairs(score, genes, chunk=CHUNK), expected, check_exact=True)
    assert len(notes.read_text().split()) == 1 + 7
    path = model.predict_to_file(model.pairs(genes), tmp_path / "alone.h5ad", chunk=CHUNK)
    assert len(anndata.read_h5ad(path)) == 66


SCRIPT = """
import sys
sys.path[:0] = sys.argv[1:3]
from test_streaming import model_of

model = model_of(30, uncertainty=True)
table = model.rank_pairs(lambda one: one.delta_UG[:, 0], model.pert_list[:12], chunk=10)
print("ROWS", len(table), flush=True)
if len(table):
    table.to_pickle(sys.argv[3])
"""


@pytest.mark.long  # in short, with the variables of torchrun alone: the test above
def test_under_torchrun_rank_0_has_the_table(model, genes, tmp_path):
    script, table = tmp_path / "script.py", tmp_path / "table.pkl"
    script.write_text(SCRIPT)
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(script)]
    done = subprocess.run(
        [*command, str(tests), str(tests / "prediction"), str(table)],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("ROWS")) == ["ROWS 0", "ROWS 66"]
    expected = model.rank_pairs(lambda one: one.delta_UG[:, 0], genes, chunk=CHUNK)
    pd.testing.assert_frame_equal(pd.read_pickle(table), expected, check_exact=True)


@pytest.mark.slow
def test_dask_workers_rank_alike_and_a_killed_one_costs_its_blocks(model, genes, tmp_path, dask_address):
    from distributed import Client

    killed = tmp_path / "killed"
    dies_once = dying_once(killed)
    expected = model.rank_pairs(lambda one: one.delta_UG[:, 0], genes, chunk=CHUNK)
    found = model.rank_pairs(lambda one: dies_once(one).delta_UG[:, 0], genes, chunk=CHUNK, dask=dask_address)
    with Client(dask_address) as client:
        again = model.rank_pairs(lambda one: one.delta_UG[:, 0], genes, chunk=CHUNK, dask=client)
    assert killed.exists()
    pd.testing.assert_frame_equal(found, expected, check_exact=True)
    pd.testing.assert_frame_equal(again, expected, check_exact=True)
