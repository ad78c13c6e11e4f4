"""What tests of several rooms share: drivers that run in a process of their own, workers that start at once, folders
that may only be read."""

import contextlib
import ctypes
import dataclasses
import inspect
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest


def found_by(driver: Path, *arguments: Any) -> dict[str, Any]:
    """Run a driver in a process of its own, show its line, and return what it says."""
    done = subprocess.run(
        [sys.executable, str(driver), *map(str, arguments)],
        capture_output=True, text=True, timeout=3500, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    print(line)
    found: dict[str, Any] = json.loads(line[6:])
    return found


def free_port() -> str:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def cut_off(path: Path, within: str) -> None:
    """Leave no checkpoint after the first one within an epoch."""
    files = sorted((path / "checkpoints").iterdir())
    last = next(file for file in files if file.name.startswith(within) and "step-0000000" not in file.name)
    for file in files[files.index(last) + 1 :]:
        file.unlink()


FORK_SERVER_MODULES = ["gears.jobs._job", "gears.gears", "torch_geometric", "anndata", "sklearn"]
"""What the server has imported from which workers of tests are forked."""


def _with_environment(rank: int, environment: dict[str, str], function: Any, *args: Any) -> None:
    """Run a worker in the environment of the caller instead of the server's."""
    os.environ.clear()
    os.environ.update(environment)
    function(rank, *args)


def fork_server() -> Any:
    """Processes that are forks of a server that has imported the package."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(FORK_SERVER_MODULES)
    forkserver.ensure_running()  # before anybody else, such as dask, names other modules
    return context


def start_by_fork(function: Any, args: tuple[Any, ...], **options: Any) -> Any:
    """`torch.multiprocessing.start_processes` with forks of a server that has imported the package."""
    import torch.multiprocessing

    fork_server()
    arguments = (dict(os.environ), function, *args)
    return torch.multiprocessing.start_processes(
        _with_environment, arguments, **(options | {"start_method": "forkserver"})
    )


@contextlib.contextmanager
def workers_by_fork() -> Iterator[None]:
    """Within the block workers are forks of a server that has imported the package: a start takes no seconds."""
    import torch.multiprocessing

    if sys.platform == "win32":
        yield
        return
    start = torch.multiprocessing.start_processes

    def start_workers(function: Any, args: Any, **options: Any) -> Any:
        if options.get("start_method") == "forkserver":  # of `start_by_fork`
            return start(function, args, **options)
        setup, payload = args
        setup = dataclasses.replace(setup, parent=forkserver._forkserver._forkserver_pid)
        return start_by_fork(function, (setup, payload), **options)

    server, context_of = fork_server(), multiprocessing.get_context
    torch.multiprocessing.start_processes = start_workers
    multiprocessing.get_context = lambda method=None: server if method == "spawn" else context_of(method)
    try:
        yield
    finally:
        torch.multiprocessing.start_processes = start
        multiprocessing.get_context = context_of


def dying_once(killed: Path) -> Callable[[Any], Any]:
    """A function that gives back what it gets; the first process that calls it dies, and leaves the file `killed`."""

    def same(value: Any) -> Any:
        try:
            killed.touch(exist_ok=False)
        except FileExistsError:
            return value
        os.kill(os.getpid(), signal.SIGKILL)

    return same


WRITES_ANYWHERE = 1 << 1  # CAP_DAC_OVERRIDE of Linux


@contextlib.contextmanager
def closed(folder: Path) -> Iterator[None]:
    """`folder` and all below may only be read, by root too (this thread's right to write anywhere is given up)."""
    folders = [folder, *(place for place in folder.rglob("*") if place.is_dir())]
    for place in folders:
        place.chmod(0o555)
    libc, header = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0)
    rights, fewer = (ctypes.c_uint32 * 6)(), (ctypes.c_uint32 * 6)()
    libc.capget(header, rights)
    fewer[:] = rights[:]
    fewer[0] &= ~WRITES_ANYWHERE  # of the effective rights; the permitted ones stay
    libc.capset(header, fewer)
    try:
        if os.access(folder, os.W_OK, effective_ids=True):
            pytest.skip("this system lets the user write into read-only folders")
        yield
    finally:
        libc.capset(header, rights)
        for place in folders:
            place.chmod(0o755)


def pert_data_of(folder: Path, adata: Any, name: str = "toy", **options: Any) -> Any:
    """A prepared screen; without `gene2go` its nodes are its own genes. `split` draws one with seed 1."""
    from gears import PertData

    split, gene2go = options.pop("split", None), options.pop("gene2go", None)
    data = PertData(folder, default_pert_graph=gene2go is not None, gene2go=gene2go)
    data.new_data_process(name, adata, **options)
    if split is not None:
        data.prepare_split(split, seed=1)
    return data


def perturbed_in(split: Any, part: str) -> list[Any]:
    """The conditions of a part of a split but the control."""
    return [condition for condition in split.conditions(part) if not condition.is_control]


def gears_of(data: Any, **network: Any) -> Any:
    """A GEARS model on the CPU, of eight hidden units unless told otherwise, untrained."""
    from gears import GEARS

    model = GEARS(data, device="cpu")
    model.model_initialize(**{"hidden_size": 8} | network)
    return model


def trained_gears(data: Any, **options: Any) -> Any:
    """The same after :meth:`gears.GEARS.train`, which is quiet and scores no test part: options of both by name."""
    from gears import GEARS

    names = inspect.signature(GEARS.model_initialize).parameters
    model = gears_of(data, **{name: value for name, value in options.items() if name in names})
    training = {name: value for name, value in options.items() if name not in names}
    model.train(**{"verbose": False, "evaluate_test": False} | training)
    return model


@contextlib.contextmanager
def serving(handler: Any) -> Iterator[Any]:
    """A silent HTTP server of this machine; its attribute `url` is the address."""
    from http.server import ThreadingHTTPServer

    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        handler.log_message = server.handle_error = lambda *_: None
        server.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
