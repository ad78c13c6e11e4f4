"""Predictions of very many conditions: written into an h5ad or zarr file of anndata, or pairs ranked by a score."""

from __future__ import annotations

import heapq
import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.conditions import Condition
from gears.core._intervals import LEVELS
from gears.core._messages import unknown_name
from gears.core._numbers import clips, whole_number
from gears.core._progress import followed
from gears.files._atomic import need_space, new_folder, write_atomically
from gears.files._paths import check_output
from gears.files.formats import plain_adata
from gears.prediction._blocks import IN_THIS_PROCESS, Arrays, Block, Workers, over_blocks
from gears.prediction._information import (
    Origin,
    condition_table,
    gene_table,
    nodes_of,
    provenance,
    source_of_genes,
    warn_uninformed,
)
from gears.prediction._stream import ROWS_PER_BLOCK, all_pairs, candidate_genes, requested_conditions, warn_of_pairs
from gears.prediction.predictions import WIDTHS, Predictions

if TYPE_CHECKING:
    from anndata import AnnData

    from gears.model._folder import ModelParts
    from gears.model.network import GEARSNetwork

Score = Callable[[Predictions], Any]
CreateArray = Callable[[str, tuple[int, int], tuple[int, int]], Any]

ARRAY_ATTRIBUTES = {"encoding-type": "array", "encoding-version": "0.2.0"}
SUFFIXES = (".h5ad", ".zarr")


def predict_to_file(
    network: GEARSNetwork | None,
    parts: ModelParts,
    conditions: Iterable[str | Sequence[str] | Condition],
    output: str | Path,
    *,
    clip: bool | None = None,
    chunk: int | None = None,
    overwrite: bool = False,
    context: str | None = None,
    workers: Workers = IN_THIS_PROCESS,
) -> Path:
    """Predict any conditions, in every context (or one) and with every type of the model, into an h5ad or zarr file."""
    requested = requested_conditions(conditions, parts)
    nodes_of(requested, parts.pert_names)  # raises for an unknown gene before a file is written
    units = requested if parts.contexts is None else parts.contexts.placed(requested, context, None)
    warn_uninformed(requested, source_of_genes(parts))
    path, reduce = _checked(output, units, parts, overwrite), partial(_arrays, _fields(parts))
    folder = path.with_name(f".{path.name}.blocks")
    blocks = over_blocks(network, parts, units, reduce, clip=clip, chunk=chunk, workers=workers, folder=folder)
    if blocks is not None:
        written = followed(blocks, len(units), "predicting", "conditions", _length)
        write_predictions(path, units, parts, (arrays for _, arrays in written), clip)
    return path


def rank_pairs(
    network: GEARSNetwork | None,
    parts: ModelParts,
    score: Score,
    genes: Iterable[str] | None = None,
    *,
    top: int = 100,
    largest: bool = True,
    clip: bool | None = None,
    chunk: int | None = None,
    workers: Workers = IN_THIS_PROCESS,
) -> pd.DataFrame:
    """Rank every pair of genes by a user's function; see :meth:`gears.GEARS.rank_pairs`."""
    top, candidates = whole_number("top", top), candidate_genes(parts, genes)
    warn_of_pairs(parts, candidates)
    pairs, reduce = all_pairs(candidates), partial(_scores, score)
    blocks = over_blocks(network, parts, pairs, reduce, clip=clip, chunk=chunk, workers=workers)
    n_pairs = len(candidates) * (len(candidates) - 1) // 2
    scored = (
        (value, condition)
        for conditions, arrays in followed(blocks or (), n_pairs, "predicting", "conditions", _length)
        for value, condition in zip(arrays["score"].tolist(), conditions, strict=True)
        if not math.isnan(value)
    )
    best = (heapq.nlargest if largest else heapq.nsmallest)(top, scored, key=itemgetter(0))
    columns = {
        "rank": np.arange(1, len(best) + 1),
        "condition": [condition.name for _, condition in best],
        "gene_1": [condition.genes[0] for _, condition in best],
        "gene_2": [condition.genes[1] for _, condition in best],
        "score": np.array([value for value, _ in best], dtype=np.float64),
    }
    return pd.DataFrame(columns)


def _length(block: Block) -> int:
    return len(block[0])


def _scores(score: Score, predictions: Predictions) -> Arrays:
    values = np.asarray(score(predictions), dtype=np.float64)
    if values.shape != (len(predictions),):
        msg = (
            f"the score of a chunk of {len(predictions)} conditions has shape {values.shape}; "
            f"return one number per condition, shape ({len(predictions)},)"
        )
        raise ValueError(msg)
    return {"score": values}


def _checked(path: str | Path, conditions: Sequence[Condition], parts: ModelParts, overwrite: bool) -> Path:
    """The path of a file of predictions, where it can be written."""
    path = check_output(path, overwrite)
    if path.suffix not in SUFFIXES:
        raise ValueError(unknown_name("suffix of the output file", path.suffix or str(path), SUFFIXES))
    need_space(path, 4 * len(conditions) * len(parts.gene_names) * len(_fields(parts)))
    return path


def _fields(parts: ModelParts) -> dict[str, str]:
    """Datasets of a file of predictions and the attributes of :class:`Predictions` in them.

    The content is that of :meth:`Predictions.to_adata`, as float32: ``X`` expression, ``layers["delta"]``, of a model
    with a prior ``layers["sd"]`` and ``["p_changed"]``, ``layers["cell_sd"]`` of a network with ``uncertainty=True``,
    and with several contexts ``layers["control_mean"]`` (and ``["measured"]`` where some lack genes).
    """
    fields = {"X": "expression_UG", "layers/delta": "delta_UG"}
    if parts.prior is not None and parts.prior.uncertainty is not None:
        fields |= {"layers/sd": "sd", "layers/sd_change": "sd_change", "layers/p_changed": "changed_UG"}
        fields[f"obsm/{WIDTHS}"] = "width_UL"
    if parts.config.uncertainty:
        fields["layers/cell_sd"] = "cell_sd"
    if parts.contexts is not None:
        fields["layers/control_mean"] = "control_mean_G"  # of each condition's context
        if parts.contexts.is_measured_KG is not None:
            fields["layers/measured"] = "measured"
    return fields


def _arrays(fields: Mapping[str, str], predictions: Predictions) -> Arrays:
    return {name: getattr(predictions, field).astype(np.float32) for name, field in fields.items()}


def write_predictions(
    path: Path, conditions: Sequence[Condition], parts: ModelParts, blocks: Iterable[Arrays], clip: bool | None
) -> None:
    """Write the datasets of all `conditions` block by block; what was there is replaced once all is written."""
    shell, names = _shell(conditions, parts, clip), list(_fields(parts))
    if path.suffix == ".h5ad":
        write_atomically(path, lambda temporary: _write_h5ad(temporary, shell, names, blocks))
        return
    with new_folder(path) as temporary:
        _write_zarr(temporary, shell, names, blocks)


def _shell(conditions: Sequence[Condition], parts: ModelParts, clip: bool | None) -> AnnData:
    """The AnnData of :meth:`Predictions.to_adata` without its large arrays."""
    origin = Origin.of(parts)
    return plain_adata(
        condition_table(conditions, origin),
        gene_table(parts.gene_names, parts.control_mean_G if parts.contexts is None else None, origin),
        uns={"gears": provenance(clips(clip, parts.nonnegative), origin)},
    )


def _write_h5ad(path: Path, shell: AnnData, names: Sequence[str], blocks: Iterable[Arrays]) -> None:
    import h5py

    shell.write_h5ad(path)
    with h5py.File(path, "r+") as file:

        def create(name: str, shape: tuple[int, int], blocks: tuple[int, int]) -> Any:
            if name in file:
                del file[name]
            array = file.create_dataset(name, shape=shape, chunks=blocks, dtype=np.float32)
            array.attrs.update(ARRAY_ATTRIBUTES)
            return array

        _fill(create, shell.shape, names, blocks)


def _write_zarr(folder: Path, shell: AnnData, names: Sequence[str], blocks: Iterable[Arrays]) -> None:
    import zarr
    from anndata import io

    store = folder / "data"
    # format 2 can be read by current and older readers; explicit, because anndata warns that its default changes
    group = zarr.open_group(str(store), mode="w", zarr_format=2)
    io.write_elem(group, "/", shell)

    def create(name: str, shape: tuple[int, int], blocks: tuple[int, int]) -> Any:
        array = group.create_array(name, shape=shape, chunks=blocks, dtype="float32", overwrite=True)
        array.attrs.update(ARRAY_ATTRIBUTES)
        return array

    _fill(create, shell.shape, names, blocks)
    zarr.consolidate_metadata(group.store)
    for entry in store.iterdir():
        shutil.move(entry, folder / entry.name)
    store.rmdir()


def _fill(create: CreateArray, shape: tuple[int, int], names: Sequence[str], blocks: Iterable[Arrays]) -> None:
    """Create the datasets and write the blocks into them; raises if rows are missing."""
    n_rows, n_genes = shape
    datasets, row = {}, 0
    for name in names:
        width = len(LEVELS) if name.startswith("obsm/") else n_genes
        n_together = n_rows if name.startswith("obsm/") else ROWS_PER_BLOCK
        datasets[name] = create(name, (n_rows, width), (max(1, min(n_together, n_rows)), max(1, width)))
    for arrays in blocks:
        rows = slice(row, row + len(arrays["X"]))
        for name, dataset in datasets.items():
            dataset[rows] = arrays[name]
        row = rows.stop
    if row != n_rows:
        msg = f"{row} predictions came for {n_rows} conditions"
        raise RuntimeError(msg)
