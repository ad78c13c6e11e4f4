"""What `import gears` and a worker process pay for: no package that only one feature needs."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gears
from gears import PertData
from gears.core._installation import check_for_cell_gears
from gears.distributed import launch
from gears.jobs._job import TrainingJob, train_ddp_worker

OF_ONE_FEATURE = {"scanpy", "jinja2", "pooch", "matplotlib", "torch_geometric", "networkx"}


def test_packages_of_one_feature_are_imported_where_they_are_used(tmp_path):
    check = (
        "import sys, gears.jobs._job\n"
        "from gears import GEARS, PertData\n"
        f"heavy = {OF_ONE_FEATURE!r} & set(sys.modules)\n"
        "sys.exit(f'imported {sorted(heavy)}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_cell_gears_installed_over_this_package_is_an_error(monkeypatch):
    def install(folder: Path) -> None:
        file = SimpleNamespace(locate=lambda: folder / "gears.py")
        monkeypatch.setattr(metadata, "distribution", lambda name: SimpleNamespace(files=[file]))

    install(Path("/elsewhere/gears"))
    check_for_cell_gears()
    install(Path(gears.__file__).parent)
    with pytest.raises(ImportError, match="their files overwrite each other"):
        check_for_cell_gears()


def _imported_by_a_worker(rank: int, world_size: int, *job: Any) -> set[str]:
    train_ddp_worker(rank, world_size, *job)
    return OF_ONE_FEATURE & set(sys.modules) - {"jinja2"}  # torch imports it when an optimiser is made


def test_workers_and_saved_models_read_graphs_that_are_normalised(tmp_path, toy_adata, toy_go):
    """The process that prepares pays for torch-geometric, once; neither its workers nor a loaded model do."""
    PertData(tmp_path / "data", gene2go=toy_go).new_data_process("toy", toy_adata)
    options = {"epochs": 1, "save_path": tmp_path / "model", "model_config": {"hidden_size": 4}}
    job = TrainingJob.check(tmp_path / "data", "toy", {"seed": 1}, options, {"gene2go": toy_go})
    _, job = job.prepare(1)
    arguments = (str(job.data_path), job.dataset_name, job.split.changed(), job.worker_args())
    assert launch(_imported_by_a_worker, ["cpu"], arguments, backend="gloo") == set()
    check = (
        "import sys\n"
        "from gears import GEARS\n"
        f"model = GEARS.from_pretrained({str(tmp_path / 'model')!r}, device='cpu')\n"
        "model.predict(['GX00+GX09'])\n"
        f"heavy = {OF_ONE_FEATURE!r} & set(sys.modules)\n"
        "sys.exit(f'imported {sorted(heavy)}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
