"""What `import gears`, a step of training and a worker process pay for: no package or table of another feature."""

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

OF_ONE_FEATURE = {"scanpy", "jinja2", "pooch", "matplotlib", "torch_geometric", "networkx", "scipy.stats"}


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


CHECK = """
import sys
opened = set()
sys.addaudithook(lambda event, args: event == "open" and opened.add(str(args[0]).rpartition("/")[2]))

def check(when, packages):
    imported = sorted(packages & set(sys.modules))
    assert not imported, f"{when}: imported {imported}"

import torch, gears.jobs._job
from gears import GEARS, PertData
from gears.graphs import knowledge_similarity
check("imports", ONE_FEATURE)
assert not [name for name in opened if name.startswith("human")], opened

from gears.training._schedules import Adam
weight = torch.nn.Parameter(torch.ones(3))
adam = Adam([weight], fused=True)
adam.zero_grad(); weight.sum().backward(); adam.step(); adam.load_state_dict(adam.state_dict())
torch.optim.lr_scheduler.LambdaLR(adam, lambda step: 1.0).step()
check("a step of training", {"torch._dynamo"})

GEARS.from_pretrained(sys.argv[1], device="cpu").predict(["GX00+GX09"])
check("a saved model", ONE_FEATURE - {"jinja2"})

knowledge_similarity("literature", ["A2M"], ["A2M"])
tables = {name for name in opened if name.startswith("human")}
assert tables == {"human_literature.npz", "human_go.npz"}, tables
"""


def test_packages_and_tables_are_read_where_they_are_used(tmp_path, toy_adata, toy_go):
    """The process that prepares pays for torch-geometric, once; neither its workers nor a loaded model do."""
    PertData(tmp_path / "data", gene2go=toy_go).new_data_process("toy", toy_adata)
    options = {"epochs": 1, "save_path": tmp_path / "model", "model_config": {"hidden_size": 4}}
    job = TrainingJob.check(tmp_path / "data", "toy", {"seed": 1}, options, {"gene2go": toy_go})
    _, job = job.prepare(1)
    arguments = (str(job.data_path), job.dataset_name, job.split.changed(), job.worker_args())
    assert launch(_imported_by_a_worker, ["cpu"], arguments, backend="gloo") == set()
    command = [sys.executable, "-c", CHECK.replace("ONE_FEATURE", repr(OF_ONE_FEATURE)), str(tmp_path / "model")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
