"""Workers share one copy of the screen, and need few open files."""

import resource
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from scipy import sparse

from gears import PertData
from gears.distributed import launch

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from measuring import pss_mb

GENES = [f"G{i:04d}" for i in range(2000)]


def _large_screen() -> AnnData:
    rng = np.random.default_rng(0)
    n_cells = 12_000  # large beside what each worker needs for itself, about 5 MB
    matrix = sparse.random_array((n_cells, len(GENES)), density=0.2, format="csr", dtype=np.float32, rng=rng)
    labels = np.array(["ctrl", *(f"{gene}+ctrl" for gene in GENES[:19])])[np.arange(n_cells) % 20]
    return AnnData(
        X=matrix,
        obs=pd.DataFrame({"condition": labels, "cell_type": "cellA"}, index=np.arange(n_cells).astype(str)),
        var=pd.DataFrame({"gene_name": GENES}, index=GENES),
    )


def _read_everything(rank: int, world_size: int, folder: str) -> float:
    import torch

    from gears.distributed import GroupReducer, barrier

    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    pert_data = PertData(folder, default_pert_graph=False, gene2go={gene: ["T0"] for gene in GENES[:30]})
    barrier()
    before = pss_mb()
    barrier()
    pert_data.load("large")
    pert_data.prepare_split("no_test", seed=1)
    loader = pert_data.get_dataloader_distributed(64, world_size=1, rank=0, num_workers=0)["train_loader"]
    total = sum(float(batch.y_BG.sum()) for batch in loader)
    barrier()
    grown = torch.tensor([pss_mb() - before])
    barrier()  # nobody leaves before all have measured: leaving would raise the others' share
    assert total > 0
    return float(GroupReducer().sum(grown))


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/smaps, which is Linux only")
def test_two_workers_hold_the_screen_once(tmp_path: Path, quick_workers: None) -> None:
    pert_data = PertData(tmp_path, default_pert_graph=False, gene2go={gene: ["T0"] for gene in GENES[:30]})
    pert_data.new_data_process("large", _large_screen(), skip_calc_de=True)
    one = launch(_read_everything, ["cpu"], (str(tmp_path),), backend="gloo")
    two = launch(_read_everything, ["cpu"] * 2, (str(tmp_path),), backend="gloo")
    assert one > 20, "the screen is too small to be seen"
    assert two < 1.3 * one, (one, two)
