"""How training scales with workers: time, speed-up, efficiency, share of communication, and memory.

    python benchmarks/run.py scaling                         all GPUs, or one to as many CPU workers as cores
    python benchmarks/run.py scaling --device cpu --workers 1 2
    python benchmarks/run.py scaling --batches 32 128 512    table of workers x batch
    python benchmarks/run.py scaling --device cpu --size norman --objectives moments
    python benchmarks/run.py side_by_side                    folds and an ensemble, one and two at a time
    python benchmarks/run.py memory                          of 1, 2 and 4 workers on one screen

The global batch stays the same (strong scaling), so every number of workers trains the same model.
The first epoch (start-up, warm caches) is excluded; an epoch's time is the median of the others.

``memory``: proportional set size (a page that k processes share counts 1/k in each), libraries left out, summed over
workers, after each has read every cell and trained an epoch of the moments objective. What the screen costs is the
difference from a screen of the same genes and conditions with hardly any cells.
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from measuring import Result, cpu_seconds, pss_mb, table

SIZES = {
    "small": {"n_genes": 500, "n_singles": 30, "n_pairs": 20, "cells_per_condition": 40, "n_control": 400},
    "norman": {
        "n_genes": 5045, "n_singles": 131, "n_pairs": 152, "cells_per_condition": 297, "n_control": 7000,
    },
    "tiny": {"n_genes": 50, "n_singles": 10, "n_pairs": 8, "cells_per_condition": 20, "n_control": 60},
}  # fmt: skip
GLOBAL_BATCH = {"small": 96, "norman": 512, "tiny": 24}
CONDITIONS = 32  # of a step over moments
PARTS = ("data", "compute", "communication", "evaluation")


CONTROL, SINGLES, PAIRS = 6000, 150, 50  # of the screen whose memory is measured
LIMIT = 1.3  # times what the screen costs one worker


def measure(folder, save_path, batch, objective, workers, epochs, hidden_size, device):
    """Train with a number of workers and a global batch; the median epoch and where its time went."""
    from gears import train_multi_gpu

    arguments = {
        "save_path": save_path, "epochs": epochs, "objective": objective, "verbose": False,
        "eval_every": epochs, "model_config": {"hidden_size": hidden_size},
    }  # fmt: skip
    arguments["batch_size"] = batch // workers
    result = train_multi_gpu(
        folder, "screen", {"split": "simulation", "seed": 1}, arguments,
        n_gpus=workers, device=device, data_config={"default_pert_graph": False},
    )  # fmt: skip
    timed = [record["seconds"] for record in result.history[1:-1]] or [result.history[-1]["seconds"]]
    figures = {name: statistics.median(seconds[name] for seconds in timed) for name in ("total", *PARTS)}
    (rate,) = (name for name in timed[0] if name.endswith("_per_second"))
    return {
        "objective": objective, "batch": batch, "workers": workers, "device": result.devices[0].split(":")[0],
        "epoch_s": figures["total"], "rate": statistics.median(seconds[rate] for seconds in timed),
        "rate_unit": rate, "load": os.getloadavg()[0], "train_loss": result.history[-1]["train_loss"],
        **{name: figures[name] / figures["total"] for name in PARTS},
    }  # fmt: skip


def with_speedup(rows):
    """Add speed-up and efficiency against the smallest number of workers of the same objective and batch."""
    first = {}
    for row in rows:
        base = first.setdefault((row["objective"], row["batch"]), row)
        speedup = row["rate"] / base["rate"]
        row |= {"speedup": speedup, "efficiency": speedup * base["workers"] / row["workers"]}
    return rows


def shown(row):
    """A row of the table."""
    unit = row["rate_unit"].split("_")[0]
    return {
        "objective": row["objective"], "batch": row["batch"], "workers": row["workers"],
        "epoch, s": f"{row['epoch_s']:.3f}", "per second": f"{row['rate']:.0f} {unit}",
        "speed-up": f"{row['speedup']:.2f}",
        **{name: f"{row[name]:.0%}" for name in ("efficiency", "data", "compute", "communication")},
        "load": f"{row['load']:.1f}", "loss": f"{row['train_loss']:.6f}",
    }  # fmt: skip


def scaling(
    device: str | None = None,
    workers: tuple[int, ...] | None = None,
    size: str = "small",
    objectives: tuple[str, ...] = ("cells", "moments"),
    batches: tuple[int, ...] | None = None,
    epochs: int = 5,
    hidden_size: int = 64,
    small: bool = False,
) -> Iterator[Result]:
    """Every objective, batch (cells, or conditions, of a step over all workers) and number of workers."""
    import torch

    from gears.core._installation import cores
    from gears.simulate import simulate_to_h5ad

    size = "tiny" if small else size
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    most = torch.cuda.device_count() if device == "cuda" else cores()
    rows, given = [], (epochs, hidden_size, device)
    with tempfile.TemporaryDirectory(prefix="gears-scaling-") as folder:
        simulate_to_h5ad(Path(folder) / "screen.h5ad", **SIZES[size], seed=1)
        for objective in objectives:
            default = GLOBAL_BATCH[size] if objective == "cells" else CONDITIONS
            numbers = workers or [n for n in (1, 2, 4, 8, 16) if n <= most]
            for batch, n in itertools.product(batches or [default], numbers):
                place = f"{folder}/{objective}-{batch}-{n}"
                rows.append(measure(folder, place, batch, objective, n, *given))
                print(shown(with_speedup(rows)[-1]), flush=True)
    cards = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    record = {"size": size, "simulation": SIZES[size], "cards": cards, "rows": rows}
    lines = table([shown(row) for row in rows])
    yield Result("Workers", lines, record, name=f"scaling-{device}-{size}")


# --- memory ---------------------------------------------------------------------------------------


def simulated(cells, genes, *, empty=False):
    """Options of the simulator."""
    per_condition = 2 if empty else (cells - CONTROL) // (SINGLES + PAIRS)
    return {
        "n_genes": genes,
        "n_singles": SINGLES,
        "n_pairs": PAIRS,
        "cells_per_condition": per_condition,
        "n_control": 40 if empty else CONTROL,
        "counts_per_gene": 0.2,
        "seed": 1,
    }


def work(rank, world_size, folder, name):
    """Read every cell and train an epoch; returns the sum over workers, MiB."""
    import torch

    from gears import GEARS, PertData
    from gears.distributed import GroupReducer, barrier

    data = PertData(folder, default_pert_graph=False)
    data.load(name)
    data.prepare_split("simulation", seed=1)
    loader = data.get_dataloader_distributed(32, world_size=1, rank=0, num_workers=0)["train_loader"]
    read = sum(float(batch.y_BG.sum()) for batch in loader)
    model = GEARS(data, device="cpu")
    model.model_initialize(hidden_size=8)
    data.dataloader = {}
    model.train(objective="moments", epochs=1, batch_size=8, evaluate_test=False, verbose=False)
    assert read > 0
    barrier()
    own = torch.tensor([pss_mb()])
    barrier()  # nobody leaves before all have measured: leaving would raise the others' share
    return float(GroupReducer().sum(own))


def prepared(folder, name, options):
    """Simulate and prepare a screen."""
    import anndata

    from gears.data.screen.prepare import prepare_screen
    from gears.simulate import simulate_to_h5ad

    path = folder / "simulated.h5ad"
    simulate_to_h5ad(path, overwrite=True, **options)
    backed = anndata.read_h5ad(path, backed="r")
    prepare_screen(backed, folder / name)
    backed.file.close()
    path.unlink()
    return sum(file.stat().st_size for file in (folder / name).rglob("*.npy")) / 2**20


def memory(cells: int = 60_000, genes: int = 5000, workers: tuple[int, ...] = (1, 2, 4)) -> Iterator[Result]:
    """What the screen costs each number of workers."""
    from gears.distributed import launch

    rows = []
    with tempfile.TemporaryDirectory(prefix="gears-memory-") as name:
        folder = Path(name)
        stored = prepared(folder, "screen", simulated(cells, genes))
        prepared(folder, "empty", simulated(cells, genes, empty=True))
        for n in workers:
            used = {screen: launch(work, ["cpu"] * n, (name, screen), backend="gloo") for screen in ("screen", "empty")}
            cost = used["screen"] - used["empty"]
            row = {"workers": n, "with the screen, MiB": used["screen"], "with an empty one, MiB": used["empty"]}
            first = rows[0]["the screen costs, MiB"] if rows else cost
            rows.append(row | {"the screen costs, MiB": cost, "times one worker": cost / first})
    worst = max(row["times one worker"] for row in rows)
    lines = [f"{cells:,} cells x {genes:,} genes, {stored:.0f} MiB of arrays on disk.", "", *table(rows), ""]
    lines += [f"Allowed: {LIMIT} times one worker; found at most {worst:.2f}."]
    yield Result("Memory of several workers", lines, {"stored_mb": stored, "workers": rows})
    if worst > LIMIT and stored > 100:  # a small screen drowns in what every worker needs for itself
        raise SystemExit("several workers need more memory than allowed")


def side_by_side(
    repeats: int = 3, genes: int = 300, folds: int = 5, seeds: tuple[int, ...] = (1, 2, 3, 4), epochs: int = 10
) -> Iterator[Result]:
    """Folds and an ensemble one after the other and on two CPU workers, in alternation; their numbers are equal."""
    from gears import GEARS, Ensemble, PertData, simulated_screen

    adata, _ = simulated_screen(n_genes=genes, n_singles=40, n_pairs=30, cells_per_condition=40, seed=0)
    split, args = {"split": "simulation", "seed": 1}, {"prior": None, "epochs": epochs, "verbose": False}
    found: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="gears-folds-") as name:
        data = PertData(name, default_pert_graph=False)
        data.new_data_process("screen", adata)
        data.prepare_split(**split)
        model = GEARS(data, device="cpu")
        model.model_initialize()
        config = {
            "pert_data_path": name, "dataset_name": "screen", "split_config": split, "args": args,
            "data_config": {"default_pert_graph": False},
        }  # fmt: skip

        def cross_validated(n: int, **options) -> float:
            at_once = None if n == 1 else n
            return model.cross_validate(folds, n_at_once=at_once, verbose=False, **options).table["value"].sum()

        def ensemble(n: int) -> float:
            trained = Ensemble.train(config, seeds, f"{name}/{n}", n_at_once=n, device="cpu")
            return float(trained.predict(trained.pert_list[:9]).spread_UG.sum())

        ways = {
            f"{folds} folds, `train()`": cross_validated,
            f"{folds} folds, `prior=None, epochs={epochs}`": lambda n: cross_validated(n, prior=None, epochs=epochs),
            f"ensemble of {len(seeds)}, `prior=None, epochs={epochs}`": ensemble,
        }
        for _ in range(repeats):
            for way, call in ways.items():
                for n in (1, 2):
                    wall, cpu = time.perf_counter(), cpu_seconds()
                    value = call(n)
                    times = (time.perf_counter() - wall, cpu_seconds() - cpu, value)
                    found.setdefault((way, n), []).append(times)
            yield _side_by_side(found)


def _side_by_side(found) -> Result:
    rows = []
    for way in dict.fromkeys(way for way, _ in found):
        row = {"what": way}
        for n in (1, 2):
            wall, cpu, _ = zip(*found[way, n], strict=True)
            row |= {f"wall s, {n} at once": statistics.median(wall), f"CPU s, {n} at once": statistics.median(cpu)}
        row["equal"] = len({value for n in (1, 2) for *_, value in found[way, n]}) == 1
        rows.append(row)
    lines = [f"In alternation; medians of so many runs: {len(next(iter(found.values())))}.", "", *table(rows)]
    return Result("Independent trainings side by side", lines, {"rows": rows})
