"""The table of `gpu_check.py`, and what its rows share."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import time

from check_data import HIDDEN, SIZES, Screen


class NotRunError(Exception):
    """Why a row cannot be run here."""


class Table:
    """Rows of (what, figure, verdict), printed and written to a file as they come."""

    def __init__(self, facts=None, path=None, *, seconds=math.inf, quiet=False):
        self.facts, self.path, self.quiet = facts or {}, path, quiet
        self.rows, self.seconds, self.began = [], seconds, time.perf_counter()

    def add(self, what, figure, verdict=""):
        self.rows.append({"what": what, "figure": figure, "verdict": verdict})
        if not self.quiet:
            print(f"{what:<62}{figure:>26}  {verdict}", flush=True)
        if self.path is not None:
            self.path.write_text(json.dumps({**self.facts, "table": self.rows}, indent=1) + "\n")

    def compare(self, what, found, expected, bound):
        """A relative difference that must stay within a bound."""
        difference = max(abs(a - b) / max(abs(b), 1e-12) for a, b in zip(found, expected, strict=True))
        self.add(what, f"{difference:.1e} (<= {bound:g})", "ok" if difference <= bound else "FAILED")

    def run(self, what, check, *arguments):
        """Let a check add its rows; one that raises, or cannot be run, is a row as well."""
        if self.elapsed > self.seconds:
            self.add(what, "", f"not run: {self.elapsed / 60:.1f} minutes are over")
            return
        try:
            check(self, *arguments)
        except NotRunError as reason:
            self.add(what, "", f"not run: {reason}")
        except Exception as error:
            first = str(error).splitlines()[0][:150] if str(error) else ""
            self.add(what, type(error).__name__, f"FAILED: {first}")

    @property
    def elapsed(self):
        return time.perf_counter() - self.began

    @property
    def failed(self):
        return any(row["verdict"].startswith("FAILED") for row in self.rows)


class Setting:
    """Device, size and screens of the checks; the large screen is simulated when it is first used."""

    def __init__(self, device, size, published=None):
        self.device, self.size, self.published = device, size, published
        self.hidden = HIDDEN[size]
        self.small = Screen(**SIZES["small"])
        self._screen = self.small if size == "small" else None

    @property
    def screen(self):
        if self._screen is None:
            self._screen = Screen(**SIZES[self.size])
        return self._screen

    def need_gpu(self):
        """Raise NotRunError without a GPU."""
        if self.device != "cuda":
            raise NotRunError("no GPU")


def need(*names):
    """Raise NotRunError where a package is missing."""
    missing = [
        name for name in names
        if (name in sys.modules and not hasattr(sys.modules[name], "__file__"))
        or (name not in sys.modules and importlib.util.find_spec(name) is None)
    ]  # fmt: skip
    if missing:
        raise NotRunError(f"{' and '.join(missing)} not installed")
