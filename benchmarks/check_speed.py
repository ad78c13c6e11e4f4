"""Rows of `gpu_check.py` that time the device: epochs, kernels, ceilings, memory, stages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import types
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from check_data import NotRunError, need, train
from torch.autograd import DeviceType

PUBLISHED_STEPS = 20


def waited(device):
    """Seconds, after all that was asked of the device is done."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def seconds_of(work, device, repeats=10):
    """Median seconds of some work on the device, after one run that is not timed."""
    work()
    seconds = []
    for _ in range(repeats):
        start = waited(device)
        work()
        seconds.append(waited(device) - start)
    return float(np.median(seconds))


def ceilings(table, setting):
    """What the device reaches in a copy and in products of matrices."""
    device, large = setting.device, setting.device == "cuda" and setting.size != "small"
    values = torch.ones(2**28 if large else 2**22, device=device)
    target = torch.empty_like(values)
    seconds = seconds_of(partial(target.copy_, values), device)
    table.add("ceiling: copy, read and written", f"{2 * values.nbytes / seconds / 1e9:.0f} GB/s")
    del values, target
    n = 8192 if large else 512
    kinds = {"float32": (torch.float32, "highest")}
    if device == "cuda":
        kinds |= {"TF32": (torch.float32, "high"), "bfloat16": (torch.bfloat16, "highest")}
    before = torch.get_float32_matmul_precision()
    for name, (dtype, precision) in kinds.items():
        matrix = torch.ones(n, n, device=device, dtype=dtype)
        torch.set_float32_matmul_precision(precision)
        try:
            seconds = seconds_of(partial(torch.mm, matrix, matrix), device)
        finally:
            torch.set_float32_matmul_precision(before)
        table.add(f"ceiling: product of {n} x {n}, {name}", f"{2 * n**3 / seconds / 1e12:.2f} TFLOP/s")


def epoch_of_cells(table, setting, batch_size, more):
    """Seconds of an epoch, from a part of it where a whole one would take too long."""
    if more:
        setting.need_gpu()
    screen, name = setting.screen, _name(more)
    whole = len(screen.cell_loader(batch_size))
    steps = min(whole, 60)
    given = {"batch_size": batch_size, **more}
    train(screen, setting.hidden, setting.device, "cells", steps=3, **given)
    run = train(screen, setting.hidden, setting.device, "cells", steps=steps, **given)
    seconds = run.history[-1]["seconds"]
    per_step = (seconds["total"] - seconds["evaluation"]) / steps
    table.add(
        f"epoch over cells, batch {batch_size}, {name} ({whole} steps, {steps} timed)",
        f"{per_step * whole:.2f} s",
        f"{1000 * per_step:.2f} ms a step, {seconds['data'] / seconds['total']:.0%} waits for data",
    )


def epoch_of_moments(table, setting, more):
    """Seconds of an epoch over moments, 32 conditions a step."""
    if more:
        setting.need_gpu()
    given = {"epochs": 6, "eval_every": 6, **more}
    run = train(setting.screen, setting.hidden, setting.device, "moments", **given)
    each = float(np.median([record["seconds"]["total"] for record in run.history[1:-1]]))
    steps = len(setting.screen.condition_loader())
    what = f"epoch over moments, 32 conditions, {_name(more)} ({steps} steps)"
    table.add(what, f"{each:.3f} s", f"{1000 * each / steps:.2f} ms a step")


def _name(more):
    return {"tf32": "TF32", "use_amp": "bfloat16"}.get(next(iter(more), ""), "float32")


def kernels(table, setting, objective):
    """Kernels of a step and the share of the time in which one runs, by the profiler."""
    setting.need_gpu()
    from torch.profiler import ProfilerActivity, profile, supported_activities

    if ProfilerActivity.CUDA not in supported_activities():
        raise NotRunError("this torch cannot profile CUDA")

    epochs = 4 if objective == "moments" else 1
    given = {"steps": 32} if objective == "cells" else {"epochs": epochs, "eval_every": epochs}
    train(setting.screen, setting.hidden, setting.device, objective, **given)
    with profile(activities=[ProfilerActivity.CUDA]) as recorder:
        run = train(setting.screen, setting.hidden, setting.device, objective, **given)
        torch.cuda.synchronize()
    events = [one for one in recorder.events() if one.device_type == DeviceType.CUDA]
    if not events:
        raise NotRunError("the profiler recorded no kernel (it needs CUPTI)")
    steps = 32 if objective == "cells" else epochs * len(setting.screen.condition_loader())
    busy = sum(one.time_range.elapsed_us() for one in events) / 1e6
    total = sum(record["seconds"]["total"] for record in run.history)
    figure = f"{len(events) / steps:.0f} a step"
    table.add(f"kernels of a step, {objective}", figure, f"busy {busy / total:.0%} of {total:.2f} s")
    largest = sorted(recorder.key_averages(), key=lambda one: -one.self_device_time_total)[:5]
    for one in largest:
        share = one.self_device_time_total / 1e6 / max(busy, 1e-12)
        table.add(f"  {one.key[:58]}", f"{share:.0%} of busy", f"{one.count / steps:.1f} a step")


def published(table, setting):
    """Steps of the network of cell-gears 0.1.2 (forward, backward, Adam) on batches of 32 cells."""
    if setting.published is None or not setting.published.exists():
        raise NotRunError("no wheel of cell-gears 0.1.2; --published names it")
    need("torch_geometric")
    screen = setting.screen
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input.npz"
        graphs = {"go": screen.go, "coexpress": screen.coexpress}
        arrays = {f"{name}_edges": np.asarray(graph.edge_index) for name, graph in graphs.items()}
        arrays |= {f"{name}_weight": np.asarray(graph.weight) for name, graph in graphs.items()}
        ids = np.arange(1, 1 + min(32, len(screen.conditions) - 1))
        pairs = [(row, node) for row, number in enumerate(ids) for node in screen.condition_nodes[number]]
        sizes = np.array([len(screen.genes), len(screen.nodes), setting.hidden, len(ids)])
        np.savez(path, pairs=np.array(pairs), sizes=sizes, **arrays)
        command = [sys.executable, __file__, str(setting.published), str(path)]
        done = subprocess.run(
            [*command, setting.device, str(PUBLISHED_STEPS)],
            capture_output=True, text=True, check=False, env=dict(os.environ),
        )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    found = json.loads(done.stdout.splitlines()[-1])
    what = f"published network, {len(ids)} cells a step, {PUBLISHED_STEPS} steps"
    table.add(what, f"{1000 * found['seconds']:.1f} ms a step", f"peak {found['peak_GiB']:.2f} GiB")


def memory(table, setting):
    """Peak of what is allocated on the GPU, by what is trained."""
    setting.need_gpu()
    cases = {
        "cells, batch 32": ("cells", {"steps": 3}),
        "cells, batch 512": ("cells", {"steps": 3, "batch_size": 512}),
        "moments, 32 conditions": ("moments", {}),
        "moments, 32 conditions, uncertainty": ("moments", {"model": {"uncertainty": True}}),
    }
    for name, (objective, given) in cases.items():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        train(setting.screen, setting.hidden, setting.device, objective, **given)
        table.add(f"memory: {name}", f"{torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")


def stages(table, setting):
    """Seconds of each stage of a default training, from a file to a prediction."""
    need("anndata", "scanpy", "pandas", "cloudpickle", "filelock")
    from gears import GEARS, PertData
    from gears.simulate import simulate_to_h5ad

    size = {"n_genes": 80, "n_singles": 14, "n_pairs": 8, "cells_per_condition": 12, "n_control": 100}
    if setting.size != "small":
        size = {"n_genes": 1000, "n_singles": 60, "n_pairs": 40, "cells_per_condition": 50, "n_control": 1000}
    clock = [time.perf_counter()]

    def stage(name):
        now = waited(setting.device)
        table.add(f"default train() at {size['n_genes']} genes: {name}", f"{now - clock[0]:.1f} s")
        clock[0] = waited(setting.device)

    with tempfile.TemporaryDirectory() as folder:
        simulate_to_h5ad(Path(folder) / "screen.h5ad", seed=1, **size)
        stage("simulate")
        data = PertData(folder)
        data.load(data_path=Path(folder) / "screen.h5ad")
        data.prepare_split(split="simulation", seed=1)
        stage("prepare")
        model = GEARS(data, device=setting.device)
        model.model_initialize(seed=1)
        stage("graphs and network")
        result = model.train(verbose=False, evaluate_test=False)
        trained = sum(record["seconds"]["total"] for record in result.history)
        stage(f"train (of it {len(result.history)} epochs of the network {trained:.1f} s)")
        model.predict([[gene] for gene in model.pert_list[:20]])
        stage("predict 20 conditions")


def steps_of_published(wheel, path, device, steps):
    """Seconds of a step of the network of cell-gears 0.1.2, in a process in which ``gears`` is that package.

    Its file ``model.py`` alone, because the rest of it imports scanpy. The loss is a squared error; the published one
    costs more.
    """
    package = types.ModuleType("gears")
    package.__path__ = [f"{wheel}/gears"]
    sys.modules["gears"] = package
    from gears.model import GEARS_Model

    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    n_genes, n_nodes, hidden, n_cells = map(int, arrays["sizes"])
    graphs = {}
    for name, key in (("coexpress", "G_coexpress"), ("go", "G_go")):
        graphs[key] = torch.from_numpy(arrays[f"{name}_edges"].astype(np.int64))
        graphs[f"{key}_weight"] = torch.from_numpy(arrays[f"{name}_weight"].astype(np.float32))
    network = GEARS_Model({
        "num_genes": n_genes, "num_perts": n_nodes, "hidden_size": hidden, "uncertainty": False,
        "num_go_gnn_layers": 1, "decoder_hidden_size": 16, "num_gene_gnn_layers": 1, "no_perturb": False,
        "device": device, **graphs,
    }).to(device)  # fmt: skip
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, weight_decay=5e-4)
    nodes = [[int(node) for row, node in arrays["pairs"] if row == cell] for cell in range(n_cells)]
    batch = SimpleNamespace(
        x=torch.rand(n_cells * n_genes, 1, device=device), pert_idx=nodes,
        batch=torch.arange(n_cells, device=device).repeat_interleave(n_genes),
    )  # fmt: skip
    target = torch.rand(n_cells, n_genes, device=device)

    def step():
        optimizer.zero_grad()
        (network(batch) - target).square().mean().backward()
        torch.nn.utils.clip_grad_value_(network.parameters(), clip_value=1.0)
        optimizer.step()

    for _ in range(3):
        step()
    start = waited(device)
    for _ in range(steps):
        step()
    seconds = (waited(device) - start) / steps
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else float("nan")
    print(json.dumps({"seconds": seconds, "peak_GiB": peak}))


if __name__ == "__main__":
    steps_of_published(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
