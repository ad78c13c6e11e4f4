"""Scripts of ``tests/fakecuda``, which run on a pretended GPU in a process of their own."""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from driving import found_by

FOLDER = Path(__file__).resolve().with_name("fakecuda")


def pretended(script: str, *arguments: Any) -> dict[str, Any]:
    """What a script finds; skips where the pretended GPU cannot be built."""
    reason = no_pretended_gpu()
    if reason is not None:
        pytest.skip(reason)
    return found_by(FOLDER / script, *arguments)


@functools.cache
def no_pretended_gpu() -> str | None:
    """Why the pretended GPU cannot be built here; None where it is built."""
    compiler = os.environ.get("CXX", "g++")
    if not sys.platform.startswith("linux"):
        return "the pretended GPU is built on Linux only"
    if torch.version.cuda is not None:
        return "this torch is built for CUDA: the pretended GPU needs a CPU build"
    if shutil.which(compiler) is None:
        return f"the pretended GPU needs a C++ compiler: there is no {compiler}"
    build = [sys.executable, str(FOLDER / "fakecuda_build.py")]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"the pretended GPU was not built: {done.stderr[-500:]}"
