"""Kills and faults of a training job of two workers: what the caller was told, what is left, how the run goes on.

``python faults.py FOLDER RESULTS [WORD ...]`` appends a line of JSON for each case (of those whose name contains all
words) to RESULTS, and goes on where an interrupted run of it ended. This process never trains itself: each caller is a
fork of it. Workers are spawned, as for users, in the rows of `Case.spawned`; in the others, and in the run that follows
to see that the job goes on, they are forks of the caller, which saves the seconds of importing libraries.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import itertools
import json
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from gears.distributed.launch import Group
from gears.files import atomic
from gears.files.tensors import read_tensors
from gears.gears import GEARS
from gears.jobs import job as job_module
from gears.jobs.job import TrainingJob, train_ddp_worker, train_multi_gpu
from gears.simulate import simulated_screen
from gears.training import checkpoints, fitting
from gears.training.step import Stepper
from gears.training.tasks import MomentsTask

launch_module = importlib.import_module("gears.distributed.launch")

MARK = "GEARS_FAULT"
LATE = 20.0
"""Seconds that a busy machine may add to the time-out until the caller knows."""
EPOCHS, THIRD_STEP, SECOND_EPOCH = 3, 3, 2
PREPARING, START, STEP, VALIDATION = "preparing", "start of workers", "a step", "validation"
CHECKPOINT, SAVE, PREDICTION = "writing a checkpoint", "final save", "prediction"
IN_WORKERS = (START, STEP, VALIDATION, CHECKPOINT, SAVE)
SIGNALS = ("SIGTERM", "SIGINT", "SIGKILL", "SIGSTOP")
CALLER = "caller"


@dataclass(frozen=True)
class Case:
    """Who is hit ("worker 0", "worker 1", "caller"), by what, and when; `words` must be in what the caller is told."""

    who: str
    what: str
    when: str
    words: tuple[str, ...] = ()
    outcome: str = ""

    @property
    def name(self) -> str:
        return f"{self.what} | {self.who} | {self.when}"

    @property
    def spawned(self) -> bool:
        """Whether workers are spawned."""
        return self.when == START or (self.when == STEP and self.who != "worker 0" and self.what in SIGNALS)

    @property
    def timeout(self) -> float:
        """Seconds after which a worker that does not respond is declared dead."""
        silent = self.who != CALLER and self.what in ("SIGSTOP", "hangs")
        return (30.0 if self.when == START else 8.0) if silent else 90.0


def cases() -> list[Case]:
    """All rows of the table; `outcome` is "error", "stopped", "done" (a complete run) or "gone" (ended by a signal)."""
    rows = []
    for rank, when, name in itertools.product((0, 1), IN_WORKERS, SIGNALS):
        who = f"worker {rank}"
        if name in ("SIGTERM", "SIGINT"):
            outcome = {START: "error", SAVE: "done"}.get(when, "stopped")
            words: tuple[str, ...] = (f"stopped by {name} to {who} of 2", "the checkpoint is", "resume=True")
            if when == START:
                words = (f"{who} of 2 was killed by {name}",)
            rows.append(Case(who, name, when, () if when == SAVE else words, outcome))
        else:
            told = f"{who} of 2 was killed by SIGKILL; out of memory?"
            if name == "SIGSTOP":
                told = f"{who} of 2 did not respond"
            rows.append(Case(who, name, when, (told, name), "error"))
    for when, name in itertools.product((PREPARING, *IN_WORKERS, PREDICTION), SIGNALS):
        ends = {"SIGKILL": "gone", "SIGSTOP": "done", "SIGTERM": "stopped", "SIGINT": "stopped"}
        outcome = ends[name]
        words = {"SIGTERM": ("SystemExit: 143",), "SIGINT": ("KeyboardInterrupt",)}.get(name, ())
        if name == "SIGTERM" and when in (PREPARING, PREDICTION):
            outcome, words = "gone", ()
        if when in (STEP, VALIDATION, CHECKPOINT) and outcome == "stopped":
            words += (f"stopped by {name} to all workers", "the checkpoint is")
        rows.append(Case(CALLER, name, when, words, outcome))
    full, no_memory = "No space left on device", "memory is full"
    return [
        *rows,
        *(Case(f"worker {rank}", "SIGSTOP, SIGCONT after 2 s", STEP, (), "done") for rank in (0, 1)),
        Case("worker 0", "full disk", CHECKPOINT, (full, "checkpoints/epoch-"), "error"),
        Case("worker 0", "full disk", SAVE, (full, "model"), "error"),
        Case(CALLER, "full disk", PREPARING, (full, "screens"), "error"),
        Case("worker 1", "memory of torch full", STEP, ("worker 1 of 2", no_memory, "batch_size"), "error"),
        Case("worker 0", "memory of numpy full", VALIDATION, ("worker 0 of 2", no_memory, "batch_size"), "error"),
        Case("worker 1", "exception", STEP, ("worker 1 of 2 failed: KeyError: 'no such gene'",), "error"),
        Case("worker 1", "leaves with 0", STEP, ("worker 1 of 2 left early with exit code 0",), "error"),
        Case("worker 0", "leaves with 3", VALIDATION, ("worker 0 of 2 left early with exit code 3",), "error"),
        Case("worker 1", "hangs", STEP, ("worker 1 of 2 did not respond", "it hangs"), "error"),
        Case("worker 0", "hangs", VALIDATION, ("worker 0 of 2 did not respond", "it hangs"), "error"),
        Case("worker 1", "NaN", STEP, ("FloatingPointError", "nan"), "error"),
        Case(CALLER, "unreadable file", START, ("perturb_processed.h5ad", "damaged"), "error"),
        Case(CALLER, "missing folder", START, ("screens/small",), "error"),
    ]  # fmt: skip


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
        os.kill(target, signal.Signals[case.what.split(",")[0]])
    elif case.what == "full disk":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    elif case.what.startswith("memory"):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, resource.RLIM_INFINITY))
        (torch.zeros if "torch" in case.what else importlib.import_module("numpy").zeros)(2**30)
    elif case.what == "exception":
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
    if case.who not in (f"worker {rank}", CALLER if rank == 0 else ""):
        return
    target = os.getppid() if case.who == CALLER else os.getpid()
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

    before(Stepper, "step", now(STEP, THIRD_STEP))
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
    return train_ddp_worker(rank, world_size, *args)


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
                shutil.rmtree(screen)
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


def train(folder: Path, *, resume: bool = False, timeout: float = 90.0, screens: Path | None = None) -> Any:
    """Train with two workers; the screen is that of the folder, or one for several folders."""
    args = {
        "save_path": str(folder / "model"), "model_config": {"hidden_size": 4}, "epochs": EPOCHS, "prior": None,
        "batch_size": 4, "verbose": False, "resume": resume,
    }  # fmt: skip
    return train_multi_gpu(
        screens or folder / "screens", "small", {"split": "simulation", "seed": 1}, args, n_gpus=2, device="cpu",
        timeout=timeout, data_config={"default_pert_graph": False},
    )  # fmt: skip


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
        told: dict[str, Any] = {"type": None}
        try:
            result = work()
            told |= {"message": result.stopped_because or "", "stopped": result.stopped}
            told["metrics"] = result.test_metrics
        except BaseException as error:
            told |= {"type": type(error).__name__, "message": str(error), "trace": traceback.format_exc()}
        told["at"] = time.time()
        (folder / f"{name}.json").write_text(json.dumps(told))
    finally:
        logging.shutdown()
        os._exit(0)


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


def marked(mark: str) -> list[int]:
    """Living processes that inherited the mark in their environment, but for this one."""
    living = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                living.append(int(entry.name))
    return living


def leftovers(folder: Path) -> list[str]:
    """Hidden and temporary files of a case, but for locks that a screen's folder keeps."""
    # torch makes the folder of its compiler's cache, one per user, when that is imported
    inner = [
        path
        for name in ("screens", "model")
        for path in (folder / name).rglob(".*")
        if path.suffix != ".lock"
    ]
    found = [*inner, *folder.glob(".*"), *(folder / "tmp").iterdir()]
    return [str(path.relative_to(folder)) for path in found if not path.name.startswith("torchinductor_")]


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


def last_line(folder: Path) -> str:
    """The last line of a caller's log that says that training was stopped."""
    lines = [line for line in (folder / "first.log").read_text().splitlines() if "training was" in line]
    return lines[-1] if lines else ""


def judged(case: Case, template: Path, folder: Path, reference: dict[str, Any]) -> dict[str, Any]:
    """Run a case, and what is wrong with it (nothing, if all is well)."""
    shutil.copytree(template, folder)
    (folder / "tmp").mkdir()
    shared = set(os.listdir("/dev/shm"))
    mark = uuid.uuid4().hex
    os.environ[MARK] = mark  # its workers have it, too

    def first() -> Any:
        os.environ[MARK] = mark
        arm_caller(case, folder)
        with contextlib.nullcontext() if case.spawned else forked_workers():
            return train(folder, resume=False, timeout=case.timeout)

    end = wait(fork(folder, "first", first), 180)
    ended = time.time()
    while (left := marked(mark)) and time.time() - ended < 10:
        time.sleep(0.05)
    gone = time.time() - ended
    struck = float((folder / "struck").read_text()) if (folder / "struck").exists() else None
    told = json.loads((folder / "first.json").read_text()) if (folder / "first.json").exists() else {}
    message = told.get("message", "")
    text = f"{told['type']}: {message}" if told.get("type") else message
    if said := last_line(folder):
        text = said if not text else text if said.endswith(text) else f"{text} / {said}"
    outcome = {"exited": "error" if told.get("type") else "stopped" if told.get("stopped") else "done"}.get(
        end, "gone"
    )
    if told.get("type") in ("SystemExit", "KeyboardInterrupt"):
        outcome = "stopped"
    wrong = []
    if outcome != case.outcome:
        wrong.append(f"outcome {outcome} ({end}), expected {case.outcome}")
    wrong += [f"not told: {word}" for word in case.words if word not in text]
    if struck is None and case.what.startswith("SIG"):
        wrong.append("it never happened")
    seconds = None if struck is None or "at" not in told else told["at"] - struck
    if (
        seconds is not None
        and case.outcome == "error"
        and seconds > LATE + (case.timeout if case.timeout < 90 else 0)
    ):
        wrong.append(f"the caller knew after {seconds:.0f} s")
    if left:
        wrong.append(f"processes remain: {left}")
    temporary = [
        name for name in leftovers(folder) if name.startswith("tmp/") and "torchinductor" not in name
    ]
    if temporary:
        wrong.append(f"temporary files remain: {temporary}")
    if (
        case.outcome != "gone"
        and end != "SIGKILL"
        and (files := leftovers(folder))
        and case.what != "SIGKILL"
    ):
        wrong.append(f"files remain: {files}")
    if case.what in ("unreadable file", "missing folder"):
        shutil.rmtree(folder / "screens")
        shutil.copytree(template / "screens", folder / "screens")
    kept = len(list((folder / "model" / "checkpoints").glob("epoch-*.pt")))
    if outcome == "done":
        wrong += [] if same(state(folder), reference) else ["the run that was complete differs"]
    else:
        again = wait(fork(folder, "again", lambda: resumed(folder)), 120)
        known = json.loads((folder / "again.json").read_text()) if (folder / "again.json").exists() else {}
        if again != "exited" or known.get("type") is not None:
            wrong.append(f"resuming: {again} {known.get('type')} {known.get('message', '')[:200]}")
        elif not same(state(folder), reference):
            wrong.append("the resumed run differs")
        if files := leftovers(folder):
            wrong.append(f"files remain after resuming: {files}")
    new = set(os.listdir("/dev/shm")) - shared
    if remaining := [name for name in new if not name.startswith(("sem.", "psm_"))]:
        wrong.append(f"shared memory remains: {remaining}")
    return {
        **asdict(case), "told": shown(text, end), "outcome": outcome, "seconds": seconds, "gone": gone,
        "checkpoints": kept, "wrong": wrong,
    }  # fmt: skip


def shown(text: str, end: str) -> str:
    """The first line of what was told, without paths of this machine."""
    line = (text.strip().splitlines() or [""])[0]
    words = [
        Path(word.strip("'(;,")).name if word.strip("'(").startswith("/") else word for word in line.split()
    ]
    return " ".join(words)[:240] or (
        f"(ended by {end})" if end.startswith("SIG") else "(the run is complete)"
    )


def prepare(template: Path) -> None:
    """A screen, prepared and not; graphs and split are made once, by a first run."""
    (template / "screens").mkdir(parents=True)
    adata, _ = simulated_screen(
        n_genes=40, n_singles=10, n_pairs=6, cells_per_condition=12, n_control=40, seed=3
    )
    adata.write_h5ad(template / "screens" / "small.h5ad")
    job = TrainingJob.check(
        template / "screens", "small", {"split": "simulation", "seed": 1},
        {"save_path": str(template / "model"), "model_config": {"hidden_size": 4}, "prior": None},
        {"default_pert_graph": False},
    )  # fmt: skip
    job.prepare(2)


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
    done = (
        {json.loads(line)["name"] for line in results.read_text().splitlines()} if results.exists() else set()
    )
    n_wrong = 0
    for number, case in enumerate(cases()):
        if case.name in done or not all(word in case.name for word in words):
            continue
        folder = root / f"case-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        found = {"name": case.name, **judged(case, template, folder, whole)}
        n_wrong += bool(found["wrong"])
        with open(results, "a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
        if not found["wrong"]:
            shutil.rmtree(folder)
    return n_wrong


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]) > 0)
