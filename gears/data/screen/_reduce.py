"""From blocks of cells to a moment pack, where the blocks lie.

Two passes: the control means, then the moments of all conditions, about them. In each, runs of blocks (*leaves*) are
read, normalised and reduced to tables, and the tables are merged in pairs of neighbours (a tree): in this process, in
several, or by dask, with the same bits, since the tree follows from the blocks alone. A dask worker that dies costs
its leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import sparse

from gears.core._progress import followed
from gears.data.reading._blocks import Blocks, block_values
from gears.data.reading._matrix import as_csr, log_normalize, other_features
from gears.data.screen._cells import drawn_rows
from gears.data.screen._files import screen_manifest, screen_tables
from gears.data.screen._moments import Centre, ConditionMoments, MemoryRows, condition_chunks, processes
from gears.data.screen._packs import HALVES_SEED, N_HALVES, MomentPack, half_of
from gears.files._mapped import row_blocks, taken
from gears.files.formats import content_hash

if TYPE_CHECKING:
    from gears.data.checks._settings import SettingTable
    from gears.data.checks._survey import ScreenDraft

MOST_LEAVES = 64
"""Runs of blocks that are reduced apart: more of them share the work better and move more tables."""


@dataclass
class Leaf:
    """Cells of consecutive blocks that stay in the screen: a few bytes of each, since all come from one place."""

    blocks: list[Any]
    sizes: list[int]
    # cell, row: number within the leaf, and row of the pack, of each cell that stays, (n,); None where all stay
    cell: np.ndarray | None
    row: np.ndarray
    bits: np.ndarray  # (n,) uint8: bit r is the half of repeat r, bit N_HALVES is set for control cells of the sample


@dataclass(frozen=True)
class Plan:
    """What every leaf needs to know."""

    n_genes: int
    genes: np.ndarray | None  # columns that are genes, of those stored; None for all
    normalize: bool
    # row_batch, row_condition: (R,) batch and condition of each row
    row_batch: np.ndarray
    row_condition: np.ndarray
    is_control: np.ndarray  # (R,) bool
    centres: dict[int, Centre] | None = None  # of each batch; None in the first pass


@dataclass
class Part:
    """Tables of some rows and conditions; parts of neighbouring cells merge."""

    rows: np.ndarray
    moments: ConditionMoments
    conditions: np.ndarray
    first_half: np.ndarray  # (N_HALVES, P, G): sums over the cells of the first halves
    lowest: float
    drawn: sparse.csr_matrix

    def __sizeof__(self) -> int:
        """Bytes of the tables, by which dask places what it computes."""
        tables = (self.first_half, self.drawn.data, *vars(self.moments).values())
        return sum(table.nbytes for table in tables if isinstance(table, np.ndarray))


def reduce_to_pack(blocks: Blocks, draft: ScreenDraft, *, workers: int = 1, on_dask: bool = False) -> MomentPack:
    """The pack of a checked screen, whose draft holds annotations and no values."""
    table = draft.settings
    assert table is not None
    row_batch, row_condition, row_N = _rows(table)
    is_control_C = table.is_control
    groups = [np.flatnonzero(taken(row_condition == one, row_N)) for one in np.flatnonzero(is_control_C)]
    drawn = np.concatenate(drawn_rows(groups, len(draft.var)))
    del groups
    bits_N = _half_bits(table)
    bits_N[drawn] |= 1 << N_HALVES
    leaves = list(_leaves(blocks, draft.cells, row_N, bits_N))
    del row_N, bits_N
    is_gene_G = other_features(blocks.annotations.var)[1] == ""
    genes = None if is_gene_G.all() else np.flatnonzero(is_gene_G)
    plan = Plan(len(draft.var), genes, draft.options.normalize, row_batch, row_condition, is_control_C[row_condition])
    run = partial(_run, workers=workers, on_dask=on_dask or blocks.on_dask)
    first = run("reading control cells", leaves, plan)
    centres = {int(row_batch[row]): first.moments.centre_on(at) for at, row in enumerate(first.rows.tolist())}
    whole = run("reading cells", leaves, replace(plan, centres=centres))
    return _pack(draft, whole, first, row_condition, row_batch, drawn)


def _rows(table: SettingTable) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Batch and condition of each row of the pack, (R,), those with cells, and the row of each cell, (N,)."""
    n_conditions = len(table.conditions)
    is_there = np.zeros(len(table.batches) * n_conditions, dtype=bool)
    key_N = np.empty(len(table.cell_label), dtype=np.min_scalar_type(len(is_there)))
    for cells in row_blocks(len(key_N), 64):
        key_N[cells] = table.cell_batch[cells] * np.int64(n_conditions) + table.label_condition[table.cell_label[cells]]
        is_there[key_N[cells]] = True
    keys = np.flatnonzero(is_there)
    row_of_key = np.cumsum(is_there, dtype=np.min_scalar_type(len(keys))) - 1
    return *np.divmod(keys, n_conditions), taken(row_of_key, key_N)


def _half_bits(table: SettingTable) -> np.ndarray:
    """The half of each cell in every repeat, as bits, (N,) uint8."""
    n_C, n_cells = table.counts(), len(table.cell_label)
    by_condition, bits_N = np.zeros((2, n_cells), dtype=np.uint8)
    for condition, bits in enumerate(np.split(by_condition, np.cumsum(n_C)[:-1])):
        for repeat in range(N_HALVES):
            bits |= (half_of(len(bits), HALVES_SEED, repeat, condition) << repeat).astype(np.uint8)
    next_C = np.cumsum(n_C) - n_C  # the next cell of each condition
    for cells in row_blocks(n_cells, 64):
        condition_B = table.label_condition[table.cell_label[cells]]
        order, n_C = np.argsort(condition_B, kind="stable"), np.bincount(condition_B, minlength=len(n_C))
        bits_N[cells][order] = by_condition[np.repeat(next_C - np.cumsum(n_C) + n_C, n_C) + np.arange(len(order))]
        next_C += n_C
    return bits_N


def _leaves(blocks: Blocks, cells: np.ndarray, row_N: np.ndarray, bits_N: np.ndarray) -> Iterator[Leaf]:
    """Runs of consecutive blocks with what belongs to their cells; `cells` that stay ascend."""
    starts = np.concatenate(([0], np.cumsum(blocks.sizes)))
    # dask holds the blocks of a leaf together: one in each
    n_leaves = len(blocks.blocks) if blocks.on_dask else min(MOST_LEAVES, len(blocks.blocks))
    for numbers in np.array_split(np.arange(len(blocks.blocks)), n_leaves):
        first, last = int(numbers[0]), int(numbers[-1]) + 1
        low, high = np.searchsorted(cells, np.array([starts[first], starts[last]], dtype=cells.dtype))
        is_whole = high - low == starts[last] - starts[first]
        cell = None if is_whole else (cells[low:high] - starts[first]).astype(np.int32)
        yield Leaf(blocks.blocks[first:last], blocks.sizes[first:last], cell, row_N[low:high], bits_N[low:high])


def _run(what: str, leaves: list[Leaf], plan: Plan, *, workers: int, on_dask: bool) -> Part:
    """One pass: leaves reduced, and their parts merged in a tree."""
    if on_dask:
        from dask import delayed

        reduced, shared = delayed(reduced_leaf, pure=False), delayed(plan)
        # blocks are arguments of their own: dask makes them where the leaf is reduced
        parts = [reduced(replace(leaf, blocks=[]), shared, leaf.blocks) for leaf in leaves]
        return merged_in_tree(parts, delayed(merge_parts)).compute()
    with processes(workers) as pool:
        done = (pool.map if pool is not None else map)(partial(reduced_leaf, plan=plan), leaves)
        return merged_in_tree(followed(done, len(leaves), what, "blocks"), merge_parts)


def merged_in_tree(parts: Iterable[Any], merge: Callable[[Any, Any], Any]) -> Any:
    """Merge parts in pairs of neighbours, then pairs of pairs; few are held at a time."""
    held: list[tuple[int, Any]] = []
    for part in parts:
        level = 0
        while held and held[-1][0] == level:
            part, level = merge(held.pop()[1], part), level + 1
        held.append((level, part))
    whole = held.pop()[1]
    while held:
        whole = merge(held.pop()[1], whole)
    return whole


def reduced_leaf(leaf: Leaf, plan: Plan, blocks: list[Any] | None = None) -> Part:
    """The part of a leaf (of `blocks` that dask has made): in the first pass control cells alone, and their sample."""
    is_first = plan.centres is None
    used = plan.is_control[leaf.row] if is_first else np.ones(len(leaf.row), dtype=bool)
    rows, conditions = np.unique(leaf.row[used]), np.unique(plan.row_condition[leaf.row[: 0 if is_first else None]])
    cell = np.arange(sum(leaf.sizes)) if leaf.cell is None else leaf.cell
    nothing = (np.zeros(0), np.zeros(0))
    moments = ConditionMoments(len(rows), plan.n_genes, None if is_first else nothing)
    halves = np.zeros((0 if is_first else N_HALVES, len(conditions), plan.n_genes))
    drawn, lowest, start = [sparse.csr_matrix((0, plan.n_genes), dtype=np.float32)], 0.0, 0
    for block, size in zip(leaf.blocks if blocks is None else blocks, leaf.sizes, strict=True):
        own = slice(*np.searchsorted(cell, [start, start + size]))
        values = _used_values(block, cell[own] - start, plan)
        start += size
        lowest = min(lowest, float(values.data.min(initial=0.0)))
        kept = np.flatnonzero(used[own])
        _add(moments, values, kept, np.searchsorted(rows, leaf.row[own]), rows, plan)
        if is_first:
            drawn.append(values[np.flatnonzero(leaf.bits[own] >> N_HALVES)])
            continue
        at = np.searchsorted(conditions, plan.row_condition[leaf.row[own]])
        wide = values.astype(np.float64)
        for repeat in range(N_HALVES):
            in_first = np.flatnonzero((leaf.bits[own] >> repeat) & 1 == 0)
            ones = np.ones(len(in_first)), (at[in_first], in_first)
            halves[repeat] += (sparse.csr_matrix(ones, shape=(len(conditions), len(at))) @ wide).toarray()
    return Part(rows, moments, conditions, halves, lowest, sparse.vstack(drawn, format="csr"))


def _used_values(block: Any, cells: np.ndarray, plan: Plan) -> sparse.csr_matrix:
    """Log-normalised expression of the cells of a block that stay; ValueError for values that are not finite."""
    values = block_values(block)
    values = values if len(cells) == values.shape[0] else values[cells]
    values = as_csr(values if plan.genes is None else values[:, plan.genes])
    if not np.isfinite(values.data).all():
        msg = "there are NaN or infinite values; replace them, or drop those cells or genes"
        raise ValueError(msg)
    return log_normalize(values) if plan.normalize else values


def _add(
    moments: ConditionMoments, values: sparse.csr_matrix, kept: np.ndarray, at: np.ndarray, rows: np.ndarray, plan: Plan
) -> None:
    """Add some cells of a block, batch by batch, since each is counted about the mean of its own control cells."""
    source = MemoryRows(values)
    batch = plan.row_batch[rows][at[kept]]
    for one in np.unique(batch).tolist():
        own = kept[batch == one]
        if plan.centres is not None:
            moments.centre = plan.centres[one]
        for chunk in condition_chunks(source.row_lengths[own], at[own], plan.n_genes):
            moments.update(source.csr(own[chunk]), at[own[chunk]])


def merge_parts(one: Part, other: Part) -> Part:
    """The parts of cells and of those after them as one."""
    rows, conditions = (np.union1d(getattr(one, name), getattr(other, name)) for name in ("rows", "conditions"))
    moments = ConditionMoments(len(rows), one.moments.mean.shape[1], one.moments.centre)
    halves = np.zeros((len(one.first_half), len(conditions), one.first_half.shape[2]))
    for part in (one, other):
        moments.merge_conditions(np.searchsorted(rows, part.rows), part.moments)
        halves[:, np.searchsorted(conditions, part.conditions)] += part.first_half
    drawn = sparse.vstack([one.drawn, other.drawn], format="csr")
    return Part(rows, moments, conditions, halves, min(one.lowest, other.lowest), drawn)


def _pack(
    draft: ScreenDraft, whole: Part, first: Part, row_condition: np.ndarray, row_batch: np.ndarray, drawn: np.ndarray
) -> MomentPack:
    table, moments = draft.settings, whole.moments
    assert table is not None
    n_C = table.counts()
    total_CG = np.zeros(whole.first_half.shape[1:])
    np.add.at(total_CG, row_condition, moments.n[:, None] * moments.mean)
    halves_n = np.stack([n_C // 2, n_C - n_C // 2]) * (n_C > 1)
    with np.errstate(invalid="ignore", divide="ignore"):  # NaN for conditions of one cell
        means = [whole.first_half / halves_n[0][:, None], (total_CG - whole.first_half) / halves_n[1][:, None]]
    halves = np.where((n_C > 1)[:, None], np.stack(means, axis=1), np.nan)
    layers = {"mean": moments.mean} | {f"m{order}": moments.central(order) for order in (2, 3, 4)}
    layers |= {name: getattr(moments, f"_n_{name}").astype(np.int32) for name in ("nonzero", "above", "below")}
    in_order = np.argsort(np.argsort(drawn))  # of the cells of the passes, which come in the order of the screen
    tables = screen_tables(draft)
    tables |= {
        "label_condition": [int(one) for one in table.label_condition],
        "batches": list(table.batches),
        "label_cells": pd.Series(table.cell_label).value_counts().sort_index().tolist(),
    }
    draft = replace(draft, has_negative=whole.lowest < 0)
    pack = MomentPack(
        screen_manifest(draft, ""),
        tables,
        row_condition,
        row_batch,
        moments.n,
        layers,
        halves,
        halves_n,
        as_csr(first.drawn[in_order]),
        table.label_condition[table.cell_label[drawn]],
    )
    key = content_hash(tables, *pack.arrays().values(), draft.options.to_dict())
    return replace(pack, manifest=pack.manifest | {"content_hash": key})
