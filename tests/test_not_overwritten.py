"""No file and no model of another screen is replaced; an earlier model stays until a run is complete."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driving import fork_server, gears_of, pert_data_of

from gears import GEARS, PertData
from gears.cli.main import main
from gears.data.splits import Split
from gears.files._atomic import only_writer
from gears.files.formats import read_tensors
from gears.report import write_report
from gears.simulate import simulate_to_h5ad
from gears.training._loggers import LOGGERS, Record, RunLogger

RUN = {"epochs": 2, "prior": None, "evaluate_test": False, "verbose": False}
MINE = b"a file of the user"


def new_model(small_data: PertData) -> GEARS:
    return gears_of(small_data, hidden_size=4)


def weights_in(path: Path) -> dict[str, Any]:
    return {name: value.numpy() for name, value in read_tensors(path / "model.pt").items()}


def same_weights(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return all(np.array_equal(left[name], right[name]) for name in left)


@pytest.fixture(scope="module")
def saved(tmp_path_factory, small_data):
    """A saved model."""
    path = tmp_path_factory.mktemp("models") / "m"
    model = new_model(small_data)
    model.train(epochs=0, evaluate_test=False, verbose=False, save_path=str(path))
    return path


SIZES = "--n-genes=20 --n-singles=3 --n-pairs=1 --cells-per-condition=4 --n-control=5 --quiet"


@pytest.mark.parametrize("name", ["mine.h5ad", "mine.csv", "mine.zarr", "screen.h5ad", "truth.npz"])
def test_commands_replace_no_file_without_overwrite(saved, small_data, name, tmp_path, capsys):
    output = tmp_path / name
    output.write_bytes(MINE)
    words = ["predict", str(saved), small_data.pert_names[0], "--output", str(output), "--quiet"]
    if not name.startswith("mine"):
        words = ["simulate", str(tmp_path / "screen.h5ad"), "--truth", str(tmp_path / "truth.npz"), *SIZES.split()]
    assert main(words) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == [name]
    assert output.read_bytes() == MINE
    if name != "mine.zarr":  # a folder; a file of that name is no folder to replace
        assert main([*words, "--overwrite"]) == 0
        assert output.read_bytes() != MINE


def test_functions_replace_no_file_without_overwrite(small_data, saved, tmp_path):
    model = GEARS.from_pretrained(saved, device="cpu")
    genes = small_data.pert_names[:3]
    assert isinstance(small_data.split, Split)
    writers = {
        "screen.h5ad": lambda path, **how: simulate_to_h5ad(
            path, n_genes=20, n_singles=3, n_pairs=1, cells_per_condition=4, n_control=5, **how
        ),
        "predicted.h5ad": lambda path, **how: model.predict_to_file(genes, path, **how),
        "pairs.h5ad": lambda path, **how: model.predict_to_file(model.pairs(genes), path, **how),
        "split.json": small_data.split.save,
        "graph.npz": model._need_model().go.save,
    }
    for name, write in writers.items():
        path = tmp_path / name
        path.write_bytes(MINE)
        with pytest.raises(FileExistsError, match=r"exists already.*overwrite=True"):
            write(path)
        assert path.read_bytes() == MINE, name
        write(path, overwrite=True)
        assert path.read_bytes() != MINE, name


@pytest.mark.parametrize("name", ["p.h5ad", "p.zarr"])
def test_a_folder_that_is_no_store_is_never_replaced(saved, name, tmp_path):
    model = GEARS.from_pretrained(saved, device="cpu")
    mine = tmp_path / name / "notes.txt"
    mine.parent.mkdir()
    mine.write_bytes(MINE)
    with pytest.raises(FileExistsError, match="is a folder and not a file or zarr store"):
        model.predict_to_file(model.pert_list[:2], tmp_path / name, overwrite=True)
    assert mine.read_bytes() == MINE


def test_a_report_replaces_a_report_and_no_file_of_the_user(saved, small_data, tmp_path, capsys, without_figures):
    model = GEARS(small_data, device="cpu")
    model.load_pretrained(saved)
    scores: dict[str, Any] = {"n_split_half": 0, "metrics": ["relative_error"], "baselines": ["no_change"]}
    for name in ("summary.csv", "report.html"):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_bytes(MINE)
        with pytest.raises(FileExistsError, match=f"holds {name}, which are not of a report"):
            model.evaluate(report=folder, **scores)
        assert main(["compare", str(small_data.dataset_path), "--report", str(folder)]) == 2
        assert f"--report {folder} holds {name}" in capsys.readouterr().err
        assert (folder / name).read_bytes() == MINE
    table = model.evaluate(**scores)
    write_report(table, tmp_path / "again")
    before = (tmp_path / "again" / "report.html").stat().st_mtime_ns
    model.evaluate(report=tmp_path / "again", **scores)
    assert (tmp_path / "again" / "report.html").stat().st_mtime_ns > before


def test_a_model_of_another_screen_is_not_replaced(saved, small_screen, tmp_path):
    before = weights_in(saved)
    other = new_model(pert_data_of(tmp_path, small_screen[0][:, :-1].copy(), "small", split="simulation"))
    with pytest.raises(FileExistsError, match="holds a model of another screen"):
        other.train(**RUN, save_path=str(saved))
    with pytest.raises(FileExistsError, match="holds a model of another screen"):
        other.save_model(saved)
    assert same_weights(before, weights_in(saved))


def test_a_model_of_the_same_screen_is_replaced_with_one_line(small_data, tmp_path, caplog):
    path = tmp_path / "m"
    options = RUN | {"verbose": True, "save_path": str(path)}
    with caplog.at_level(logging.INFO, logger="gears"):
        new_model(small_data).train(**options)
        assert "replace" not in caplog.text
        first = weights_in(path)
        new_model(small_data).train(**options | {"lr": 0.05})
    assert caplog.text.count("is replaced when this run is complete") == 1
    assert not same_weights(first, weights_in(path))
    assert (path / "metrics.jsonl").exists()
    assert not (tmp_path / "m.unfinished").exists()


class Interrupted(BaseException):
    pass


class Interrupting(RunLogger):
    """Ends a run in its second epoch."""

    def log(self, records: Sequence[Record]) -> None:
        if records[-1]["epoch"] == 2:
            raise Interrupted


@pytest.fixture
def interrupting():
    """Name of a logger that is registered for one test."""
    LOGGERS.add("interrupting", Interrupting)
    yield "interrupting"
    del LOGGERS["interrupting"]


def test_an_earlier_model_stays_until_the_run_is_complete(small_data, tmp_path, interrupting):
    path, options = tmp_path / "m", RUN | {"checkpoint_every": 1}
    new_model(small_data).train(**options, save_path=str(path))
    first = weights_in(path)

    longer = options | {"epochs": 3, "lr": 0.05, "save_path": str(path)}
    with pytest.raises(Interrupted):
        new_model(small_data).train(**longer, loggers=[interrupting])
    assert same_weights(first, weights_in(path)), "the earlier model was replaced by a part of a run"
    unfinished = tmp_path / "m.unfinished"
    assert GEARS.from_pretrained(unfinished, device="cpu")

    result = new_model(small_data).train(**longer, resume=True)
    assert len(result.history) == 3
    assert not same_weights(first, weights_in(path))
    assert not unfinished.exists()

    never_interrupted = tmp_path / "whole"
    new_model(small_data).train(**longer | {"save_path": str(never_interrupted)})
    assert same_weights(weights_in(path), weights_in(never_interrupted))


def test_a_folder_of_the_user_beside_the_model_is_no_run(small_data, saved):
    theirs = saved.with_name(f"{saved.name}.unfinished")
    theirs.mkdir()
    (theirs / "notes.txt").write_bytes(MINE)
    with pytest.raises(FileExistsError, match="no saved model"):
        new_model(small_data).train(**RUN, save_path=str(saved))
    new_model(small_data).train(epochs=0, evaluate_test=False, verbose=False, save_path=str(saved))
    assert (theirs / "notes.txt").read_bytes() == MINE


def hold(path: Path, held: Any) -> None:
    with only_writer(path, "in use"):
        held.set()
        time.sleep(600)


def test_two_trainings_exclude_each_other(small_data, tmp_path):
    path, context = tmp_path / "m", fork_server()
    held = context.Event()
    holder = context.Process(target=hold, args=(path, held), daemon=True)
    holder.start()
    assert held.wait(60)
    try:
        with pytest.raises(FileExistsError, match="another training is writing"):
            new_model(small_data).train(**RUN, save_path=str(path))
    finally:
        holder.kill()  # the lock ends with its process
        holder.join()
    new_model(small_data).train(**RUN, save_path=str(path))
    assert GEARS.from_pretrained(path, device="cpu")


def test_the_lock_is_free_after_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), only_writer(tmp_path / "m", "in use"):
        raise ZeroDivisionError
    with only_writer(tmp_path / "m", "in use"):
        pass
