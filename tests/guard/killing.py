"""Kills processes that prepare screens or save models over earlier ones; what is left must be one or the other, whole.

``python killing.py FOLDER SCREEN.h5ad MOMENTS SEED`` prints a line of JSON. The victims are forks of this process.
"""

import json
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anndata
import numpy as np
from readers import make_run

from gears import GEARS
from gears.data import PreparedScreen
from gears.data.screen.prepare import prepare_screen

Action = Callable[[], Any]


def victim(actions: list[Action]) -> int:
    """Fork a process that does these one after another, for ever."""
    pid = os.fork()
    if pid:
        return pid
    number = 0
    while True:
        try:
            actions[number % len(actions)]()
        except BaseException:
            os._exit(1)
        number += 1


def kill_at_random(actions: list[Action], look: Callable[[], str], moments: int, draw: random.Random) -> dict[str, int]:
    """Kill so many victims; how often each state was found."""
    begun = time.monotonic()
    for action in actions:
        action()
    length = time.monotonic() - begun
    found: dict[str, int] = {}
    for _ in range(moments):
        pid = victim(actions)
        time.sleep(draw.uniform(0.0, 1.5 * length))
        assert os.waitpid(pid, os.WNOHANG)[0] == 0, "the victim ended by itself"
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        state = look()
        found[state] = found.get(state, 0) + 1
    return found


def of_preparing(folder: Path, adata: anndata.AnnData, moments: int, draw: random.Random) -> dict[str, int]:
    """Two contents take turns in one folder."""
    screens = [adata, adata[:180].copy()]
    expected: dict[str, str] = {}
    left = 0

    def look() -> str:
        nonlocal left
        left += len([place for place in folder.iterdir() if place.name.endswith(".tmp")]) > 0
        found = PreparedScreen.open(folder / "toy")
        found.verify()
        return expected[found.content_hash]

    for name, screen in zip(("first", "second"), screens, strict=True):
        expected[prepare_screen(screen, folder / "toy").content_hash] = name
    actions = [lambda screen=screen: prepare_screen(screen, folder / "toy") for screen in screens]
    found = kill_at_random(actions, look, moments, draw)
    for action in actions:
        action()
    assert sorted(place.name for place in folder.iterdir()) == [".toy.lock", "toy"]
    return found | {"within a write": left}


def of_saving(folder: Path, adata: anndata.AnnData, moments: int, draw: random.Random) -> dict[str, int]:
    """Two models take turns in one folder."""
    make_run(folder / "made", adata)
    models = [GEARS.from_pretrained(folder / "made" / "run", device="cpu") for _ in range(2)]
    assert models[1].best_model is not None
    assert models[1].parts is not None
    models[1].parts = models[1].parts.__class__(
        **{**vars(models[1].parts), "control_mean_G": models[1].parts.control_mean_G + 1.0}
    )
    place, left = folder / "saved" / "model", 0
    expected = [model.predict([["GX00"]], clip=False)["GX00"] for model in models]

    def look() -> str:
        nonlocal left
        left += any(entry.name.endswith(".tmp") for entry in place.parent.iterdir())
        found = GEARS.from_pretrained(place, device="cpu").predict([["GX00"]], clip=False)["GX00"]
        same = [name for name, one in zip(("first", "second"), expected, strict=True) if np.array_equal(found, one)]
        return same[0]

    actions = [lambda model=model: model.save_model(place) for model in models]
    found = kill_at_random(actions, look, moments, draw)
    for entry in place.parent.rglob("*"):
        os.utime(entry, (0, 0))  # leftovers go by their age
    actions[0]()
    assert [entry.name for entry in place.parent.iterdir()] == ["model"], "leftovers of the dead"
    return found | {"within a write": left}


def main(folder: Path, screen: str, moments: int, seed: int) -> dict[str, Any]:
    logging.getLogger("gears").setLevel(logging.ERROR)
    draw, adata = random.Random(seed), anndata.read_h5ad(screen)
    found = {}
    for name, kills in (("preparing", of_preparing), ("saving", of_saving)):
        (folder / name).mkdir(parents=True)
        found[name] = kills(folder / name, adata.copy(), moments, draw)
    return found


if __name__ == "__main__":
    print("FOUND " + json.dumps(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
