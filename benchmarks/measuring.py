"""Wall and CPU seconds and peak memory of a block, and the files of a result.

Standard library only: two interpreters use it.

CPU seconds count this process and its finished children. Memory is the highest
resident size of this process within the block (the kernel's mark is set back first), and the highest
of what it and its children hold for themselves, pages of mapped files left out, looked at every 50 ms.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import resource
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent


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
        return (cpu_seconds() - self._cpu - self._paused_cpu, time.perf_counter() - self._wall - self._paused_wall)

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
    """What the figures are measured on."""
    model = ""
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        model = found.group(1).strip() if found else ""
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


def commit():
    """Commit of the checkout, with ``+changes`` where tracked files of the package differ from it."""

    def git(*arguments):
        done = subprocess.run(["git", *arguments], cwd=HERE, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    name = git("rev-parse", "--short", "HEAD") or "unknown"
    return name + ("+changes" if git("status", "--porcelain", "--untracked-files=no", "../gears") else "")


def command(words):
    """The command that was given, without the machine's folders: one outside the repository is FOLDER."""
    shown = []
    for word in words:
        option, is_joined, value = word.rpartition("=")
        path = os.path.relpath(value, HERE.parent) if os.path.isabs(value) else value
        shown.append(option + is_joined + ("FOLDER" if path.startswith(os.pardir) else path))
    return " ".join(["python benchmarks/run.py", *(f'"{word}"' if " " in word else word for word in shown)])


def about(words):
    """What every result says of how it was made."""
    return {
        "machine": machine(),
        "versions": versions(("torch", "numpy", "scipy", "pandas", "anndata")),
        "commit": commit(),
        "load": round(os.getloadavg()[0], 1),
        "command": command(words),
    }


@dataclass
class Result:
    """What a job has found so far.

    Attributes
    ----------
    title
        Heading of the page.
    lines
        Lines of the page below what is said of the machine.
    record
        What the JSON file holds beside it.
    files
        Bytes of pictures and tables, by what follows the name of the files.
    name
        Name of the files, where it is not that of the job.
    """

    title: str
    lines: list
    record: dict
    files: dict = field(default_factory=dict)
    name: str = ""


def write(folder, name, result, facts):
    """Markdown, JSON and the other files of a result; returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    head = [f"- {key}: {_words(value)}" for key, value in facts.items()]
    page = "\n".join([f"# {result.title}", "", *head, "", *result.lines, ""])
    (folder / f"{name}.md").write_text(page)
    (folder / f"{name}.json").write_text(json.dumps(facts | result.record, indent=1, default=_plain) + "\n")
    for end, data in result.files.items():
        (folder / f"{name}{end}").write_bytes(data)
    return page


def _words(value):
    return ", ".join(f"{key} {each}" for key, each in value.items()) if isinstance(value, dict) else value


def _plain(value):
    """Numbers of numpy, arrays and tuples as JSON holds them."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def table(rows):
    """Lines of a Markdown table: the columns are the keys of all rows."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    return lines + [f"| {' | '.join(_cell(row.get(column, '')) for column in columns)} |" for row in rows]


def _cell(value):
    return f"{value:.4g}" if isinstance(value, float) or hasattr(value, "dtype") else str(value)


# --- a process that runs stages one at a time, on demand ------------------------------------------

START = "import sys; sys.path[:0] = {paths!r}; import measuring, {module}; measuring.serve(vars({module}))"


def serve(stages):
    """Answer requests ``{"stage": name, **arguments}`` until stdin ends.

    They come as JSON lines, answers go as JSON lines to the stdout the process started with; whatever a package prints
    goes to stderr. `stages` are functions by name.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"value": stages[request.pop("stage")](**request)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


class Side:
    """Starts a side with its own interpreter and asks it for stages.

    Parameters
    ----------
    module
        File whose functions are stages, a path.
    folder
        Working folder of the process; its messages are kept there.
    python
        The interpreter. It runs isolated (``-I``) and in `folder`, so that the user's settings do not decide which
        package is imported: that of this checkout, or with another interpreter what is installed there.
    threads
        Threads of numerical libraries.
    """

    def __init__(self, module, folder, python=sys.executable, threads=1):
        module, folder = Path(module).resolve(), Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        paths = [str(HERE), str(module.parent)]
        if python == sys.executable:
            paths.append(str(HERE.parent))
        keys = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
        environment = os.environ | dict.fromkeys(keys, str(threads)) | {"MPLBACKEND": "Agg", "TQDM_DISABLE": "1"}
        self.name = module.stem
        self._log = (folder / f"{self.name}.log").open("w")
        self._process = subprocess.Popen(
            [str(python), "-I", "-c", START.format(paths=paths, module=self.name)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, cwd=folder, env=environment,
        )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def ask(self, stage, **arguments):
        """Run a stage and return its value; an error of the side is raised here with its traceback."""
        self._process.stdin.write(json.dumps({"stage": stage, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended in stage {stage!r}; see {self.name}.log in its folder")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self.name}, stage {stage!r}:\n{answer['error']}")
        return answer["value"]
