"""Kills, faults, jobs at once and groups one after the other; the long forms write tables where one is asked for.

GEARS_FAULT_TABLE names the file (.md) of the table of kills and faults, GEARS_REPEATS that (.json) of the repetitions.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fault_cases import cases

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for remains in /proc, which is Linux only"),
]  # fmt: skip
HERE = Path(__file__).parent


def run(script: str, *words: object, seconds: float) -> str:
    command = [sys.executable, str(HERE / script), *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, env=environment)
    assert not done.stderr.strip() or done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_kills_faults_and_stops(tmp_path: Path) -> None:
    """Who was hit is named, the run goes on exactly, nothing is left, and the caller is as it was."""
    results = tmp_path / "rows.jsonl"
    names = [
        "SIGKILL | worker 0 | writing a checkpoint",
        "exception, the other deaf to SIGTERM | worker 1 | a step",
        "SIGTERM | caller | a step",
        "SIGKILL | caller | validation",
    ]
    run("faults.py", tmp_path / "runs", results, *names, seconds=600)
    assert {row["name"]: row["wrong"] for row in rows(results)} == {name: [] for name in names}


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_the_table_of_kills_and_faults(tmp_path: Path) -> None:
    results = tmp_path / "rows.jsonl"
    run("faults.py", tmp_path / "runs", results, seconds=7000)
    found = {row["name"]: row["wrong"] for row in rows(results)}
    assert found == {case.name: [] for case in cases()}
    if table := os.environ.get("GEARS_FAULT_TABLE"):
        Path(table).write_text(results.with_suffix(".md").read_text())


def nothing_left(found: dict[str, Any], n: int) -> None:
    assert (found["ends"], found["errors"], found["alike"]) == (["exited"], [], True)
    assert (found["processes"], found["files"], found["screen changed"]) == (0, [], False)
    assert found["jobs"] == n


def repeats(*words: object, seconds: float) -> dict[str, Any]:
    """What `repeats.py` found; kept in GEARS_REPEATS."""
    (line,) = [line for line in run("repeats.py", *words, seconds=seconds).splitlines() if line.startswith("FOUND ")]
    if path := os.environ.get("GEARS_REPEATS"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(line[6:] + "\n")
    found: dict[str, Any] = json.loads(line[6:])
    return found


def test_two_jobs_at_once_on_one_screen_and_groups_one_after_the_other(tmp_path: Path) -> None:
    found = repeats("both", tmp_path, 2, "fork", seconds=300)
    nothing_left(found, 2)
    no_growth(found, 4)


@pytest.mark.long
def test_eight_jobs_at_once_on_one_screen(tmp_path: Path) -> None:
    nothing_left(repeats("jobs", tmp_path, 8, "spawn", seconds=1100), 8)


@pytest.mark.long
@pytest.mark.timeout(20000)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_thousand_groups_leave_nothing(method: str, tmp_path: Path) -> None:
    no_growth(repeats("cycles", tmp_path, 500, method, seconds=20_000), 1000)


def no_growth(found: dict[str, Any], n: int) -> None:
    assert found["cycles"] == n
    assert found["end"] == found["start"]
    assert found["grown_mib"] < 20
