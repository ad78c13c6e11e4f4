"""Kills and faults of a training job of two workers: what the caller was told, what is left, how the run goes on.

A call that failed leaves its caller as it was: environment, handlers, random state, open files, threads, ports.

``python faults.py FOLDER RESULTS [WORD ...]`` appends a line of JSON for each case (of those whose name contains one of
the words) to RESULTS, writes the table beside it, and goes on where an interrupted run of it ended. This process never
trains itself: each caller is a fork of it. Workers are spawned, as for users, in the rows of `Case.spawned`; in the
others, and in the run that follows to see that the job goes on, they are forks of the caller, which saves seconds of
importing libraries.
"""

import contextlib
import errno
import functools
import gc
import importlib
import itertools
import json
import logging
import multiprocessing as mp
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fault_cases import (
    CALLER,
    CHECKPOINT,
    PREDICTION,
    PREPARING,
    SAVE,
    START,
    STEP,
    TORCHRUN,
    VALIDATION,
    Case,
    cases,
)  # fmt: skip

from gears import train_multi_gpu
from gears.distributed._launch import Group
from gears.files import _atomic as atomic
from gears.files.formats import read_tensors
from gears.gears import GEARS
from gears.jobs import _job as job_module
from gears.simulate import simulated_screen
from gears.training import TrainingEngine
from gears.training import _checkpoints as checkpoints
from gears.training import _fitting as fitting
from gears.training._tasks import MomentsTask

launch_module = importlib.import_module("gears.distributed._launch")

MARK = "GEARS_FAULT"
EPOCHS, THIRD_STEP, SECOND_EPOCH = 3, 3, 2  # a stop that comes in the last validation finds the run complete


# -- in the caller and in its workers ---------------------------------------------------------


def strike(case: Case, folder: Path, target: int) -> None:
    """Let it happen, once: to this process, or (a signal to the caller) to process `target`."""
    mark = folder / "struck"
    if mark.exists():
        return
    mark.write_text(str(time.time()))
    if case.what.startswith("SIG"):
        if "SIGCONT" in case.what:
            subprocess.Popen(["sh", "-c", f"sleep 2; kill -CONT {target}"])
        number = signal.Signals[case.what.split(",")[0]]
        os.killpg(os.getpgid(target), number) if "all" in case.what else os.kill(target, number)
    elif case.what == "full disk":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    elif case.what.startswith("memory"):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, resource.RLIM_INFINITY))
        (torch.zeros if "torch" in case.what else importlib.import_module("numpy").zeros)(2**30)
    elif case.what.startswith("exception"):
        msg = "no such gene"
        raise KeyError(msg)
    elif case.what.startswith("leaves"):
        os._exit(int(case.what[-1]))
    elif case.what == "hangs":
        time.sleep(600)


def before(owner: Any, name: str, act: Callable[..., None]) -> None:
    """Let `act` (with the call's arguments) happen before each call of a function."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        act(*args)
        return function(*args, **kwargs)

    setattr(owner, name, called)


def arm_worker(case: Case, folder: Path, rank: int) -> None:
    """In a worker: the case happens when its moment has come; rank 0 acts for the caller."""
    if "deaf" in case.what and rank == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if case.who.removesuffix(" of torchrun") != f"worker {rank}" and (rank or case.who not in (CALLER, TORCHRUN)):
        return
    target = os.getppid() if case.who in (CALLER, TORCHRUN) else os.getpid()
    counts = {STEP: itertools.count(1), VALIDATION: itertools.count(1)}
    writing: list[str] = []

    def now(when: str, number: int = 1) -> Callable[..., None]:
        def act(*args: Any) -> None:
            if case.when == when and (when not in counts or next(counts[when]) == number):
                if case.what == "NaN":
                    for parameter in args[1].parameters():
                        parameter.data.fill_(float("nan"))
                strike(case, folder, target)

        return act

    def begin(when: str) -> Callable[..., None]:
        return lambda *_: writing.append(when)

    def in_write(*_: Any) -> None:  # the file is written, and not yet renamed
        if writing and writing[-1] == case.when:
            strike(case, folder, target)

    before(TrainingEngine, "_step", now(STEP, THIRD_STEP))
    before(MomentsTask, "evaluate", now(VALIDATION, SECOND_EPOCH))
    if rank == 0:
        before(checkpoints, "save", begin(CHECKPOINT))
        before(fitting, "save_model", begin(SAVE))
        before(atomic.os, "fsync", in_write)
    else:
        before(checkpoints, "save", now(CHECKPOINT))
        before(fitting.Fit, "conclude", now(SAVE))


def faulty_worker(rank: int, world_size: int, case: Case, folder: str, *args: Any) -> Any:
    arm_worker(case, Path(folder), rank)
    return job_module.train_ddp_worker(rank, world_size, *args)


def arm_caller(case: Case, folder: Path) -> None:
    """In the caller: the same for its own moments, and its workers are faulty ones."""
    launch = job_module.launch

    def faulty(_: Any, devices: Any, args: tuple[Any, ...], **options: Any) -> Any:
        return launch(faulty_worker, devices, (case, str(folder), *args), **options)

    job_module.launch = faulty
    me = os.getpid()
    if case.when == START:
        start = Group.start.__func__  # type: ignore[attr-defined]

        def started(cls: Any, *args: Any) -> Group:
            group = start(cls, *args)
            time.sleep(0.3)  # they import libraries
            screen = folder / "screens" / "small"
            if case.what == "unreadable file":
                (screen / "perturb_processed.h5ad").write_bytes(b"nothing")
            elif case.what == "missing folder":
                shutil.rmtree(folder / "screens")
            else:
                pids = [worker.process.pid for worker in group.workers]
                strike(case, folder, me if case.who == CALLER else pids[int(case.who[-1])])
            return group

        Group.start = classmethod(started)  # type: ignore[assignment, method-assign]
    if case.who == CALLER and case.when == PREPARING:
        shutil.rmtree(folder / "screens" / "small")  # to be prepared from the file beside it
        before(atomic.os, "fsync", lambda *_: strike(case, folder, me))
    if case.who == CALLER and case.when == PREDICTION:
        before(GEARS, "report_test", lambda *_: strike(case, folder, me))


def train(folder: Path, *, timeout: float = 90.0, screens: Path | None = None, **options: Any) -> Any:
    """Train with two workers; the screen is that of the folder, or one for several folders."""
    args = {
        "save_path": str(folder / "model"), "model_config": {"hidden_size": 4}, "epochs": EPOCHS, "prior": None,
        "batch_size": 4, "verbose": False, "evaluate_test": False, **options,
    }  # fmt: skip
    return train_multi_gpu(
        screens or folder / "screens", "small", {"split": "simulation", "seed": 1}, args, n_gpus=2, device="cpu",
        timeout=timeout, data_config={"default_pert_graph": False},
    )  # fmt: skip


class TorchrunError(RuntimeError):
    """torchrun ended with an error."""


def run_torchrun(case: Case, folder: Path) -> None:
    """As the caller: let torchrun start this file, twice."""
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", __file__, "--worker", str(folder)]
    done = subprocess.run([sys.executable, *words, case.name], check=False)
    log = (folder / "first.log").read_text().splitlines()
    if done.returncode and not any("training was stopped" in line for line in log):
        raise TorchrunError("; ".join(line.strip() for line in log if any(word in line for word in case.words)))


def torchrun_worker(folder: Path, name: str) -> None:
    """One of torchrun's processes."""
    (case,) = (case for case in cases() if case.name == name)
    arm_worker(case, folder, int(os.environ["RANK"]))
    train(folder)


# -- in the process that forks callers --------------------------------------------------------


def fork(folder: Path, name: str, work: Callable[[], Any]) -> int:
    """A caller: its process id. What it is told goes to NAME.json, what it logs to NAME.log."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        log = os.open(folder / f"{name}.log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ["TMPDIR"] = str(folder / "tmp")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # its pipe stays for good
        told: dict[str, Any] = {"type": None}
        before = process_state()
        try:
            result = work()
            told |= {"message": getattr(result, "stopped_because", None) or ""}
        except BaseException as error:
            told |= {"type": type(error).__name__, "message": str(error), "trace": traceback.format_exc()}
        told["at"] = time.time()
        gc.collect()  # a screen that was read is in a cycle of references, which keeps its files open until then
        after = process_state()
        told["changed"] = [f"{key}: {before[key]} became {after[key]}" for key in before if before[key] != after[key]]
        (folder / f"{name}.json").write_text(json.dumps(told))
    finally:
        logging.shutdown()
        os._exit(0)


def process_state() -> dict[str, Any]:
    """Of this process: what a call must leave as it was."""
    return {
        "environment": dict(os.environ),
        "start method": mp.get_start_method(allow_none=True),
        "handlers": [str(signal.getsignal(number)) for number in signal.valid_signals()],
        "random state": [
            repr(random.getstate())[-80:],
            repr(np.random.get_state()[1:])[-200:],  # noqa: NPY002
            torch.get_rng_state().sum().item(),
        ],
        "open files": sorted(_descriptors()),
        "listening ports": _listening(),
        "children": Path(f"/proc/self/task/{os.getpid()}/children").read_text(),
        "python threads": sorted(thread.name for thread in threading.enumerate()),
        "torch threads": torch.get_num_threads(),
        "folder": os.getcwd(),
        "path": list(sys.path),
        "main file": getattr(sys.modules["__main__"], "__file__", None),
        "logging": [logging.getLogger(name).handlers[:] for name in (None, "gears")],
    }


def _descriptors() -> list[str]:
    found = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{entry}"))
    return [name for name in found if not name.endswith("/fd")]


def _listening() -> int:
    """Listening sockets of this process."""
    own = {name[8:-1] for name in _descriptors() if name.startswith("socket:[")}
    tables = [Path(f"/proc/self/net/{kind}").read_text().splitlines() for kind in ("tcp", "tcp6")]
    return sum(line.split()[3] == "0A" and line.split()[9] in own for table in tables for line in table)


def wait(pid: int, seconds: float) -> str:
    """How a caller ended: "exited", the name of a signal, or "never"; a stopped one goes on after a second."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if done and os.WIFSTOPPED(status):
            time.sleep(1.0)
            os.kill(pid, signal.SIGCONT)
        elif done:
            code = os.waitstatus_to_exitcode(status)
            return "exited" if code >= 0 else signal.Signals(-code).name
        time.sleep(0.02)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "never"


def living(pid: int, mark: str) -> list[int]:
    """Processes of a caller's session, and others that began with the mark in their environment.

    A zombie counts: its other threads may still hold files.
    """
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if int((entry / "stat").read_text().rsplit(")", 1)[1].split()[3]) == pid:
                found.add(int(entry.name))  # its environment may be gone already
            elif f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
    return sorted(found)


def orphaned_memory() -> set[str]:
    """Shared memory that torch left of processes that have ended; what other processes of the machine hold varies."""
    made_by = {name: re.match(r"torch_(\d+)_", name) for name in os.listdir("/dev/shm")}
    return {name for name, made in made_by.items() if made and not Path("/proc", made[1]).exists()}


def leftovers(folder: Path) -> list[str]:
    """Hidden and temporary files of a case, but for locks that a screen's folder keeps."""
    # torch makes the folder of its compiler's cache, one per user, when that is imported, and torchrun one for its logs
    inner = [path for name in ("screens", "model") for path in (folder / name).rglob(".*") if path.suffix != ".lock"]
    found = [*inner, *folder.glob(".*"), *(folder / "tmp").iterdir()]
    return [
        str(path.relative_to(folder)) for path in found if not path.name.startswith(("torchinductor_", "torchelastic_"))
    ]


@contextlib.contextmanager
def forked_workers() -> Any:
    """Within the block workers are forks of their caller, which takes no seconds of imports."""
    module = launch_module.torch_mp
    start = module.start_processes
    module.start_processes = lambda *args, **options: start(*args, **{**options, "start_method": "fork"})
    try:
        yield
    finally:
        module.start_processes = start


def resumed(folder: Path) -> Any:
    with forked_workers():
        return train(folder, resume=True)


def state(folder: Path) -> dict[str, Any]:
    """What a complete run left: weights and history, to be compared bit for bit."""
    lines = [json.loads(line) for line in (folder / "model" / "metrics.jsonl").read_text().splitlines()]
    history = [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
    return {"weights": read_tensors(folder / "model" / "model.pt"), "history": history}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    alike = [torch.equal(one["weights"][key], other["weights"][key]) for key in one["weights"]]
    return all(alike) and one["history"] == other["history"]


def judged(case: Case, template: Path, folder: Path, reference: dict[str, Any]) -> dict[str, Any]:
    """Run a case, and say what is wrong with it (nothing, if all is well)."""
    shutil.copytree(template, folder)
    (folder / "tmp").mkdir()
    shared = orphaned_memory()
    os.environ[MARK] = mark = uuid.uuid4().hex  # of all processes that are started

    def first() -> Any:
        if TORCHRUN in case.who:
            return run_torchrun(case, folder)
        arm_caller(case, folder)
        with contextlib.nullcontext() if case.spawned else forked_workers():
            return train(folder, timeout=case.timeout, evaluate_test=case.when == PREDICTION)

    pid = fork(folder, "first", first)
    end = wait(pid, 240)
    ended = time.time()
    # a worker that is still importing libraries learns that its caller is gone when it has
    while (left := living(pid, mark)) and time.time() - ended < (60 if case.when == START else 10):
        time.sleep(0.05)
    gone = time.time() - ended
    known = read_json(folder / "first.json")
    text = said(known, folder)
    outcome = outcome_of(known, end, text)
    struck = float((folder / "struck").read_text()) if (folder / "struck").exists() else None
    seconds = None if struck is None or "at" not in known else known["at"] - struck
    wrong = [f"not told: {word}" for word in case.words if word not in text]
    wrong += [f"the caller has changed: {change}" for change in known.get("changed", [])]
    wrong += [f"outcome {outcome} ({end}), expected {case.outcome}"] * (outcome != case.outcome)
    wrong += ["it never happened"] * (struck is None and case.what.startswith("SIG"))
    wrong += [f"processes remain: {left}"] * bool(left)
    if case.outcome == "error" and seconds is not None and seconds > case.longest:
        wrong.append(f"the caller knew after {seconds:.0f} s")
    # a process that is killed leaves its lock file and the folder of its write: the next run removes both
    killed = case.what.startswith(("SIGKILL", "SIGSTOP", "hangs", "leaves")) or case.outcome == "gone"
    wrong += [] if killed else [f"{name} remains" for name in leftovers(folder)]
    n_checkpoints = len(list((folder / "model" / "checkpoints").glob("epoch-*.pt")))
    if case.what in ("unreadable file", "missing folder"):
        shutil.rmtree(folder / "screens", ignore_errors=True)
        shutil.copytree(template / "screens", folder / "screens")
    if outcome == "done":
        wrong += [] if same(state(folder), reference) else ["the complete run differs"]
    else:
        wrong += wrong_after(folder, reference)
    # names that others on this machine use all the time are not looked at
    wrong += [f"/dev/shm/{name} remains" for name in orphaned_memory() - shared]
    return {
        **asdict(case), "told": shown(text, end), "outcome": outcome, "seconds": seconds, "gone": gone,
        "checkpoints": n_checkpoints, "wrong": wrong,
    }  # fmt: skip


def said(known: dict[str, Any], folder: Path) -> str:
    """What a caller was told: its exception, and the line of its log that says how training was stopped."""
    lines = [
        line
        for line in (folder / "first.log").read_text().splitlines()
        if "training was stopped" in line or "ended by force" in line
    ]
    words = [f"{known['type']}: {known['message']}"] if known.get("type") else []
    return " / ".join([*words, *lines[-1:]])


def outcome_of(known: dict[str, Any], end: str, text: str) -> str:
    if end != "exited":
        return "gone"
    if known["type"] in ("SystemExit", "KeyboardInterrupt") or (known["type"] is None and "stopped by" in text):
        return "stopped"
    return "error" if known["type"] else "done"


def wrong_after(folder: Path, reference: dict[str, Any]) -> list[str]:
    """What is wrong when the run goes on: it must end as one that was never interrupted, and leave nothing."""
    end = wait(fork(folder, "again", lambda: resumed(folder)), 120)
    known = read_json(folder / "again.json")
    if end != "exited" or known["type"] is not None:
        return [f"going on: {end} {known.get('type')} {known.get('message', '')[:200]}"]
    wrong = [] if same(state(folder), reference) else ["the run that went on differs"]
    return wrong + [f"{name} remains after going on" for name in leftovers(folder)]


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def shown(text: str, end: str) -> str:
    """The first line of what was told, without paths of this machine."""
    line = (text.strip().splitlines() or [""])[0]
    line = re.sub(r"/[^\s'\";,)\]]*/([^\s/'\";,)\]]+)", r"\1", line)
    return line[:300] or (f"(ended by {end})" if end.startswith("SIG") else "(the run is complete)")


def prepare(template: Path) -> None:
    """A screen, prepared and not; graphs and split are made once, by a first run."""
    (template / "screens").mkdir(parents=True)
    adata, _ = simulated_screen(n_genes=40, n_singles=10, n_pairs=6, cells_per_condition=12, n_control=40, seed=3)
    adata.write_h5ad(template / "screens" / "small.h5ad")
    job = job_module.TrainingJob.check(
        template / "screens", "small", {"split": "simulation", "seed": 1},
        {"save_path": str(template / "model"), "model_config": {"hidden_size": 4}, "prior": None},
        {"default_pert_graph": False},
    )  # fmt: skip
    job.prepare(2)


def table(results: Path) -> str:
    """The rows as Markdown, in the order of `cases`."""
    found = {row["name"]: row for row in map(json.loads, results.read_text().splitlines())}
    lines = ["| who | what | when | what the caller was told | s | then |", "|---|---|---|---|---:|---|"]
    for case in cases():
        if (row := found.get(case.name)) is not None:
            seconds = "" if row["seconds"] is None else f"{row['seconds']:.1f}"
            again = "goes on" if row["checkpoints"] else "starts again"
            then = "same result" if row["outcome"] == "done" else f"{again}, same result"
            told = row["told"].replace("|", "/")
            star = "" if case.spawned or TORCHRUN in case.who else " *"
            then = "; ".join(row["wrong"]) or then
            lines.append(f"| {case.who}{star} | {case.what} | {case.when} | {told} | {seconds} | {then} |")
    return "\n".join(lines) + "\n"


def main(root: Path, results: Path, words: list[str]) -> int:
    """Judge all cases that RESULTS does not hold yet; the number of those with which something is wrong."""
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # one for all callers
    logging.getLogger("gears").setLevel(logging.WARNING)
    template = root / "template"
    if not template.exists():
        prepare(template)
    reference = root / "reference"
    if not reference.exists():
        shutil.copytree(template, reference)
        (reference / "tmp").mkdir()
        assert wait(fork(reference, "first", lambda: resumed(reference)), 180) == "exited"
    whole = state(reference)
    done = {json.loads(line)["name"] for line in results.read_text().splitlines()} if results.exists() else set()
    n_wrong = 0
    for number, case in enumerate(cases()):
        if case.name in done or (words and not any(word in case.name for word in words)):
            continue
        folder = root / f"case-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        found = {"name": case.name, **judged(case, template, folder, whole)}
        n_wrong += bool(found["wrong"])
        with open(results, "a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
        if not found["wrong"]:
            shutil.rmtree(folder)
    results.with_suffix(".md").write_text(table(results))
    return n_wrong


if __name__ == "__main__":
    if sys.argv[1] == "--worker":
        torchrun_worker(Path(sys.argv[2]), sys.argv[3])
        sys.exit()
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]) > 0)
