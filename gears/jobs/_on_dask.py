"""Independent trainings as tasks of a dask cluster: a process of its own for each, beside the dask worker.

A worker of dask is a daemonic process, which must not start others by ``multiprocessing``, and its tasks run in threads
that no signal reaches. So a task starts Python, which trains its one configuration as a job of a job array does, and
ends with the worker.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cloudpickle

from gears.data.reading._by_dask import cluster
from gears.distributed._launch import Outcome, WorkerError
from gears.distributed._signals import die_with_parent

logger = logging.getLogger(__name__)

PROGRAM = """
import sys
from gears.jobs._on_dask import train_one
from gears.jobs.ensemble import train_many
train_one(train_many, *sys.argv[1:])
"""


def trained_on_dask(configs: Sequence[Mapping[str, Any]], dask: Any, options: Mapping[str, Any]) -> list[Outcome]:
    """The outcome of each configuration, in their order; `options` are those of :func:`gears.train_many`.

    A training whose worker dies is started again on another one, by dask.
    """
    with cluster(dask) as client:
        tasks = [client.submit(_train, cloudpickle.dumps((config, options)), pure=False) for config in configs]
        return [_outcome(number, task) for number, task in enumerate(tasks, start=1)]


def _outcome(number: int, task: Any) -> Outcome:
    error = task.exception()
    device, value, failed = ("", None, (str(error), repr(error))) if error is not None else task.result()
    if failed is None:
        return Outcome(value, device=device)
    text, details = failed
    text = text.replace("run 1 on", f"run {number} on", 1) if error is None else f"run {number} failed: {text}"
    logger.error("%s", text.partition("\n")[0])
    return Outcome(error=WorkerError(text, rank=0, details=details), device=device)


def _train(work: bytes) -> tuple[str, Any, tuple[str, str] | None]:
    """Train a configuration in a new process: its device, the fields of its result, message and details of its error.

    Runs on a worker of dask.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "work").write_bytes(work)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-c", PROGRAM, folder, str(os.getpid())]
        code = subprocess.run(command, env=environment, check=False).returncode
        answer = Path(folder) / "answer"
        if not answer.is_file():
            msg = f"its process ended with exit code {code}; see the log of the dask worker"
            raise RuntimeError(msg)
        outcome: tuple[str, Any, tuple[str, str] | None] = cloudpickle.loads(answer.read_bytes())
        return outcome


def train_one(train_many: Callable[..., Any], folder: str, parent: str) -> None:
    """Train the configuration that lies in a folder, and leave the outcome there."""
    die_with_parent(int(parent))
    config, options = cloudpickle.loads((Path(folder) / "work").read_bytes())
    (run,) = train_many([config], n_at_once=1, **options)
    failed = None if run.error is None else (str(run.error), run.error.details)
    value = None if run.result is None else vars(run.result)
    (Path(folder) / "answer").write_bytes(cloudpickle.dumps((run.device, value, failed)))
