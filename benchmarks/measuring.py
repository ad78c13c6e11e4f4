"""Wall and CPU seconds and peak memory of a block; standard library only, for two interpreters.

CPU seconds count this process and its finished children. Memory is the highest
resident size of this process within the block (the kernel's mark is set back first), and the highest
of what it and its children hold for themselves, pages of mapped files left out, looked at every 50 ms.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path


def cpu_seconds():
    """CPU seconds of this process and of its children that have ended."""
    used = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        used += usage.ru_utime + usage.ru_stime
    return used


def memory_mb(mark="VmRSS"):
    """Resident size now (``VmRSS``) or its highest mark (``VmHWM``), MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(mark + ":"):
            return int(line.split()[1]) / 1024
    return float("nan")


def pss_mb():
    """Proportional set size of this process, MiB: a page that k processes share counts 1/k in each.

    Libraries are left out: other processes of the machine change how many share them.
    """
    total, counted = 0, True
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            counted = ".so" not in line and "/bin/" not in line
        elif line.startswith("Pss:") and counted:
            total += int(line.split()[1])
    return total / 1024


def reset_peak():
    """Set the kernel's mark of the highest resident size back to the present size, where it lets us."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def family(process):
    """A process and all its children, by number."""
    found = [process]
    for parent in found:
        with contextlib.suppress(OSError):
            for path in Path(f"/proc/{parent}/task").glob("*/children"):
                found += map(int, path.read_text().split())
    return found


def own_memory_mb(process):
    """What a process and its children hold for themselves, MiB; mapped files and shared pages are not counted."""
    total = 0
    for member in family(process):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{member}/status").read_text().splitlines():
                if line.startswith("RssAnon:"):
                    total += int(line.split()[1])
    return total / 1024


class Watch(threading.Thread):
    """Highest own memory of this process and its children until it is stopped."""

    def __init__(self, every=0.05):
        super().__init__(daemon=True)
        self.every, self.peak_mb = every, 0.0
        self._done = threading.Event()

    def run(self):
        while not self._done.wait(self.every):
            self.peak_mb = max(self.peak_mb, own_memory_mb(os.getpid()))

    def stop(self):
        """The highest size seen, MiB."""
        self._done.set()
        self.join()
        return max(self.peak_mb, own_memory_mb(os.getpid()))


class Measurement:
    """A block's figures; `pause` leaves out what is not the block's work.

    Examples
    --------
    >>> with Measurement() as block:
    ...     _ = sum(range(1000))
    >>> block.figures["cpu_s"] >= 0
    True
    """

    def __enter__(self):
        self.load = os.getloadavg()[0]
        reset_peak()
        self._memory = memory_mb()
        self._paused_cpu = self._paused_wall = 0.0
        self._watch = Watch()
        self._watch.start()
        self._cpu, self._wall = cpu_seconds(), time.perf_counter()
        return self

    def __exit__(self, *_):
        cpu, wall = self.now()
        self.figures = {
            "wall_s": wall,
            "cpu_s": cpu,
            "peak_mb": memory_mb("VmHWM"),
            "own_mb": self._watch.stop(),
            "before_mb": self._memory,
            "load": self.load,
        }

    def now(self):
        """CPU and wall seconds since the start, pauses left out."""
        return (
            cpu_seconds() - self._cpu - self._paused_cpu,
            time.perf_counter() - self._wall - self._paused_wall,
        )

    @contextlib.contextmanager
    def pause(self):
        """Leave the CPU and wall seconds of a block out."""
        cpu, wall = cpu_seconds(), time.perf_counter()
        try:
            yield
        finally:
            self._paused_cpu += cpu_seconds() - cpu
            self._paused_wall += time.perf_counter() - wall


def machine():
    """What the figures were measured on."""
    model = ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu": model or platform.processor(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions(names):
    """Installed versions of distributions, and Python's."""
    from importlib import metadata

    found = {"python": platform.python_version()}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def commit(folder):
    """Commit of the checkout, with ``+changes`` where tracked files differ from it."""

    def git(*arguments):
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    name = git("rev-parse", "--short", "HEAD") or "unknown"
    return name + ("+changes" if git("status", "--porcelain", "--untracked-files=no", "gears") else "")


def command():
    """The command that was given, without the machine's folders: one outside the repository is FOLDER."""
    root = Path(__file__).resolve().parents[1]
    paths = [os.path.relpath(word, root) if os.path.isabs(word) else word for word in sys.argv[1:]]
    words = ["FOLDER" if path.startswith(os.pardir) else path for path in paths]
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words])
