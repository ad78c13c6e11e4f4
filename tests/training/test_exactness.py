"""Any number of workers gives the result of one: gradients, whole runs, resumed runs. Real processes, float64."""

from pathlib import Path
from typing import Any

import pytest
import torch
from driving import cut_off, workers_by_fork
from exact_cases import (
    ACCUMULATED_WINDOWS,
    GLOBAL_BATCH,
    REPRODUCIBLE,
    RUNS,
    RUNS_OF_FOUR,
    SPLITS,
    opened,
    reproduced,
    run,
    stepped,
    work,
)  # fmt: skip

from gears import PertData
from gears.distributed import launch
from gears.files.formats import read_tensors
from gears.simulate import simulated_screen

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
GRADIENT, WHOLE_RUN, CURVE = 1e-10, 1e-6, 1e-8
MOST_WORKERS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    adata, _ = simulated_screen(n_genes=60, n_singles=54, n_pairs=8, cells_per_condition=4, n_control=40, seed=3)
    path = tmp_path_factory.mktemp("exact")
    data = PertData(path, default_pert_graph=False)
    data.new_data_process("small", adata)
    return path


@pytest.fixture(scope="module")
def data(folder: Path) -> PertData:
    return opened(folder)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("found")


@pytest.fixture(scope="module")
def alone(data: PertData, out: Path) -> dict[str, Any]:
    """The runs of one worker; some leave checkpoints and are cut off within an epoch."""
    found = {}
    for name in (*RUNS, *REPRODUCIBLE):
        kept = {"save_path": str(out / name), "checkpoint_every_steps": 1, "keep_last": 100}
        if name in RUNS:
            found[name] = run(data, name, **(kept if name == "cells" else {}))
        else:
            found[name] = reproduced(data, name, **kept)
            cut_off(out / name, "epoch-00000-step-0000002")
    cut_off(out / "cells", "epoch-00001-step-")
    return found


@pytest.fixture(scope="module")
def several(folder: Path, out: Path, alone: dict[str, Any]) -> dict[int, list[dict[str, Any]]]:
    """What each rank found, by number of workers: one start of processes for all cases."""
    with workers_by_fork():
        launch(work, ["cpu"] * MOST_WORKERS, (str(folder), str(out)), backend="gloo")
    return {
        workers: [read_tensors(out / f"found-{workers}-{rank}.pt") for rank in range(workers)]
        for workers in (2, MOST_WORKERS)
    }


def furthest(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    assert left.keys() == right.keys()
    return max(float((left[key].double() - right[key].double()).abs().max()) for key in left)


def assert_same_run(left: dict[str, Any], right: dict[str, Any]) -> None:
    for what in ("weights", "kept"):
        assert furthest(left[what], right[what]) < WHOLE_RUN
    assert left["head"].keys() == right["head"].keys()
    for kind, numbers in left["head"].items():
        assert numbers == pytest.approx(right["head"][kind], abs=WHOLE_RUN)
    assert left["best_epoch"] == right["best_epoch"]
    assert [record.keys() for record in left["history"]] == [record.keys() for record in right["history"]]
    for one, other in zip(left["history"], right["history"], strict=True):
        assert one == pytest.approx(other, abs=CURVE, nan_ok=True)


@pytest.mark.parametrize(("name", "workers"), [*((name, 2) for name in RUNS), *((name, 4) for name in RUNS_OF_FOUR)])
def test_whole_runs_are_those_of_one_worker(name, workers, data, alone, several):
    one = alone[name]
    assert 0 < len(data.split.conditions("val")) < MOST_WORKERS, "so that one of four has none"
    assert len(one["history"]) == 2
    for found in several[workers]:
        assert_same_run(found[name], one)
    assert ("single" in one["head"]) == (name == "moments, with the prior")
    first, last = one["history"][0], one["history"][-1]
    assert first["train_loss"] != pytest.approx(last["train_loss"], rel=1e-3), "nothing was learnt"


@pytest.mark.parametrize("objective", GLOBAL_BATCH)
def test_gradients_do_not_depend_on_who_has_which_rows(objective, data, several):
    """And without batch norms accumulated ones are those of the window as one batch."""
    before = stepped(data, objective, "nll", [[list(range(16))]])
    whole = stepped(data, objective, "nll", ACCUMULATED_WINDOWS["whole"], additive=True)
    for found in several[2]:
        for split in SPLITS:
            assert furthest(found[f"{objective}: {split}"], before) < GRADIENT, split
        assert furthest(found[f"{objective}: accumulated"], whole) < GRADIENT
    half = stepped(data, objective, "nll", [[list(range(8))]])
    assert furthest(half, before) > 1e-4, "the rows make no difference: the comparison shows nothing"


def test_the_same_workers_give_the_same_bits(several: dict[int, list[dict[str, Any]]]) -> None:
    for found in several[2]:
        assert furthest(found["cells"]["weights"], found["two"]["weights"]) == 0.0
        assert found["cells"]["history"] == found["two"]["history"]


def test_runs_are_resumed_by_other_numbers_of_workers(data, out, alone, several):
    for found in several[2]:
        assert_same_run(found["one, resumed by two"], alone["cells"])
    cut_off(out / "two", "epoch-00001-step-")
    resumed = run(data, "cells", save_path=str(out / "two"), resume=True)
    assert_same_run(resumed, alone["cells"])


def test_a_failed_write_is_raised_on_every_rank(several: dict[int, list[dict[str, Any]]]) -> None:
    writer, other = (found["failed write"] for found in several[2])
    assert writer.startswith(("FileExistsError", "NotADirectoryError"))
    assert "rank 0 could not write" in other
    assert writer.split(": ", 1)[1] in other, "the reason is named whichever is heard first"


@pytest.mark.parametrize("how", ["begun", "resumed"])
@pytest.mark.parametrize("name", REPRODUCIBLE)
def test_several_workers_give_the_bits_of_one(name, how, alone, several):
    """With ``reproducible=True``."""
    for found in several[2]:
        assert found[f"{how}: {name}"] == alone[name]


def test_threads_do_not_change_a_bit(data: PertData, alone: dict[str, Any]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert reproduced(data, "shards, prior") == alone["shards, prior"]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
