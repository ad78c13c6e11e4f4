"""`gears train`: prepare a screen, train with one process per device, save the model; `gears doctor`: what it takes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gears.cli._parser import CommandParser, as_yaml, changed_of, show, values_of
from gears.cli._screens import add_data, add_guide_tables, add_nodes, gpu_ids_of, locate, open_screen
from gears.files._paths import need_file, user_path
from gears.files.formats import write_text

EPILOG = """examples:
  gears train screen.h5ad --save-path models/run1 --split simulation --seed 1
  gears train screen.h5ad --save-path models/run1 --device cpu --n-gpus 2
  gears train data --dataset norman --save-path models/run1 --gpu-ids 0 2
  gears train --config run.yaml --lr 0.003           (options override the file)
  gears train --print-config > run.yaml              (a file with every option and its default)
  gears train --config models/run1/run.yaml --save-path models/run2 --seed 2   (as before, another seed)

The options of a run are saved beside its model, as run.yaml. Exit codes: 0 done, 1 failed, 2 bad input, 130
interrupted.
"""
CONFIG = "run.yaml"
FIRST = (
    "save_path", "split", "seed", "epochs", "device", "n_gpus", "gpu_ids", "condition_key", "ctrl_label", "normalize",
    "resume", "overwrite",
)  # fmt: skip
"""Options in the short help."""
SAVE_PATH = "folder of the model, written whenever an epoch is the best so far"


def train_parser() -> CommandParser:
    """Options of ``gears train``: those of the public functions, under their names."""
    from gears.data._loaders import LoaderOptions
    from gears.data.screen.prepare import LoadOptions
    from gears.data.splits._registry import SPLITS, SplitOptions
    from gears.model.config import CustomGraphs, ModelConfig
    from gears.training.options import TrainOptions

    parser = CommandParser(
        "train", "DATA --save-path MODEL", "Train a model on a screen and save it.", EPILOG, first=FIRST
    )
    add_data(parser)
    add_guide_tables(parser)
    group = parser.add_argument_group("devices")
    text = "GPUs to use, such as 0 2, or free:2 for the two least busy"
    group.add_argument("--gpu-ids", nargs="+", type=int | str, help=text)
    group.add_argument("--n-gpus", type=int | None, help="number of worker processes; default: all visible GPUs")
    group.add_argument("--device", help="cuda or cpu (with --n-gpus processes); detected if omitted")
    text = "seconds after which a worker that does not respond is declared dead"
    group.add_argument("--timeout", type=float | None, help=text)
    parser.add_options("training", TrainOptions, texts={"save_path": SAVE_PATH})
    parser.add("--overwrite", "replace the model in --save-path when the new one is complete", action="store_true")
    parser.add_options("loaders of cells", LoaderOptions)
    texts = {"split": f"type of split: {', '.join(SPLITS)}", "seed": "seed of the draw, and of the initial weights"}
    parser.add_options("the split", SplitOptions, texts=texts)
    parser.add_options("the model", ModelConfig)
    parser.add_options("custom graphs", CustomGraphs)
    add_nodes(parser, omit=())
    parser.add_options("the screen", LoadOptions)
    return parser


def run_train(options: Any) -> None:
    if options.save_path is None:
        msg = "the model's folder is missing; give --save-path, or save_path in the file of --config"
        raise ValueError(msg)
    gpu_ids = gpu_ids_of(options)
    from gears.data._loaders import LoaderOptions
    from gears.data.screen.prepare import LoadOptions
    from gears.data.splits._registry import SplitOptions
    from gears.model._folder import is_model
    from gears.model.config import ModelOptions
    from gears.pertdata import PertDataOptions
    from gears.training.options import TrainOptions

    # of the screen only what differs from its default: a prepared screen has its own options
    nodes, processing = changed_of(options, PertDataOptions), changed_of(options, LoadOptions)
    split = values_of(options, SplitOptions)
    args = {**values_of(options, TrainOptions), **values_of(options, LoaderOptions), "verbose": not options.quiet}
    args["model_config"] = changed_of(options, ModelOptions)
    if is_model(user_path(options.save_path)) and not (options.resume or options.overwrite):
        msg = (
            f"{options.save_path} holds a model already: give another --save-path, --overwrite to replace it, or "
            "--resume to continue its run"
        )
        raise FileExistsError(msg)
    _check(options, split, args, nodes | processing)
    from gears.jobs._job import first_on_rank_0, train_multi_gpu

    with first_on_rank_0():
        folder, dataset = _prepared(options, nodes, processing)

    with _config_beside_the_model(as_yaml(options), user_path(options.save_path)):
        where = {"gpu_ids": gpu_ids, **{name: options[name] for name in ("n_gpus", "device", "timeout")}}
        result = train_multi_gpu(folder, dataset, split, args, data_config=nodes | processing, **where)
    from gears.evaluation.metrics._registry import DECISIVE

    if result.rank != 0:  # rank 0 of torchrun's workers prints
        return
    metrics = result.test_metrics
    value: dict[str, Any] = {"save_path": result.save_path, "best_epoch": result.best_epoch}
    value |= {"devices": list(result.devices), "test_metrics": metrics, "history": result.history}
    used = "predictions the prior" if result.network_weight == 0 else f"best epoch  {result.best_epoch}"
    decisive = [name for name in DECISIVE if name in metrics] or list(metrics)
    scores = [f"test {name:<24}{metrics[name]:.4f}" for name in decisive]
    show(options, value, "\n".join([f"model       {result.save_path}", used, *scores]))


@contextlib.contextmanager
def _config_beside_the_model(text: str, folder: Path) -> Iterator[None]:
    """Write the resolved options as run.yaml into the model's folder, also if the run is interrupted."""
    from gears.distributed._world import Ranks
    from gears.training._run_folder import unfinished

    start, ranks = time.time(), Ranks.read()
    try:
        yield
    finally:
        first = ranks is None or ranks.rank == 0  # of the workers that torchrun started
        for place in (folder, unfinished(folder)):
            manifest = place / "manifest.json"
            if first and manifest.is_file() and manifest.stat().st_mtime >= start - 1:  # the model is of this run
                write_text(place / CONFIG, text)


def _check(options: Any, split: dict[str, Any], args: dict[str, Any], data_config: dict[str, Any]) -> None:
    """Raise for invalid options before a file is read: preparing a large screen takes minutes."""
    from gears.distributed._group import check_timeout
    from gears.distributed._log import quiet
    from gears.jobs._job import TrainingJob, check_devices

    for name in ("guides", "guide_targets"):
        if options[name] is not None:
            need_file(options[name], f"--{name.replace('_', '-')}")
    TrainingJob.check(".", "screen", split, args, data_config)
    check_timeout(options.timeout)
    with quiet():  # training gives the same warnings
        check_devices(options.n_gpus, gpu_ids_of(options), options.device)


def _prepared(options: Any, nodes: dict[str, Any], processing: dict[str, Any]) -> tuple[Path, str]:
    """Folder and name of the prepared screen, as `train_multi_gpu` takes them; a file is prepared first."""
    from gears.data.screen._files import is_prepared
    from gears.pertdata import PertData

    screen, folder = locate(options)
    if is_prepared(screen):
        return folder, screen.name
    pert_data = PertData(folder, **nodes)
    pert_data.load(data_path=screen, guides=options.guides, **processing)
    if options.guides is not None:  # the labels made from the guides have the published spelling
        for name in ("ctrl_label", "guide_targets"):
            processing.pop(name, None)
    return folder, str(pert_data.dataset_name)


DOCTOR_EPILOG = """examples:
  gears doctor
  gears doctor --json > machine.json
  gears doctor screen.h5ad               (and what each way to train costs on this screen)

With DATA it prepares the screen, as `gears train` does, and trains for a moment on one device.
Exit codes: 0 ready to train, 1 not ready (the lines that begin with "error").
"""


def doctor_parser() -> CommandParser:
    description = "Check this machine without changing it; with DATA, estimate what training on it costs."
    parser = CommandParser("doctor", "[DATA]", description, DOCTOR_EPILOG, first=("dataset", "work_dir"))
    add_data(parser, optional=True)
    add_nodes(parser)
    return parser


def run_doctor(options: Any) -> int:
    """Print the diagnosis, and the costs on a screen; returns 1 where training cannot work."""
    from gears.distributed.doctor import diagnose

    diagnosis = diagnose()
    values, text = diagnosis.to_dict(), diagnosis.render()
    if options.data is not None and diagnosis.healthy:
        from gears.jobs._costs import measure_costs

        costs = measure_costs(open_screen(options))
        values, text = values | {"costs": costs.to_dict()}, f"{text}\n\n{costs.render()}"
    show(options, values, text)
    return 0 if diagnosis.healthy else 1
