"""Independent trainings as tasks of a dask cluster: a separate process for each, beside the dask worker.

A worker of dask is a daemonic process, which must not start others by ``multiprocessing``, and its tasks run in threads
that no signal reaches. So a task starts Python, which trains its one configuration as a job of a job array does, and
ends with the worker.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cloudpickle

from gears.core._progress import followed
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
        work = [cloudpickle.dumps((config, options)) for config in configs]
        tasks = [client.submit(_train, one, str(Path.cwd()), pure=False) for one in work]
        logger.info("%d trainings as tasks of the dask scheduler %s", len(tasks), client.scheduler.address)
        return list(followed(map(_outcome, itertools.count(1), tasks), len(tasks), "training", "runs"))


def _outcome(number: int, task: Any) -> Outcome:
    error = task.exception()
    device, value, failed = ("", None, (str(error), repr(error))) if error is not None else task.result()
    if failed is None:
        return Outcome(value, device=device)
    text, details = failed
    text = text.replace("run 1 on", f"run {number} on", 1) if error is None else f"run {number} failed: {text}"
    logger.error("%s", text.partition("\n")[0])
    return Outcome(error=WorkerError(text, rank=0, details=details), device=device)


def _train(work: bytes, folder: str) -> tuple[str, Any, tuple[str, str] | None]:
    """Train a configuration in a new process: its device, the fields of its result, message and details of its error.

    Runs on a worker of dask; relative paths are those of the caller, in `folder`.
    """
    reading, writing = os.pipe()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", PROGRAM, str(writing), str(os.getpid())]
    with subprocess.Popen(command, env=environment, cwd=folder, stdin=subprocess.PIPE, pass_fds=(writing,)) as process:
        os.close(writing)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended before it read
            process.stdin.write(work)
            process.stdin.close()
        with os.fdopen(reading, "rb") as pipe:
            answer = pipe.read()
    if not answer:
        msg = f"its process ended with exit code {process.returncode}; see the log of the dask worker"
        raise RuntimeError(msg)
    outcome: tuple[str, Any, tuple[str, str] | None] = cloudpickle.loads(answer)
    return outcome


def train_one(train_many: Callable[..., Any], writing: str, parent: str) -> None:
    """Train the configuration that comes through the standard input, and write the outcome to a pipe."""
    die_with_parent(int(parent))
    config, options = cloudpickle.loads(sys.stdin.buffer.read())
    answer: tuple[str, Any, tuple[str, str] | None]
    try:
        (run,) = train_many([config], n_at_once=1, **options)
        failed = None if run.error is None else (str(run.error), run.error.details)
        answer = run.device, None if run.result is None else vars(run.result), failed
    except (OSError, ValueError) as error:  # of the checks before training: no such folder on this machine, for one
        answer = "", None, (f"run 1 on a dask worker failed: {error}", traceback.format_exc())
    with os.fdopen(int(writing), "wb") as pipe:
        pipe.write(cloudpickle.dumps(answer))
