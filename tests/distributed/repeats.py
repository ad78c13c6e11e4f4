"""Many jobs at once on one prepared folder, and many groups one after the other: what is left behind.

``python repeats.py jobs FOLDER N METHOD``, ``cycles`` for the groups and ``both`` print a line of JSON; METHOD is how
workers start: "spawn", as for users, or "fork", without the seconds of importing libraries.
"""

import contextlib
import json
import os
import resource
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from faults import MARK, fork, forked_workers, leftovers, living, orphaned_memory, prepare, same, state, train, wait

from gears.distributed import launch


def how(method: str) -> Any:
    return contextlib.nullcontext() if method == "spawn" else forked_workers()


def jobs(folder: Path, n: int, method: str) -> dict[str, Any]:
    """Start n trainings of two workers at once, which read one screen."""
    prepare(folder)
    (folder / "tmp").mkdir()
    os.environ[MARK] = mark = uuid.uuid4().hex
    shared = orphaned_memory()
    before = sorted(str(path) for path in (folder / "screens").rglob("*"))

    def work(number: int) -> Any:
        place = folder / f"job-{number}"
        with how(method):
            return train(place, screens=folder / "screens")

    for number in range(n):
        (folder / f"job-{number}" / "tmp").mkdir(parents=True)
    start = time.time()
    pids = [fork(folder / f"job-{number}", "first", lambda number=number: work(number)) for number in range(n)]
    ends = [wait(pid, 900) for pid in pids]
    seconds = time.time() - start
    while any(living(pid, mark) for pid in pids) and time.time() - start - seconds < 10:
        time.sleep(0.05)  # each caller's resource tracker of Python ends a moment after it
    told = [json.loads((folder / f"job-{number}" / "first.json").read_text()) for number in range(n)]
    errors = [one["message"] for one in told if one["type"] is not None]
    states = [] if errors else [state(folder / f"job-{number}") for number in range(n)]
    return {
        "jobs": n, "ends": sorted(set(ends)), "errors": errors, "seconds": round(seconds),
        "alike": all(same(states[0], one) for one in states[1:]) if states else False,
        "processes": sum(len(living(pid, mark)) for pid in pids),
        "shared memory": sorted(orphaned_memory() - shared),
        "files": [name for number in range(n) for name in leftovers(folder / f"job-{number}")] + leftovers(folder),
        "screen changed": before != sorted(str(path) for path in (folder / "screens").rglob("*")),
    }  # fmt: skip


def counts(folder: Path) -> dict[str, Any]:
    """What this process holds, and what lies in its folder for temporary files and in shared memory."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "python threads": threading.active_count(),
        "children": len(children),
        "temporary files": len([name for name in os.listdir(folder) if not name.startswith("torchinductor_")]),
        "shared memory": len(orphaned_memory()),
    }


def rank_of(rank: int, world_size: int) -> int:
    return rank + world_size


def cycles(folder: Path, n: int, method: str, seconds: float = float("inf")) -> dict[str, Any]:
    """Start and stop a group of two workers n times, or as often as `seconds` allow."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["TMPDIR"] = str(folder)
    start, done, at_start, memory = time.time(), 0, {}, 0
    with how(method):
        while done < n and time.time() - start < seconds:
            assert launch(rank_of, ["cpu"] * 2, backend="gloo") == 2
            done += 1
            if done == 2:  # what stays for good after the first use is there
                at_start, memory = counts(folder), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    return {
        "cycles": done, "method": method, "seconds": round(time.time() - start), "start": at_start,
        "end": counts(folder), "grown_mib": round(grown / 1024, 1),
    }  # fmt: skip


if __name__ == "__main__":
    what, place, number, method, *limit = sys.argv[1:]
    found = {}
    if what in ("jobs", "both"):
        found |= jobs(Path(place) / "jobs", int(number), method)
    if what in ("cycles", "both"):
        found |= cycles(Path(place) / "tmp", 2 * int(number), method, *map(float, limit))
    print("FOUND " + json.dumps(found), flush=True)
