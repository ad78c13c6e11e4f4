"""The version of this package, what breaks it (a broken torch, cell-gears in its folder), and usable cores."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "gears-perturb"
__version__ = "1.0.0rc1"
QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Microseconds of a core that a container may use in each period, and the period."""


def torch_problem() -> str | None:
    """Why torch cannot be imported, None where it can."""
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        return f"torch cannot be imported: {error}"
    except Exception as error:  # a broken build raises OSError, AttributeError, ...
        return f"torch is installed but cannot be imported ({type(error).__name__}: {error})"
    return None


def check_for_cell_gears() -> None:
    """Raise an ImportError if cell-gears was installed into this package's folder.

    Both distributions import as ``gears``: installed into one environment, the files of one overwrite those of the
    other. An installation elsewhere on the path has no effect.
    """
    try:
        files = metadata.distribution("cell-gears").files or []
    except metadata.PackageNotFoundError:
        return
    shared_file = Path(__file__).resolve().parents[1] / "gears.py"
    if any(Path(str(file.locate())).resolve() == shared_file for file in files):
        msg = (
            f"cell-gears and {DISTRIBUTION} are both installed here and both import as 'gears': their files "
            f"overwrite each other. Run: pip uninstall -y cell-gears {DISTRIBUTION} && pip install {DISTRIBUTION} "
            "(keep cell-gears in a separate environment)"
        )
        raise ImportError(msg)


def cores(quota: Path = QUOTA) -> int:
    """Cores that this process may use: those it may run on, and no more than a container's share of time."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if quota.is_file():
        time, _, period = quota.read_text().partition(" ")
        if time != "max":
            usable = min(usable, max(1, int(time) // int(period)))
    return usable
