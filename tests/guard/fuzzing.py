"""Gives every reader files that a fuzzer guided by coverage makes up: read, or an error that names the file.

``python fuzzing.py FOLDER SCREEN.h5ad SECONDS [NAME...]`` (with atheris installed) shares the seconds among all
targets, or those named, each in a process of its own, and prints a line of JSON: tries and findings of each.
Findings do not end a target; a hang, a crash or memory without end does, and the input that did it stays in FOLDER.
"""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

LIMITS = ("-timeout=30", "-rss_limit_mb=6000", "-max_len=65536")
ENDS = ("crash", "timeout", "oom", "slow")
"""How the names begin of the inputs that libFuzzer keeps."""


def fuzz(folder: Path, screen: str, name: str, seconds: int) -> None:
    """One target for so many seconds; libFuzzer ends the process itself."""
    import atheris

    with atheris.instrument_imports(include=["gears"]):
        from fuzz_targets import targets
    import anndata

    logging.getLogger("gears").setLevel(logging.CRITICAL)
    target = targets(folder / "files", anndata.read_h5ad(screen), only=name)[name]
    corpus, log, seen, tries = folder / "corpus", folder / "findings.json", {}, 0
    corpus.mkdir()
    (corpus / "seed").write_bytes(target.seed())

    def one(content: bytes) -> None:
        nonlocal tries
        tries += 1
        wrong = target.finding(content)
        if wrong is not None and wrong[0] not in seen:
            seen[wrong[0]] = wrong[1]
            (folder / f"finding-{len(seen)}").write_bytes(content)
        if wrong is not None or tries % 50 == 0:
            log.write_text(json.dumps({"tries": tries, "findings": seen}))

    arguments = [f"-max_total_time={seconds}", f"-artifact_prefix={folder}/", *LIMITS]
    atheris.Setup([sys.argv[0], str(corpus), *arguments], one)
    atheris.Fuzz()


def main(folder: Path, screen: str, seconds: float, names: list[str]) -> dict[str, Any]:
    import anndata
    from fuzz_targets import targets

    chosen = names or list(targets(folder / "names", anndata.read_h5ad(screen)))
    each = max(1, int(seconds / len(chosen)))
    found: dict[str, Any] = {}
    for number, name in enumerate(chosen):
        place = folder / f"target-{number}"
        place.mkdir(parents=True)
        done = subprocess.run(
            [sys.executable, __file__, "--one", str(place), screen, name, str(each)],
            capture_output=True, text=True, timeout=each + 300, check=False,
        )  # fmt: skip
        log = place / "findings.json"
        found[name] = json.loads(log.read_text()) if log.exists() else {"tries": 0, "findings": {}}
        ends = [path.name for path in place.iterdir() if path.name.startswith(ENDS)]
        if done.returncode or ends:
            found[name]["ended by"] = [*ends, *done.stderr.splitlines()[-12:]]
        print(name, found[name], flush=True)
        shutil.rmtree(place / "files", ignore_errors=True)
    return {"tries": sum(one["tries"] for one in found.values()), "targets": found}


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        fuzz(Path(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]))
    else:
        print("FOUND " + json.dumps(main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4:])))
