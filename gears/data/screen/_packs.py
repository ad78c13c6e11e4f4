"""Moment packs: a screen in one small file that :func:`anndata.read_h5ad` opens.

A row is a condition in a context, of a type and of an experimental batch, ``obs.n_cells`` its cells; ``X`` the mean of
each gene, layers its central moments (divided by n) and numbers of cells (other than 0, above and below the mean of the
batch's control cells). ``uns["gears"]`` holds means of split halves, a draw of control cells and the manifest. Opened,
a pack becomes a prepared folder without cells, with the arrays that the cells would give.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import sparse

from gears.conditions import Condition
from gears.data.screen._cells import CellMatrix
from gears.data.screen._files import controls_of, finish_folder, save_measured, save_statistics
from gears.data.screen._statistics import (
    ConditionStatistics,
    batch_statistics,
    control_row,
    matched_statistics,
)
from gears.files._atomic import new_folder, write_atomically
from gears.files._paths import check_output, need_file, reading
from gears.files._untrusted import refuse_beyond, refuse_links
from gears.files.formats import SEAL, content_hash, plain_adata

if TYPE_CHECKING:
    from gears.data.screen._prepared import PreparedScreen

KIND, VERSION = "gears moment pack", 1
N_HALVES, HALVES_SEED = 5, 0
"""Repeats of split halves that a pack keeps, and their seed."""
MOMENTS, COUNTED = ("mean", "m2", "m3", "m4"), ("nonzero", "above", "below")
_OF_FOLDER = ("kind", "format_version", SEAL, "files", "checksums")


@dataclass(frozen=True)
class MomentPack:
    """R rows of C conditions over G genes, and what stands beside them."""

    manifest: dict[str, Any]  # as of a prepared screen, without files
    # names, labels, conditions and batches as plain values, "label_cells"; where contexts measure different genes,
    # "unmeasured": the numbers of those that each context lacks
    tables: dict[str, Any]
    # row_condition, row_batch, n: condition, experimental batch and cells of each row, (R,) int64
    row_condition: np.ndarray
    row_batch: np.ndarray
    n: np.ndarray
    layers: dict[str, np.ndarray]  # (R, G): MOMENTS float64, COUNTED int32
    halves: np.ndarray  # (N_HALVES, 2, C, G) float64: means of split halves
    halves_n: np.ndarray  # (2, C) int64: cells of the two halves
    controls: sparse.csr_matrix  # (n, G) float32: drawn control cells
    controls_condition: np.ndarray  # (n,) int64

    @property
    def conditions(self) -> list[Condition]:
        """The C conditions."""
        return [Condition(tuple(genes), context, kind) for genes, context, kind in self.tables["conditions"]]

    def arrays(self) -> dict[str, np.ndarray]:
        """Every array by name."""
        cells, names = self.controls, ("row_condition", "row_batch", "n", "halves", "halves_n", "controls_condition")
        held = {name: getattr(self, name) for name in names} | self.layers
        return held | {"data": cells.data, "indices": cells.indices, "indptr": cells.indptr.astype(np.int64)}

    def write(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write an h5ad file, or a zarr store where the name ends so."""
        every = self.conditions
        conditions = [every[row] for row in self.row_condition.tolist()]
        batches = [str(self.tables["batches"][batch]) for batch in self.row_batch.tolist()]
        obs = pd.DataFrame(
            {
                "condition": [one.plain.name for one in conditions],
                "context": [one.context for one in conditions],
                "perturbation_type": [one.kind for one in conditions],
                "batch": batches,
                "n_cells": self.n,
                "condition_id": self.row_condition,
                "batch_id": self.row_batch,
            },
            index=[
                f"{one.name} / {batch}" if batch else one.name for one, batch in zip(conditions, batches, strict=True)
            ],
        )
        var = pd.DataFrame({"gene_name": self.tables["gene_names"]}, index=self.tables["gene_ids"])
        plain = {"manifest": self.manifest, "tables": self.tables}
        text = json.dumps(plain, default=lambda value: value.tolist() if hasattr(value, "tolist") else str(value))
        beside = {name: getattr(self, name) for name in ("halves", "halves_n", "controls", "controls_condition")}
        beside |= {"description": text, "seal": content_hash(text, *self.arrays().values())}
        adata = plain_adata(
            obs,
            var,
            X=self.layers["mean"],
            layers={name: self.layers[name] for name in (*MOMENTS[1:], *COUNTED)},
            uns={"gears": {"kind": KIND, "format_version": VERSION, **beside}},
        )
        path = check_output(path, overwrite)
        if path.suffix != ".zarr":
            return write_atomically(path, lambda temporary: adata.write_h5ad(temporary, compression="lzf"))
        with new_folder(path) as temporary, warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*[Zz]arr.*")  # anndata on the format of zarr stores
            adata.write_zarr(temporary)
        return path

    def unpack(self, folder: Path) -> None:
        """Fill an empty folder with a prepared screen without cells."""
        control_of = controls_of(self.conditions)
        if len(self.tables["batches"]) == 1:
            statistics, control_mean_BG = self._statistics(np.arange(len(self.n)), control_of), None
        else:
            statistics, control_mean_BG = matched_statistics(
                self._batches(control_of), control_of, len(self.tables["gene_ids"]), len(self.tables["batches"])
            )
        if (unmeasured := self.tables.get("unmeasured")) is not None:
            genes = np.arange(len(self.tables["gene_ids"]))
            is_measured = {context: ~np.isin(genes, lacking) for context, lacking in unmeasured.items()}
            save_measured(folder, statistics, is_measured, self.conditions)
        save_statistics(folder / "statistics", statistics, control_mean_BG)
        (folder / "halves").mkdir()
        np.save(folder / "halves" / "mean.npy", self.halves)
        np.save(folder / "halves" / "n.npy", self.halves_n)
        CellMatrix.write(folder / "controls", [self.controls])
        np.save(folder / "controls" / "condition.npy", self.controls_condition)
        finish_folder(folder, statistics, self.tables, self.manifest | {"has_cells": False})

    def _statistics(self, rows: np.ndarray, control_of: np.ndarray) -> ConditionStatistics:
        n = self.n[rows]
        tables = {name: self.layers[name][rows] for name in MOMENTS}
        tables |= {name: self.layers[name][rows] / np.maximum(n, 1)[:, None] for name in COUNTED}
        return ConditionStatistics(n=n.astype(np.float64), **tables, control_of=control_of)

    def _batches(self, control_of: np.ndarray) -> Iterator[tuple[int, np.ndarray, ConditionStatistics]]:
        batches, first = np.unique(self.row_batch, return_index=True)
        for batch in batches[np.argsort(control_of[self.row_condition[first]], kind="stable")].tolist():
            rows = np.flatnonzero(self.row_batch == batch)
            present = self.row_condition[rows]
            yield batch, present, self._statistics(rows, np.full(len(rows), control_row(present, control_of)))


def pack_of(screen: PreparedScreen) -> MomentPack:
    """The pack of a prepared screen with its cells; the arrays are those of its folder."""
    screen.need_cells()
    tables = {
        "gene_names": screen.gene_names,
        "gene_ids": screen.gene_ids,
        "labels": screen.labels,
        "label_condition": screen.label_condition.tolist(),
        "conditions": [[list(one.genes), one.context, one.kind] for one in screen.conditions],
        "condition_names": screen.condition_names,
        "batches": list(screen.batches),
        "label_cells": screen.label_cells.tolist(),
    }
    if screen.is_measured_KG is not None:
        lacking = map(np.flatnonzero, ~screen.is_measured_KG)
        tables["unmeasured"] = {name: genes.tolist() for name, genes in zip(screen.contexts, lacking, strict=True)}
    manifest = {name: value for name, value in screen.manifest.items() if name not in _OF_FOLDER}
    sizes = {"cells": screen.n_cells, "conditions": len(screen.conditions), "labels": len(screen.labels)}
    manifest |= {"content_hash": screen.content_hash, "shape": manifest["shape"] | sizes}
    everyone = np.arange(len(screen.conditions))
    parts: list[tuple[int, np.ndarray, ConditionStatistics]] = [(0, everyone, screen.statistics)]
    if len(screen.batches) > 1:
        found = batch_statistics(screen.cells, screen.cell_condition, screen.control_of, screen.cell_batch)
        parts = sorted(found, key=lambda part: part[0])
    layers = {name: np.concatenate([getattr(part, name) for _, _, part in parts]) for name in MOMENTS}
    for name in COUNTED:
        counts = [np.rint(part.n[:, None] * getattr(part, name)) for _, _, part in parts]
        layers[name] = np.concatenate(counts).astype(np.int32)
    halves = [half_means(screen, number, HALVES_SEED, range(N_HALVES)) for number in everyone.tolist()]
    cells, groups = screen.control_sample()
    return MomentPack(
        manifest,
        tables,
        np.concatenate([present for _, present, _ in parts]).astype(np.int64),
        np.concatenate([np.full(len(present), batch) for batch, present, _ in parts]),
        np.concatenate([np.asarray(part.n, dtype=np.int64) for _, _, part in parts]),
        layers,
        np.stack([means for means, _ in halves], axis=2),
        np.stack([n for _, n in halves], axis=1),
        cells.csr(np.concatenate(groups)),
        np.repeat(screen.control_ids, [len(rows) for rows in groups]),
    )


def half_of(n_cells: int, seed: int, repeat: int, condition_id: int) -> np.ndarray:
    """Half (0 or 1) of each of a condition's cells, (n,) int64; the first has n // 2."""
    order = np.random.default_rng([seed, repeat, condition_id]).permutation(n_cells)
    half = np.zeros(n_cells, dtype=np.int64)
    half[order[n_cells // 2 :]] = 1
    return half


def half_means(
    screen: PreparedScreen, condition_id: int, seed: int, repeats: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Means of two random halves of a condition's cells, (repeats, 2, G), and how many cells each has, (2,).

    NaN for fewer than two cells. ValueError where a screen without cells does not keep these halves.
    """
    own_id, n_genes = screen.folder_id(condition_id), len(screen.gene_names)
    if not screen.has_cells:
        if seed != HALVES_SEED or max(repeats, default=0) >= N_HALVES:
            msg = (
                f"a moment pack keeps {N_HALVES} split halves of seed {HALVES_SEED}; choose n_split_half of at most "
                f"{N_HALVES}, and that seed"
            )
            raise ValueError(msg)
        return np.asarray(screen.kept_halves[0][list(repeats), :, own_id]), screen.kept_halves[1][:, own_id]
    cells = screen.cells_of(condition_id)
    n_cells = len(cells)
    if n_cells < 2:
        return np.full((len(repeats), 2, n_genes), np.nan), np.zeros(2, dtype=np.int64)
    size = np.array([n_cells // 2, n_cells - n_cells // 2])
    half_RN = np.array([half_of(n_cells, seed, repeat, own_id) for repeat in repeats])
    row_RN = 2 * np.arange(len(repeats))[:, None] + half_RN
    # all means by one sparse product: the cells are never dense
    at = row_RN.ravel(), np.tile(np.arange(n_cells), len(repeats))
    pick = sparse.csr_matrix((1.0 / size[half_RN.ravel()], at), shape=(2 * len(repeats), n_cells))
    means = (pick @ screen.cells.csr(cells).astype(np.float64)).toarray()
    return means.reshape(len(repeats), 2, n_genes), size


@contextlib.contextmanager
def stored_group(path: Path) -> Iterator[Any]:
    """The root group of an h5ad file or zarr store, opened for reading."""
    if path.is_dir():
        import zarr

        refuse_links(path)
        yield zarr.open_group(path, mode="r")
        return
    import h5py

    refuse_beyond(path)
    with h5py.File(path, "r") as file:
        yield file


def is_pack(path: Path) -> bool:
    """Whether a file or store says that it is a moment pack (of any version)."""
    if not (path.is_file() or any((path / name).exists() for name in (".zgroup", "zarr.json"))):
        return False
    try:
        from anndata.io import read_elem

        with stored_group(path) as group:
            return "uns/gears/kind" in group and read_elem(group["uns/gears/kind"]) == KIND
    except Exception:  # no such file, or damaged: whoever reads it says why
        return False


def read_pack(path: str | Path) -> MomentPack:
    """Read a pack; FileNotFoundError or ValueError if it is none, of another version, cut or changed."""
    from anndata.io import read_elem

    path = need_file(path, "moment pack")
    with (
        reading(path, "a moment pack", "get it again, or write it again with write_moments"),
        stored_group(path) as group,
    ):
        if "uns/gears/kind" not in group:
            msg = "it is none; PertData.write_moments and `gears prepare --moments` write them"
            raise ValueError(msg)
        beside = {name: read_elem(group[f"uns/gears/{name}"]) for name in group["uns/gears"]}
        if int(beside["format_version"]) != VERSION:
            msg = f"{path} has format version {beside['format_version']}, this release reads {VERSION}; write it again"
            raise ValueError(msg)
        text = json.loads(str(beside["description"]))
        obs = read_elem(group["obs"])
        layers = {name: read_elem(group["X" if name == "mean" else f"layers/{name}"]) for name in (*MOMENTS, *COUNTED)}
        pack = MomentPack(
            text["manifest"],
            text["tables"],
            obs["condition_id"].to_numpy(),
            obs["batch_id"].to_numpy(),
            obs["n_cells"].to_numpy(),
            layers,
            beside["halves"],
            beside["halves_n"],
            sparse.csr_matrix(beside["controls"]),
            beside["controls_condition"],
        )
        if content_hash(str(beside["description"]), *pack.arrays().values()) != beside["seal"]:
            msg = f"{path} was changed or damaged after it was written; get it again, or write it again"
            raise ValueError(msg)
    return pack
