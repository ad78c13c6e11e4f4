"""One side of a comparison: a process that runs stages one at a time, on demand.

Used by both interpreters: requests come as JSON lines on stdin, answers go as JSON
lines to the stdout the process started with (whatever a package prints goes to stderr).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path


def serve(stages):
    """Answer requests ``{"stage": name, **arguments}`` until stdin ends.

    Parameters
    ----------
    stages
        Functions by name; each takes the request's arguments and returns a JSON-like value.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        name = request.pop("stage")
        try:
            answer = {"value": stages[name](**request)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


class Side:
    """Starts a side with its own interpreter and asks it for stages.

    Parameters
    ----------
    python
        The interpreter. It runs isolated (``-I``) and in `folder`, so that neither the
        checkout nor the user's settings decide which package is imported.
    script
        File that calls :func:`serve`.
    folder
        Working folder of the process; its messages are kept there.
    threads
        Threads of numerical libraries.
    """

    def __init__(self, python, script, folder, threads):
        self.name = Path(script).stem
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        keys = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
        environment = (
            os.environ | dict.fromkeys(keys, str(threads)) | {"MPLBACKEND": "Agg", "TQDM_DISABLE": "1"}
        )
        self._log = (folder / f"{self.name}.log").open("w")
        self._process = subprocess.Popen(
            [str(python), "-I", str(Path(script).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=folder,
            env=environment,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def ask(self, stage, **arguments):
        """Run a stage and return its value; an error of the side is raised here with its traceback."""
        self._process.stdin.write(json.dumps({"stage": stage, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            msg = f"{self.name} ended in stage {stage!r}; see {self.name}.log in its folder"
            raise RuntimeError(msg)
        answer = json.loads(line)
        if "error" in answer:
            msg = f"{self.name}, stage {stage!r}:\n{answer['error']}"
            raise RuntimeError(msg)
        return answer["value"]
