"""Many predictions, many rounds of everything: all end, and nothing grows."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from readers import make_run
from soaking import held

from gears import GEARS

SCRIPT = Path(__file__).with_name("soaking.py")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts open files as Linux does")


def soak(folder: Path, seconds: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(SCRIPT), str(folder), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)


def result(process: subprocess.Popen[str], seconds: float) -> dict[str, Any]:
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == 0, err[-3000:]
    return json.loads(next(line for line in out.splitlines() if line.startswith("FOUND "))[6:])


def assert_flat(found: dict[str, Any], mebibytes: float) -> None:
    warm, end = found["warm"], found["end"]
    assert end["memory"] - warm["memory"] < mebibytes, found
    assert end["files"] <= warm["files"], found
    assert end["threads"] <= warm["threads"], found
    assert end["children"] <= warm["children"], found  # other tests of the process may have left one


def predictions(model: GEARS, n: int) -> None:
    for number in range(n):
        asked = [[gene] for gene in model.pert_list[number % 5 :: 5]]
        assert np.isfinite(model.predict(asked).expression_UG).all()


@pytest.mark.long
def test_a_thousand_predictions_hold_memory(toy_template, tmp_path):
    make_run(tmp_path, toy_template.copy())
    model = GEARS.from_pretrained(tmp_path / "run", device="cpu")
    predictions(model, 100)
    warm = held()
    predictions(model, 1000)
    print(warm, held())
    assert_flat({"warm": warm, "end": held()}, 4.0)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_soak_of_minutes(tmp_path):
    """GEARS_SOAK seconds (60): open files, threads, children and memory as after the third round."""
    seconds = int(os.environ.get("GEARS_SOAK", "60"))
    found = result(soak(tmp_path, seconds), seconds + 600)
    print(found)
    assert found["rounds"] > 10
    assert_flat(found, 30.0)
