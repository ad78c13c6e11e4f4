"""What the main job costs: two CPU workers on a screen, from the start of the process to the verdict.

    python benchmarks/main_job.py SCREEN.h5ad            (a first run prepares the screen, graphs and prior)

CPU seconds of the process and all its children, starting and imports included, of three calls of `train_multi_gpu`:
`epochs` given, every epoch run (`early_stopping=None`), and `epochs` omitted. The screen is prepared before.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))

from measuring import command, commit, machine, versions

CALLS = {
    "epochs=20 (as in the README)": {"epochs": 20},
    "epochs=20, early_stopping=None": {"epochs": 20, "early_stopping": None},
    "epochs omitted": {},
}
LIMITS = {"epochs=20 (as in the README)": 40, "epochs=20, early_stopping=None": 45, "epochs omitted": 20}


def job(folder: str, name: str, call: str) -> None:
    """One job; what it was and what it took by stage as a line of JSON."""
    from gears import train_multi_gpu

    args = {"save_path": f"{folder}/model", "batch_size": 32, **CALLS[call]}
    result = train_multi_gpu(folder, name, {"split": "simulation", "seed": 1}, args, device="cpu", n_gpus=2)
    steps = 20 * len(result.history)
    print(json.dumps({"epochs": len(result.history), "steps": steps, "seconds": dict(result.seconds)}))


def measured(folder: Path, name: str, call: str) -> dict[str, object]:
    """The job in a process of its own, with its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, __file__, "--job", str(folder), name, call],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu_seconds": used, **json.loads(done.stdout.strip().splitlines()[-1])}


def main() -> None:
    """Run every call in turn, and keep the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("screen", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    runs: dict[str, list[dict]] = {call: [] for call in CALLS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(options.screen, folder / "screen.h5ad")
        measured(folder, "screen", "epochs omitted")  # prepares
        for _ in range(options.repeats):
            for call in CALLS:
                runs[call].append(measured(folder, "screen", call))
    about = {
        "machine": machine(),
        "versions": versions(("torch", "numpy", "anndata")),
        "commit": commit(Path(__file__).parent),
        "command": command(),
    }
    rows = [
        "| call | epochs | steps | CPU s: median (all) | wanted | wall s by stage (first run) |",
        "|---" * 6 + "|",
    ]
    for call, own in runs.items():
        used = [run["cpu_seconds"] for run in own]
        stages = ", ".join(f"{stage} {value:.1f}" for stage, value in own[0]["seconds"].items())
        every = ", ".join(f"{value:.1f}" for value in used)
        rows.append(
            f"| {call} | {own[0]['epochs']} | {own[0]['steps']} | {statistics.median(used):.1f} ({every}) | "
            f"{LIMITS[call]} | {stages} |"
        )
    head = [f"- {key}: {value}" for key, value in about.items()]
    text = "\n".join(["# The main job: two CPU workers", "", *head, "", *rows, ""])
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "main_job.md").write_text(text)
    (options.output / "main_job.json").write_text(
        json.dumps(about | {"runs": runs}, indent=1, default=str) + "\n"
    )
    print("\n".join(rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        job(*sys.argv[2:])
    else:
        main()
