"""What cannot work is refused by the first call that can know; numbers, devices and paths may be of any usual type."""

import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from driving import fork_server, gears_of, pert_data_of

from gears import GEARS, PertData, train_multi_gpu
from gears.cli import main as command
from gears.core._numbers import plain_number
from gears.data import ProcessingOptions
from gears.distributed import check_timeout, find_device, plan_devices
from gears.distributed._gpus import resolve_gpu_ids
from gears.files.formats import write_json
from gears.jobs._job import TrainingJob
from gears.model._folder import check_save_path
from gears.model.config import ModelConfig
from gears.train_distributed import launch_distributed_training

SPLIT = {"split": "simulation", "seed": 1}
NO_GPU = pytest.mark.skipif(torch.cuda.device_count() > 0, reason="this machine has a GPU")


@pytest.fixture
def unread(monkeypatch):
    """No screen may be read."""

    def read(*_: Any, **__: Any) -> None:
        pytest.fail("a screen was read")

    monkeypatch.setattr("gears.pertdata.obtain_screen", read)


def refused(error: type[Exception], words: str, folder: Path, **changes: Any) -> None:
    """Both the Python call and a check of the job refuse it; nothing is left in the folder."""
    args = {"save_path": str(folder / "model"), **changes.pop("args", {})}
    split, data = changes.pop("split", SPLIT), changes.pop("data", None)
    before = sorted(folder.rglob("*"))
    with pytest.raises(error, match=words):
        train_multi_gpu(folder, "screen", split, args, data_config=data, **{"device": "cpu", **changes})
    assert sorted(folder.rglob("*")) == before


def test_a_call_of_the_wrong_object_names_the_right_one(toy_adata):
    with pytest.raises(TypeError, match=r"found AnnData; PerturbationModel\(adata\) takes an AnnData"):
        GEARS(toy_adata)
    with pytest.raises(TypeError, match=r"PertData\('data'\)\.load\(data_path='screen.h5ad'\)"):
        PertData.load("screen.h5ad")


@pytest.mark.parametrize(
    ("error", "words", "changes"),
    [
        (ValueError, "did you mean 'simulation'", {"split": {"split": "simulaton"}}),
        (ValueError, "seed is .*; expected a whole number", {"split": {"seed": -1}}),
        (ValueError, "expected a number from 0 to 1", {"split": {"train_gene_set_size": 1.5}}),
        (ValueError, "fold must be from 0", {"split": {"split": "cross_validation", "fold": 7}}),
        (ValueError, "control_shares are three shares", {"split": {"control_shares": (0.5, 0.1)}}),
        (ValueError, "split='custom' needs split_dict", {"split": {"split": "custom"}}),
        (FileNotFoundError, "no file", {"split": {"split": "custom", "split_dict_path": "none.json"}}),
        (ValueError, "unknown metric 'mse_top20'", {"args": {"monitor": "mse_top20"}}),
        (ValueError, "save_path", {"args": {"save_path": None}}),
        (ValueError, "did you mean 'epochs'", {"args": {"epoch": 2}}),
        (ValueError, "unknown schedule 'cos'", {"args": {"schedule": "cos"}}),
        (ValueError, "model_config 'hidden'", {"args": {"model_config": {"hidden": 3}}}),
        (ValueError, "did you mean 'seed'", {"split": {"seeed": 1}}),
        (ValueError, "did you mean 'normalize'", {"data": {"normalise": True}}),
        (ValueError, "tau is -1", {"args": {"model_config": {"tau": -1}}}),
        (FileNotFoundError, "G_go: there is no file", {"args": {"model_config": {"G_go": "none.tsv"}}}),
        (ValueError, "min_cells is 0", {"data": {"min_cells": 0}}),
        (FileNotFoundError, "gene2go: there is no file", {"data": {"gene2go": "none.gaf"}}),
        (ValueError, "num_workers is -1", {"args": {"num_workers": -1}}),
        (ValueError, "timeout is 0", {"timeout": 0}),
        (ValueError, "unknown device 'cdua'", {"device": "cdua"}),
        (ValueError, "device='cuda:99' is not there", {"device": "cuda:99"}),
        (ValueError, "not among the visible", {"device": None, "gpu_ids": 99}),
    ],
)
def test_a_job_is_refused_before_its_screen_is_read(error, words, changes, tmp_path, unread):
    refused(error, words, tmp_path, **changes)


def test_a_save_path_that_cannot_be_written_is_refused(tmp_path, unread):
    (tmp_path / "file").write_text("text")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("text")
    for save_path, error, words in (
        ("file", FileExistsError, "is a file; choose another save_path"),
        ("file/model", NotADirectoryError, "cannot be made: .*file is a file"),
        ("file/a/b/model", NotADirectoryError, "cannot be made: .*file is a file"),
        ("mine", FileExistsError, "is no saved model"),
        ("n" * 300, OSError, "cannot be written to"),
    ):
        refused(error, words, tmp_path, args={"save_path": tmp_path / save_path})


def test_a_save_path_without_the_right_to_write_is_refused(tmp_path, monkeypatch):
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0o555)
    if os.access(closed, os.W_OK):  # root: the system is asked to refuse it

        def refuse(*_: Any, **__: Any) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(PermissionError, match=r"save_path .*closed/a/b cannot be written to \(Permission"):
        check_save_path(closed / "a" / "b")
    closed.chmod(0o755)


def test_a_good_save_path_is_left_as_it_was(tmp_path):
    for path in (tmp_path / "new", tmp_path / "a" / "b" / "new", tmp_path):
        check_save_path(path)
    assert list(tmp_path.iterdir()) == []


@NO_GPU
@pytest.mark.parametrize("device", ["cuda", "cuda:7", torch.device("cuda:7"), 7, np.int64(7)])
def test_a_gpu_that_is_not_there_is_named_at_once(device):
    for make in (lambda: GEARS(None, device=device), lambda: GEARS.from_pretrained("never-read", device)):
        with pytest.raises(ValueError, match=r"device='cuda(:7)?' is not there: .* is no GPU"):
            make()


def test_a_gpu_beyond_those_there_is_named_with_them():
    with pytest.raises(ValueError, match=r"device='cuda:2' is not there: .* are GPUs 0.*, 1.*; choose one"):
        find_device("cuda:2", visible=2)
    assert find_device(np.int64(1), visible=2) == torch.device("cuda:1")
    with pytest.raises(ValueError, match="unknown device 'cdua'"):
        GEARS(None, device="cdua")


def test_the_command_refuses_before_the_screen_is_read(tmp_path, unread, capsys):
    screen = tmp_path / "screen.h5ad"
    screen.write_bytes(b"never read")
    train = ["train", str(screen), "--save-path", str(tmp_path / "m"), "--work-dir", str(tmp_path / "w")]
    (tmp_path / "file").write_text("text")
    for arguments, words in (
        ([*train, "--split", "simulaton"], "did you mean 'simulation'"),
        ([*train, "--monitor", "mse_top"], "unknown metric 'mse_top'"),
        ([*train, "--device", "cuda:99"], "is not there"),
        ([*train, "--gene2go", str(tmp_path / "none.gaf")], "there is no file or folder"),
        ([*train, "--guides", "none.csv"], "--guides: there is no file or folder"),
        ([*train[:3], str(tmp_path / "file"), *train[4:]], "is a file; choose another"),
        (["evaluate", "nothing", str(screen)], "MODEL: there is no file or folder"),
        (["evaluate", str(tmp_path), str(screen), "--part", "tets"], "did you mean 'test'"),
        (["evaluate", str(tmp_path), str(screen), "--metrics", "mse_top"], "unknown metric 'mse_top'"),
        ([*train, "--dataset", "x"], "--dataset names a screen in a folder"),
        (["compare", str(screen), "--split", "simulaton"], "did you mean 'simulation'"),
        (["compare", str(screen), "--baselines", "additiv"], "did you mean 'additive'"),
        (["compare", str(screen), "--device", "cuda:99"], "is not there"),
        (["compare", str(screen), "--report", str(tmp_path / "file")], "is a file; choose another"),
    ):
        assert command(arguments) == 2, arguments
        assert words in capsys.readouterr().err, arguments
    assert not (tmp_path / "w").exists()


def test_numbers_of_numpy_are_those_of_python(tmp_path):
    config = ModelConfig(hidden_size=np.int64(16), direction_lambda=np.float32(0.5), uncertainty=np.bool_(1))
    assert config == ModelConfig(hidden_size=16, direction_lambda=0.5, uncertainty=True)
    assert json.loads(json.dumps(config.to_dict()))["hidden_size"] == 16
    assert json.dumps(ProcessingOptions(min_cells=np.int64(5), max_residual=np.float32(0.5)).to_dict())
    assert check_timeout(np.float32(2.5)) == 2.5
    assert [type(plain_number(x)) for x in (np.int8(1), np.longdouble(1), np.array(2))] == [int, float, int]
    split = {"seed": np.int64(3), "control_shares": np.array([0.6, 0.2, 0.2], dtype=np.float32)}
    args = {"save_path": tmp_path / "m", "epochs": np.int64(2), "lr": np.float32(0.5), "num_workers": np.int64(0)}
    args["model_config"] = {"hidden_size": np.int64(16)}
    job = TrainingJob.check(tmp_path, "screen", split, args)
    assert (job.options.epochs, job.options.lr, job.split.seed) == (2, 0.5, 3)
    assert json.dumps({"args": job.worker_args(), "seed": job.split.seed})


def test_split_loaders_and_predictions_take_numbers_of_numpy(tmp_path, small_screen_adata):
    pert_data = pert_data_of(tmp_path, small_screen_adata, "small", min_cells=np.int64(2), workers=np.int64(1))
    pert_data.prepare_split(seed=np.int64(1), train_gene_set_size=np.float32(0.75))
    assert pert_data.get_dataloader(np.int64(16), np.int32(8))["train_loader"].batch_size == 16
    model = GEARS(pert_data, device=torch.device("cpu"))
    model.model_initialize(hidden_size=np.int64(8))
    names = model.pert_list[:2]
    assert len(model.predict([[name] for name in names], chunk=np.int64(1))) == 2
    model.save_model(tmp_path / "model")
    assert GEARS.from_pretrained(tmp_path / "model", device=torch.device("cpu")).config["hidden_size"] == 8
    with pytest.raises(ValueError, match="batch_size is 0; expected a whole number of at least 1"):
        pert_data.get_dataloader(np.int64(0))


def test_gpu_ids_and_devices_of_any_usual_type():
    for given, ids in (
        (0, [0]), (np.int64(3), [3]), ((2, 1), [2, 1]), (range(2), [0, 1]), (np.array([4, 2]), [4, 2]),
        ([np.int64(1)], [1]), (torch.tensor([1, 0]), [1, 0]), (None, None),
    ):  # fmt: skip
        assert resolve_gpu_ids(given) == ids
    for device in ("cpu", torch.device("cpu")):
        assert plan_devices(np.int64(2), None, device).devices == ("cpu", "cpu")
    with pytest.raises(ValueError, match=r"at least 1; found 1\.5"):
        plan_devices(np.float64(1.5), None, "cpu")


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch, small_screen_adata):
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    small_screen_adata.write_h5ad(home / "small.h5ad")
    (home / "genes.txt").write_text("\n".join(small_screen_adata.var["gene_name"]))
    pert_data = PertData("~/data", gene_set_path="~/genes.txt")
    pert_data.load(data_path="~/small.h5ad")
    pert_data.prepare_split(**SPLIT).to_csv(home / "split.csv")
    write_json("~/parts.json", dict(pert_data.set2conditions))
    pert_data.prepare_split("custom", split_dict_path="~/parts.json")
    model = gears_of(pert_data)
    model.save_model("~/models/one")
    model.load_pretrained("~/models/one")
    loaded = GEARS.from_pretrained("~/models/one", device="cpu")
    assert loaded.predict_to_file(loaded.pert_list[:2], "~/predicted.h5ad") == home / "predicted.h5ad"
    job = TrainingJob.check("~/data", "small", SPLIT, {"save_path": "~/models/two"})
    assert (job.data_path, job.options.save_path) == (home / "data", str(home / "models" / "two"))
    assert command(["predict", "~/models/one", loaded.pert_list[0], "--output", "~/one.csv", "--quiet"]) == 0
    assert {"data", "models", "predicted.h5ad", "one.csv"} <= {path.name for path in home.iterdir()}
    assert list(here.iterdir()) == []
    with pytest.raises(ValueError, match="home folder"):
        PertData("~no-such-user-here/data")
    with pytest.raises(TypeError, match="expected a path"):
        PertData(3)


def in_a_daemonic_process(call: str, folder: str, queue: Any) -> None:
    args = {"save_path": f"{folder}/model"}
    calls = {
        "train_multi_gpu": lambda: train_multi_gpu(folder, "screen", SPLIT, args, n_gpus=2, device="cpu"),
        "launch": lambda: launch_distributed_training(max, 2, device="cpu"),
    }
    try:
        queue.put(calls[call]())
    except Exception as error:
        queue.put(f"{type(error).__name__}: {error}")


@pytest.mark.parametrize("call", ["train_multi_gpu", "launch"])
def test_a_daemonic_process_is_told_what_to_do(call, tmp_path):
    context = fork_server()
    queue = context.Queue()
    process = context.Process(target=in_a_daemonic_process, args=(call, str(tmp_path), queue), daemon=True)
    process.start()
    words = queue.get(timeout=600)
    process.join(30)
    assert words.startswith("RuntimeError: worker processes cannot be started from here")
    assert "ProcessPoolExecutor" in words
    assert list(tmp_path.iterdir()) == [], "refused before the screen is prepared"


def one(rank: int, world_size: int) -> tuple[int, int]:
    return rank, world_size


@NO_GPU
def test_no_gpu_for_a_launch_is_one_process_and_one_warning(caplog, quick_workers):
    with caplog.at_level(logging.WARNING, logger="gears"):
        assert launch_distributed_training(one, world_size=torch.cuda.device_count()) == (0, 1)
    assert [record.message for record in caplog.records] == [
        "no GPU is visible: training in one CPU process (device='cpu', n_gpus=N takes N of them)"
    ]
    for size in (-1, 1.5, True):
        with pytest.raises(ValueError, match="world_size is"):
            launch_distributed_training(one, world_size=size)


def test_verbose_false_is_silent_but_for_warnings(tmp_path, small_screen_adata, caplog):
    with caplog.at_level(logging.INFO, logger="gears"):
        PertData.from_adata(small_screen_adata, data_path=tmp_path, dataset_name="one", verbose=False)
        assert [record for record in caplog.records if record.levelno < logging.WARNING] == []
        PertData.from_adata(small_screen_adata, data_path=tmp_path, dataset_name="two", verbose=True)
    said = [record.message for record in caplog.records if record.levelno == logging.INFO]
    assert sum(line.startswith("loaded two: ") for line in said) == 1
    assert not [line for line in said if ".npz" in line or "stored" in line]
