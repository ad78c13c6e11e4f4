"""Moment packs against prepared cells: time, memory, bytes moved and size, by number of cells.

    python benchmarks/run.py packs --cells 10000 100000 1000000

Counts (one value in ten is not zero) are written to an h5ad file block by block and normalised on the way. Each form
runs in a process of its own: ``cells`` prepares the folder with all cells from the file, ``copied by dask`` the same
from a dask array, ``pack`` reduces the file here, ``pack, dask`` on two worker processes. ``client_mb`` and
``worker_mb`` are peaks of resident memory (imports are about 300 MB of it), ``moved_mb`` what dask workers sent,
``written_mb`` pack and folder. ``difference`` is the largest of any mean or variance from those of the cells.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from measuring import Measurement, Result, Side, cpu_seconds, memory_mb, table

FORMS = ("cells", "copied by dask", "pack", "pack, dask")
N_BLOCK = 8192
N_WORKERS = 2


def make(path, cells, genes, conditions):
    """Write counts block by block; a tenth of the cells are controls, the others are spread over conditions."""
    import h5py
    import pandas as pd
    from anndata import AnnData
    from scipy import sparse

    draw = np.random.default_rng(0)
    rate_G = draw.gamma(1.0, 0.1, genes)
    labels = np.array(["ctrl", *(f"G{number}+ctrl" for number in range(conditions))])
    codes = np.where(draw.random(cells) < 0.1, 0, draw.integers(1, conditions + 1, cells))
    obs = pd.DataFrame({"condition": pd.Categorical.from_codes(codes, labels), "cell_type": "A"})
    obs.index = [f"c{number}" for number in range(cells)]
    var = pd.DataFrame({"gene_name": [f"G{number}" for number in range(genes)]}, index=[f"E{n}" for n in range(genes)])
    AnnData(obs=obs, var=var).write_h5ad(path)
    counts = sparse.csr_matrix(draw.poisson(rate_G, (N_BLOCK, genes)).astype(np.float32))
    with h5py.File(path, "r+") as file:
        if "X" in file:
            del file["X"]
        group = file.create_group("X")
        group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": (cells, genes)})
        stored = {
            name: group.create_dataset(name, (0,), dtype, maxshape=(None,), chunks=(1 << 18,))
            for name, dtype in (("data", "f4"), ("indices", "i4"))
        }
        bounds = [np.zeros(1, dtype=np.int64)]
        for start in range(0, cells, N_BLOCK):
            rows = counts[draw.permutation(N_BLOCK)[: cells - start]]  # the same cells in another order: quick
            end = int(bounds[-1][-1])
            for name, dataset in stored.items():
                dataset.resize((end + rows.nnz,))
                dataset[end:] = getattr(rows, name)
            bounds.append(end + rows.indptr[1:].astype(np.int64))
        group.create_dataset("indptr", data=np.concatenate(bounds))
    return {"file_mb": Path(path).stat().st_size / 2**20}


def form(name, path, folder):
    """Make a screen ready in one form."""
    from gears import PertData

    data, pack = PertData(folder, default_pert_graph=False), Path(folder) / "s.moments.h5ad"
    figures: dict = {"worker_mb": 0.0, "moved_mb": 0.0}
    cluster = client = None
    if "dask" in name:
        from distributed import Client, LocalCluster

        options = {"n_workers": N_WORKERS, "threads_per_worker": 1, "dashboard_address": None, "host": "127.0.0.1"}
        cluster = LocalCluster(**options)
        client = Client(cluster.scheduler_address)
    start, began = cpu_seconds(), time.perf_counter()
    with Measurement() as block:
        if name == "copied by dask":
            data.new_data_process("s", lazily(path), normalize=True)
        elif "pack" in name:
            dask = {} if cluster is None else {"dask": cluster.scheduler_address}
            data.load(data_path=path, moments=pack, normalize=True, **dask)
        else:
            data.load(data_path=path, normalize=True)
    figures |= {
        "cpu_s": cpu_seconds() - start,
        "wall_s": time.perf_counter() - began,
        "client_mb": block.figures["peak_mb"],
    }
    if client is not None:
        figures["cpu_s"] += sum(client.run(time.process_time).values())
        figures["worker_mb"] = max(client.run(memory_mb, "VmHWM").values())
        figures["moved_mb"] = (
            sum(client.run(lambda dask_worker: dask_worker.transfer_outgoing_bytes_total).values()) / 2**20
        )
        client.close()
        cluster.close()
    figures["written_mb"] = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file()) / 2**20
    figures["pack_mb"] = pack.stat().st_size / 2**20 if pack.is_file() else 0.0
    return figures | {"folder": str(data.screen.folder)}


def lazily(path):
    """The file with its values as a dask array."""
    import h5py
    from anndata import AnnData
    from anndata.experimental import read_elem_lazy
    from anndata.io import read_elem

    with h5py.File(path, "r") as file:
        return AnnData(read_elem_lazy(file["X"]), obs=read_elem(file["obs"]), var=read_elem(file["var"]))


def packs(
    *, cells: tuple[int, ...] = (10_000, 100_000, 1_000_000), genes: int = 2000, conditions: int = 200,
    forms: tuple[str, ...] = FORMS,
) -> Iterator[Result]:  # fmt: skip
    """Every form of every size."""
    rows: list[dict] = []
    for n_cells in cells:
        with tempfile.TemporaryDirectory() as folder:
            path, folders = str(Path(folder) / "s.h5ad"), {}
            with Side(__file__, folder) as side:
                file_mb = side.ask("make", path=path, cells=n_cells, genes=genes, conditions=conditions)["file_mb"]
            for name in forms:
                with Side(__file__, folder) as side:
                    figures = side.ask("form", name=name, path=path, folder=str(Path(folder) / name.replace(" ", "_")))
                folders[name] = Path(figures.pop("folder")) / "statistics"
                tables = [(one, np.load(folders[name] / f"{one}.npy")) for one in ("mean", "m2")]
                base = folders[forms[0]]
                difference = max(float(np.abs(values - np.load(base / f"{one}.npy")).max()) for one, values in tables)
                rows.append({"cells": n_cells, "form": name, "file_mb": file_mb} | figures | {"difference": difference})
                yield Result(
                    f"Moment packs against prepared cells ({genes} genes, {conditions} conditions)",
                    table(rows),
                    {"rows": rows},
                )
