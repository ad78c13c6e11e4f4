"""The package's own files: how each comes about, and what reading it gives."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from anndata import AnnData

from gears.files.formats import content_hash

GENES = [f"GX{i:02d}" for i in range(30)]


@dataclass(frozen=True)
class Reader:
    """A kind of file: made in a folder, read from it as values that can be hashed."""

    name: str
    make: Callable[[Path, AnnData], Any]
    read: Callable[[Path], Any]


READERS: dict[str, Reader] = {}


def reader(make: Callable[[Path, AnnData], Any]) -> Callable[..., Any]:
    def note(read: Callable[[Path], Any]) -> Callable[[Path], Any]:
        name = read.__name__.removeprefix("read_")
        READERS[name] = Reader(name, make, read)
        return read

    return note


def files(folder: Path) -> list[Path]:
    """What may be damaged: everything but locks."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if not path.name.endswith(".lock"))


def plain(value: Any) -> Any:
    """Tensors and arrays as arrays, containers as they are, for a hash of everything."""
    import torch

    if isinstance(value, torch.Tensor):
        values = value.double() if value.is_floating_point() else value
        return ["tensor", str(value.dtype), values.tolist()]
    if isinstance(value, np.ndarray):
        return ["array", str(value.dtype), value.tolist()]
    if isinstance(value, dict):
        return [[str(key), plain(value[key])] for key in value]
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    return value if isinstance(value, str | int | float | bool | type(None)) else str(value)


def digest(value: Any) -> str:
    return content_hash(plain(value))


def make_run(folder: Path, adata: AnnData) -> None:
    """A prepared screen and a model trained on it, with checkpoints, split and prior."""
    from gears import GEARS, PertData

    data = PertData(folder / "data", gene2go={gene: {f"T{i % 7}", f"T{i % 5}"} for i, gene in enumerate(GENES)})
    data.new_data_process("toy", adata)
    data.prepare_split("simulation", seed=1)
    data.get_dataloader(batch_size=64)
    model = GEARS(data, device="cpu")
    model.model_initialize(hidden_size=4)
    model.train(steps=1, evaluate_test=False, verbose=False, save_path=str(folder / "run"))


def made_run(folder: Path, adata: AnnData) -> Path:
    """The run beside a folder, made once for all of its neighbours."""
    made = folder.parent / "made"
    if not made.exists():
        make_run(made, adata)
    return made / "run"


def make_model(folder: Path, adata: AnnData) -> None:
    for path in sorted(made_run(folder, adata).iterdir()):
        if path.is_file() and path.suffix in (".json", ".npz", ".pt"):
            (folder / path.name).write_bytes(path.read_bytes())


@reader(make_model)
def read_model(folder: Path) -> Any:
    from gears import GEARS

    model = GEARS.from_pretrained(folder, device="cpu")
    found = model.predict([["GX00"], ["GX00", "GX01"]])
    parts = model.parts
    assert parts is not None
    split = None if parts.split is None else parts.split.to_dict()
    names = [parts.gene_names, parts.gene_ids, parts.pert_names, split, dict(parts.provenance)]
    return [found.expression_UG, names, parts.go.hash, parts.coexpress.hash, parts.config.to_dict()]


def make_checkpoint(folder: Path, adata: AnnData) -> None:
    file = sorted((made_run(folder, adata) / "checkpoints").glob("*.pt"))[-1]
    (folder / "checkpoint.pt").write_bytes(file.read_bytes())


@reader(make_checkpoint)
def read_checkpoint(folder: Path) -> Any:
    from gears.training import _checkpoints as checkpoints

    return checkpoints.read(folder / "checkpoint.pt")


def make_screen(folder: Path, adata: AnnData) -> None:
    from gears.data.screen.prepare import prepare_screen

    prepare_screen(adata, folder / "toy")
    for lock in folder.glob(".*.lock"):
        lock.unlink()


@reader(make_screen)
def read_screen(folder: Path) -> Any:
    from gears.data import PreparedScreen

    screen = PreparedScreen.open(folder / "toy")
    matrix, moments, ranking = screen.cells.csr(), screen.statistics, screen.de
    assert ranking is not None
    tables = [moments.mean, moments.m2, moments.m3, moments.m4, moments.nonzero, moments.above, moments.below]
    names = [screen.labels, screen.condition_names, screen.gene_names, screen.gene_ids]
    screen.verify()
    return [matrix.toarray(), screen.cell_label, moments.n, tables, ranking.order, ranking.scores, names]


def make_split(folder: Path, adata: AnnData) -> None:
    from gears.data.splits import make_split as draw

    draw(list(dict.fromkeys(adata.obs["condition"])), "simulation").save(folder / "split.json")


@reader(make_split)
def read_split(folder: Path) -> Any:
    from gears.data.splits import Split

    return Split.load(folder / "split.json").to_dict()


def make_cache(folder: Path, _: AnnData) -> None:
    read_cache(folder)
    for lock in folder.glob("*.lock"):
        lock.unlink()


@reader(make_cache)
def read_cache(folder: Path) -> Any:
    from gears.files._cache import cached_arrays

    return cached_arrays(folder, "graph", {"a": 1}, lambda: {"x": np.arange(40.0), "y": np.arange(7)})
