"""Fixtures that every room's tests share: invented screens and the reference folder."""

import logging
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from driving import fork_server, free_port, pert_data_of, trained_gears, workers_by_fork
from hypothesis import settings

# No time limit per example: on a busy machine it fails by chance.
settings.register_profile("gears", deadline=None, max_examples=25)
settings.load_profile("gears")

os.environ.setdefault("WANDB_MODE", "offline")  # options that name it are refused without a key

TOY_GENES = [f"GX{i:02d}" for i in range(30)]
TOY_SINGLES = [f"GX{i:02d}+ctrl" for i in range(8)]
TOY_PAIRS = ["GX00+GX01", "GX02+GX03", "GX04+GX05", "GX00+GX02", "GX01+GX03"]
TOY_LABELS = ["ctrl", *TOY_SINGLES, *TOY_PAIRS]


@pytest.fixture(autouse=True)
def as_a_new_process_logs():
    """Each test starts with the package's logger as it is after an import, whatever ran before in this process."""
    logger = logging.getLogger("gears")
    before = logger.level, logger.propagate, logger.handlers[:]
    logger.setLevel(logging.NOTSET)
    logger.propagate, logger.handlers[:] = True, []
    yield
    logger.setLevel(before[0])
    logger.propagate, logger.handlers[:] = before[1:]


@pytest.fixture
def quick_workers():
    """Workers of the test start without seconds of imports (see `driving.workers_by_fork`)."""
    with workers_by_fork():
        yield


@pytest.fixture
def dask_address():
    """Address of a cluster of two processes, forks of the server of quick workers: for one test, as idle ones cost."""
    pytest.importorskip("distributed.core")  # a folder of tests has the same name
    distributed, dask = pytest.importorskip("distributed"), pytest.importorskip("dask")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0", "host": "127.0.0.1"}
    fork_server()
    how = {"distributed.worker.multiprocessing-method": "forkserver"}
    with dask.config.set(how), distributed.LocalCluster(**options) as cluster:
        yield cluster.scheduler_address


@pytest.fixture
def meeting_point(monkeypatch):
    """MASTER_ADDR and MASTER_PORT of a group on this machine, and nothing else of a launcher."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", free_port())


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """Weights & Biases without network, keeping everything below a temporary folder."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("CONFIG_DIR", "CACHE_DIR", "DATA_DIR"):
        monkeypatch.setenv(f"WANDB_{name}", str(tmp_path / "wandb-own"))
    if "wandb" in sys.modules:  # it keeps the environment of its first use in this process
        sys.modules["wandb"].teardown()


@pytest.fixture
def without_figures(monkeypatch):
    """Reports without drawn figures, which take seconds (drawn: evaluation/test_compare.py)."""
    begin = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<?xml"}
    monkeypatch.setattr("gears.report.of_model.image_bytes", lambda figure, kind="png": begin[kind])


def pytest_sessionfinish():
    """End the server that quick workers come from."""
    if (module := sys.modules.get("multiprocessing.forkserver")) is not None:
        module._forkserver._stop()


@pytest.fixture(scope="session")
def shared():
    """Folder with real screens and reference values; tests that need it skip where it is absent."""
    folder = os.environ.get("GEARS_SHARED")
    path = Path(folder) if folder else Path(__file__).resolve().parents[2] / "shared"
    if not path.is_dir():
        pytest.skip(f"the reference folder is absent (looked for {path}; set GEARS_SHARED to its path)")
    return path


@pytest.fixture(scope="session")
def toy_go():
    """GO stand-in of the toy screen: every gene has 5 of 15 invented terms, so that neighbours exist."""
    rng = np.random.default_rng(7)
    return {gene: {f"T{term:02d}" for term in rng.choice(15, size=5, replace=False).tolist()} for gene in TOY_GENES}


@pytest.fixture
def toy_adata(toy_template):
    """The toy screen, a fresh copy for each test."""
    return toy_template.copy()


@pytest.fixture(scope="session")
def toy_template():
    import pandas as pd
    from anndata import AnnData
    from scipy import sparse

    rng = np.random.default_rng(0)
    base_G = rng.uniform(0.5, 6.0, size=30)
    labels = ["ctrl"] * 60 + [label for label in TOY_LABELS[1:] for _ in range(12)]
    rate_NG = np.tile(base_G, (len(labels), 1))
    for cell, label in enumerate(labels):
        for token in label.split("+"):
            if token != "ctrl":
                gene = TOY_GENES.index(token)
                rate_NG[cell, gene] *= 0.1
                rate_NG[cell, gene + 1 : gene + 4] *= 3.0
                rate_NG[cell, gene + 4 : gene + 7] *= 0.4
    counts_NG = rng.poisson(rate_NG * rng.uniform(0.7, 1.3, size=(len(labels), 1)))
    return AnnData(
        X=sparse.csr_matrix(np.log1p(counts_NG).astype(np.float32)),
        obs=pd.DataFrame(
            {"condition": labels, "cell_type": "cellA"}, index=[f"cell{i:03d}" for i in range(len(labels))]
        ),
        var=pd.DataFrame({"gene_name": TOY_GENES}, index=[f"ENS{i:03d}" for i in range(30)]),
    )


@pytest.fixture(scope="session")
def small_screen():
    from gears.simulate import simulated_screen

    return simulated_screen(n_genes=60, n_singles=10, n_pairs=8, cells_per_condition=30, n_control=100, seed=3)


@pytest.fixture(scope="session")
def small_data(small_screen, tmp_path_factory):
    """The small screen, prepared and split once; tests must not change it."""
    return pert_data_of(tmp_path_factory.mktemp("small"), small_screen[0].copy(), "small", split="simulation")


@pytest.fixture(scope="session")
def small_model(small_data, tmp_path_factory):
    """Folder of a saved model of the small screen, the prior alone; tests must not change it."""
    path = tmp_path_factory.mktemp("saved") / "model"
    trained_gears(small_data, epochs=0).save_model(path)
    return path


@pytest.fixture
def toy_data(tmp_path, toy_adata, toy_go):
    """The toy screen, prepared with its GO stand-in in the folder ``data`` of the test."""
    return pert_data_of(tmp_path / "data", toy_adata, gene2go=toy_go)


@pytest.fixture
def small_screen_adata(small_screen):
    """A simulated screen, fresh for each test: 60 genes, 10 singles, 8 pairs (30 cells each), 100 controls."""
    return small_screen[0].copy()


@pytest.fixture
def screens(tmp_path, small_screen_adata):
    """A folder with the file of the small screen, for jobs that prepare it."""
    folder = tmp_path / "screens"
    folder.mkdir()
    small_screen_adata.write_h5ad(folder / "small.h5ad")
    return folder


@pytest.fixture
def small_screen_truth(small_screen):
    """What the small screen was drawn from (see :class:`gears.simulate.SimulatedTruth`)."""
    return small_screen[1]


LINE_LABELS = ["ctrl", *(f"GX{i:02d}+ctrl" for i in range(8)), "GX00+GX01", "GX02+GX03", "GX00+GX01+GX02"]


@pytest.fixture(scope="session")
def divided():
    """Two lines in two batches; GX05 to GX07 by activation in both, the others by interference."""
    import pandas as pd
    from anndata import AnnData
    from scipy import sparse

    rng = np.random.default_rng(11)
    rows, rates = [], []
    base = {line: rng.uniform(0.5, 6.0, size=30) for line in ("L1", "L2")}
    for line in base:
        for batch in ("b1", "b2"):
            for label in LINE_LABELS:
                genes = [TOY_GENES.index(token) for token in label.split("+") if token != "ctrl"]
                up = bool(genes) and min(genes) >= 5
                rate = base[line] * (1.0 if batch == "b1" else 1.5)
                for gene in genes:
                    effect = (0.5 if line == "L2" else 1.0) * (-1 if up else 1)
                    rate[gene] *= 4.0 if up else 0.1
                    rate[gene + 1 : gene + 4] *= 3.0**effect
                n = 14 if label == "ctrl" else 6
                rows += [(label, line, batch, "CRISPRa" if up else "CRISPRi")] * n
                rates += [rate] * n
    counts = rng.poisson(np.array(rates))
    obs = pd.DataFrame(rows, columns=["condition", "cell_type", "batch", "guide"])
    obs.index = [f"c{i}" for i in range(len(obs))]
    var = pd.DataFrame({"gene_name": TOY_GENES}, index=[f"E{i}" for i in range(30)])
    return AnnData(sparse.csr_matrix(np.log1p(counts).astype(np.float32)), obs=obs, var=var)
