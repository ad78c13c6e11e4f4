"""Damages every kind of file at random and reads it: the same result, or an error that names the file.

``python mutating.py FOLDER SCREEN.h5ad COUNT SEED`` does it in forks of this process, with a limit of time and
memory each, and prints a line of JSON. The tests call :func:`try_once` in their own process.
"""

import json
import os
import random
import resource
import shutil
import signal
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

from anndata import AnnData
from readers import READERS, Reader, digest, files

SECONDS, MEMORY = 60, 6 << 30
ALLOWED = (ValueError, OSError)
"""What a caller may expect of a damaged file; KeyError, TypeError and the like come from deep inside."""


def mutate(content: bytes, draw: random.Random) -> tuple[str, bytes]:
    """A truncated, flipped, overwritten, lengthened or emptied copy, and what was done."""
    kind = draw.choice(["cut", "flip", "flip", "flips", "zeros", "noise", "insert", "remove", "empty", "page"])
    size = len(content)
    at = draw.randrange(size) if size else 0
    if kind == "cut":
        return f"cut to {at}", content[:at]
    if kind == "empty":
        return kind, b""
    if kind == "page":
        return "a web page", b"<!DOCTYPE html><html><body>Please log in</body></html>"
    changed = bytearray(content)
    if kind in ("flip", "flips"):
        for _ in range(1 if kind == "flip" else 8):
            place = draw.randrange(size)
            changed[place] ^= 1 << draw.randrange(8)
        return f"{kind} near {at}", bytes(changed)
    length = draw.randint(1, max(1, min(64, size - at)))
    piece = bytes(length) if kind == "zeros" else draw.randbytes(length)
    if kind == "insert":
        changed[at:at] = piece
    elif kind == "remove":
        del changed[at : at + length]
    else:
        changed[at : at + length] = piece
    return f"{kind} {length} at {at}", bytes(changed)


class Bench:
    """Whole files of each kind, and what reading them gives."""

    def __init__(self, folder: Path, adata: AnnData) -> None:
        self.folder, self.adata = folder, adata
        self.whole: dict[str, str] = {}

    def prepare(self, reader: Reader) -> Path:
        place = self.folder / reader.name
        if reader.name not in self.whole:
            place.mkdir(parents=True)
            reader.make(place, self.adata.copy())
            self.whole[reader.name] = digest(reader.read(place))
        return place

    def judge(self, reader: Reader, place: Path, damaged: Path) -> str:
        """'same', 'refused', or what is wrong."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = digest(reader.read(place))
        except ALLOWED as error:
            text = str(error)
            return "refused" if damaged.name in text or str(place) in text else f"WRONG: no name in {text[:300]!r}"
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            return f"WRONG: {type(error).__name__}: {str(error)[:200]} ({Path(where.filename).name}:{where.lineno})"
        if found == self.whole[reader.name]:
            return "same"
        return "WRONG: silently another result"

    def try_once(self, reader: Reader, draw: random.Random, *, fork: bool) -> tuple[str, str]:
        """Damage one file of a fresh copy; what was done and the judgement."""
        source = self.prepare(reader)
        place = self.folder / f"damaged-{reader.name}"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(source, place)
        damaged = draw.choice(files(place))
        what, content = mutate(damaged.read_bytes(), draw)
        damaged.write_bytes(content)
        done = f"{reader.name}/{damaged.relative_to(place)}: {what}"
        return done, self.in_fork(reader, place, damaged) if fork else self.judge(reader, place, damaged)

    def in_fork(self, reader: Reader, place: Path, damaged: Path) -> str:
        out = self.folder / "judgement"
        out.unlink(missing_ok=True)
        pid = os.fork()
        if pid == 0:
            try:
                resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
                signal.alarm(SECONDS)
                out.write_text(self.judge(reader, place, damaged))
            finally:
                os._exit(0)
        _, status = os.waitpid(pid, 0)
        if status:
            return f"WRONG: ended by signal {status & 127}" + (" (a hang)" if status & 127 == signal.SIGALRM else "")
        return out.read_text() if out.exists() else "WRONG: no judgement"


def main(folder: Path, screen: str, count: int, seed: int) -> dict[str, Any]:
    import anndata

    bench, draw = Bench(folder, anndata.read_h5ad(screen)), random.Random(seed)
    for reader in READERS.values():
        bench.prepare(reader)
    counts: dict[str, int] = {}
    wrong = []
    for number in range(count):
        reader = list(READERS.values())[number % len(READERS)]
        done, verdict = bench.try_once(reader, draw, fork=True)
        counts[verdict.partition(":")[0]] = counts.get(verdict.partition(":")[0], 0) + 1
        if verdict.startswith("WRONG"):
            wrong.append(f"{done} -> {verdict}")
    return {"tries": count, **counts, "wrong": wrong}


if __name__ == "__main__":
    print("FOUND " + json.dumps(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
