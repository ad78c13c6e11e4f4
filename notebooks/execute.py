"""Run notebooks from top to bottom and keep their outputs in the files.

python notebooks/execute.py                  all of them
python notebooks/execute.py data training    these

One kernel runs them one after the other, emptied in between: the libraries are imported once.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
# not %reset, which takes __spec__ from __main__ as well: nothing could be spawned after it
EMPTY = """for _name in [name for name in globals() if not name.startswith("_")]:
    if _name not in ("In", "Out", "get_ipython", "exit", "quit", "open"):
        del globals()[_name]"""


def names() -> list[str]:
    """Every notebook of this folder."""
    return sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def read(name: str) -> Any:
    """A notebook as it is kept."""
    import nbformat

    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


@contextlib.contextmanager
def kernel(folder: Path) -> Iterator[Any]:
    """A kernel that works in `folder`, where its temporary files go as well."""
    from jupyter_client.manager import KernelManager

    manager = KernelManager(kernel_name="python3")
    own = {"TMPDIR": str(folder), "IPYTHONDIR": str(folder / "ipython")}
    manager.start_kernel(cwd=str(folder), env={"OMP_NUM_THREADS": "1", **os.environ, **own})
    try:
        yield manager
    finally:
        manager.shutdown_kernel(now=True)


def run(notebook: Any, manager: Any, *, timeout: int = 200) -> Any:
    """Run all cells in a running kernel that is emptied first; the notebook with its outputs."""
    import nbformat
    from nbclient import NotebookClient

    empty = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(EMPTY)])
    for part in (empty, notebook):
        client = NotebookClient(part, km=manager, timeout=timeout)
        try:
            client.execute()
        finally:
            if client.kc is not None:
                client.kc.stop_channels()  # the kernel goes on
    for number, cell in enumerate(cell for cell in notebook.cells if cell.cell_type == "code"):
        cell.metadata, cell.execution_count = {}, number + 1
        for output in cell.outputs:
            if "execution_count" in output:
                output["execution_count"] = number + 1
    return notebook


def main(chosen: Sequence[str]) -> None:
    """Run notebooks and write them back."""
    import nbformat

    unknown = sorted(set(chosen) - set(names()))
    if unknown:
        sys.exit(f"no such notebook: {', '.join(unknown)}; there are {', '.join(names())}")
    with tempfile.TemporaryDirectory() as folder, kernel(Path(folder)) as manager:
        for name in chosen or names():
            began = time.monotonic()
            nbformat.write(run(read(name), manager), FOLDER / f"{name}.ipynb")
            print(f"{name}: {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
