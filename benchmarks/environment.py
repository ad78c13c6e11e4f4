"""The second environment: the published package with the versions it was released with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PINS = (
    "numpy==1.26.4",
    "pandas==2.2.2",
    "scipy==1.14.1",
    "scanpy==1.10.2",
    "networkx==3.3",
    "scikit-learn==1.5.1",
    "dcor",
    "torch_geometric",
    "cell-gears==0.1.2",
)


def published_python(root, torch_pin):
    """Interpreter of the published package's environment, made on first use.

    Parameters
    ----------
    root
        The checkout; the environment is ``.venv-cell-gears`` in it.
    torch_pin
        The same torch as here, such as ``"torch==2.13.0"``.
    """
    folder = Path(root) / ".venv-cell-gears"
    python, stamp = folder / "bin" / "python", folder / ".installed"
    wanted = "\n".join((torch_pin, *PINS))
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print("making the environment of cell-gears (some minutes, once)", flush=True)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    install = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*install, torch_pin, *PINS], check=True)
    # the first import compiles every module: not what is to be timed
    subprocess.run([str(python), "-I", "-c", "import gears"], check=True, cwd=folder)
    stamp.write_text(wanted)
    return python
