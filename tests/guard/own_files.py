"""The package's own files: models, checkpoints, prepared screens, splits, caches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from registry import GENES, reader

if TYPE_CHECKING:
    from anndata import AnnData


def make_run(folder: Path, adata: AnnData) -> None:
    """A prepared screen and a model trained on it, with checkpoints, split and prior."""
    from gears import GEARS, PertData

    data = PertData(
        folder / "data", gene2go={gene: {f"T{i % 7}", f"T{i % 5}"} for i, gene in enumerate(GENES)}
    )
    data.new_data_process("toy", adata)
    data.prepare_split("simulation", seed=1)
    data.get_dataloader(batch_size=64)
    model = GEARS(data, device="cpu")
    model.model_initialize(hidden_size=4)
    model.train(steps=1, evaluate_test=False, verbose=False, save_path=str(folder / "run"))


def make_model(folder: Path, adata: AnnData) -> None:
    make_run(folder.parent / f"{folder.name}-made", adata)
    source = folder.parent / f"{folder.name}-made" / "run"
    for path in sorted(source.iterdir()):
        if path.is_file() and path.suffix in (".json", ".npz", ".pt"):
            (folder / path.name).write_bytes(path.read_bytes())


@reader(make_model, sealed=True)
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
    made = folder.parent / f"{folder.name}-made"
    make_run(made, adata)
    file = sorted((made / "run" / "checkpoints").glob("*.pt"))[-1]
    (folder / "checkpoint.pt").write_bytes(file.read_bytes())


@reader(make_checkpoint, sealed=True)
def read_checkpoint(folder: Path) -> Any:
    from gears.training import checkpoints

    return checkpoints.read(folder / "checkpoint.pt")


def make_screen(folder: Path, adata: AnnData) -> None:
    from gears.data.screen.prepare import prepare_screen

    prepare_screen(adata, folder / "toy")
    for lock in folder.glob(".*.lock"):
        lock.unlink()


@reader(make_screen, sealed=True)
def read_screen(folder: Path) -> Any:
    from gears.data.screen.prepared import PreparedScreen

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


@reader(make_split, sealed=True)
def read_split(folder: Path) -> Any:
    from gears.data.splits import Split

    return Split.load(folder / "split.json").to_dict()


def make_cache(folder: Path, _: AnnData) -> None:
    read_cache(folder)
    for lock in folder.glob("*.lock"):
        lock.unlink()


@reader(make_cache, sealed=True)
def read_cache(folder: Path) -> Any:
    from gears.files.cache import cached_arrays

    return cached_arrays(folder, "graph", {"a": 1}, lambda: {"x": np.arange(40.0), "y": np.arange(7)})
