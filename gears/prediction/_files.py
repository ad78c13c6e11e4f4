"""Write predictions as h5ad or zarr, chunk by chunk in anndata's format, atomically."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gears.conditions import Condition
from gears.core._intervals import LEVELS
from gears.core._messages import unknown_name
from gears.core._numbers import clips
from gears.files._atomic import need_space, new_folder, write_atomically
from gears.files._paths import check_output
from gears.files.formats import plain_adata
from gears.prediction.predictions import WIDTHS, Origin, Predictions, condition_table, gene_table, provenance

if TYPE_CHECKING:
    from anndata import AnnData

    from gears.model._folder import ModelParts

ARRAY_ATTRIBUTES = {"encoding-type": "array", "encoding-version": "0.2.0"}
SUFFIXES = (".h5ad", ".zarr")
ROWS_PER_BLOCK = 64  # rows of a storage chunk: few others are read with a condition

CreateArray = Callable[[str, tuple[int, int], tuple[int, int]], Any]


def write_predictions(
    path: str | Path,
    conditions: Sequence[Condition],
    parts: ModelParts,
    chunks: Iterable[Predictions],
    *,
    clip: bool | None,
    overwrite: bool = False,
) -> Path:
    """Write the predictions of all `conditions`, chunk by chunk in their order, to an ``.h5ad`` or ``.zarr`` path.

    The content is that of :meth:`Predictions.to_adata`, as float32: ``X`` expression, ``layers["delta"]``, of a model
    with a prior ``layers["sd"]`` and ``["p_changed"]``, ``layers["cell_sd"]`` of a network with ``uncertainty=True``,
    and with several contexts ``layers["control_mean"]``. With `overwrite` what is there is replaced, once all is
    written.
    """
    path = check_output(path, overwrite)
    if path.suffix not in SUFFIXES:
        raise ValueError(unknown_name("suffix of the output file", path.suffix or str(path), SUFFIXES))
    shell = _shell(conditions, parts, clip)
    layers = ["delta"]
    if parts.prior is not None and parts.prior.uncertainty is not None:
        layers += ["sd", "sd_change", "p_changed"]
    if parts.config.uncertainty:
        layers.append("cell_sd")
    if parts.contexts is not None:
        layers.append("control_mean")
        if parts.contexts.is_measured_KG is not None:
            layers.append("measured")
    need_space(path, 4 * len(conditions) * len(parts.gene_names) * (1 + len(layers)))
    if path.suffix == ".h5ad":
        return write_atomically(path, lambda temporary: _write_h5ad(temporary, shell, layers, chunks))
    with new_folder(path) as temporary:
        _write_zarr(temporary, shell, layers, chunks)
    return path


def _shell(conditions: Sequence[Condition], parts: ModelParts, clip: bool | None) -> AnnData:
    """The AnnData of :meth:`Predictions.to_adata` without its large arrays."""
    origin = Origin.of(parts)
    return plain_adata(
        condition_table(conditions, origin),
        gene_table(parts.gene_names, parts.control_mean_G if parts.contexts is None else None, origin),
        uns={"gears": provenance(clips(clip, parts.nonnegative), origin)},
    )


def _write_h5ad(path: Path, shell: AnnData, layers: Sequence[str], chunks: Iterable[Predictions]) -> None:
    import h5py

    shell.write_h5ad(path)
    with h5py.File(path, "r+") as file:

        def create(name: str, shape: tuple[int, int], blocks: tuple[int, int]) -> Any:
            if name in file:
                del file[name]
            array = file.create_dataset(name, shape=shape, chunks=blocks, dtype=np.float32)
            array.attrs.update(ARRAY_ATTRIBUTES)
            return array

        _fill(create, shell.shape, layers, chunks)


def _write_zarr(folder: Path, shell: AnnData, layers: Sequence[str], chunks: Iterable[Predictions]) -> None:
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

    _fill(create, shell.shape, layers, chunks)
    zarr.consolidate_metadata(group.store)
    for entry in store.iterdir():
        shutil.move(entry, folder / entry.name)
    store.rmdir()


def _fill(create: CreateArray, shape: tuple[int, int], layers: Sequence[str], chunks: Iterable[Predictions]) -> None:
    """Create X and layers and write the chunks into them; raises if rows are missing."""
    blocks = (max(1, min(ROWS_PER_BLOCK, shape[0])), max(1, shape[1]))
    of_layer = {"delta": "delta_UG", "sd": "sd", "sd_change": "sd_change", "cell_sd": "cell_sd"}
    of_layer |= {"control_mean": "control_mean_G", "measured": "measured"}  # of each condition's context
    of_layer["p_changed"] = "changed_UG"
    fields = {"X": "expression_UG"} | {f"layers/{name}": of_layer[name] for name in layers}
    arrays = {field: create(name, shape, blocks) for name, field in fields.items()}
    if "sd" in layers:
        width = (shape[0], len(LEVELS))
        arrays["width_UL"] = create(f"obsm/{WIDTHS}", width, width)
    row = 0
    for predictions in chunks:
        rows = slice(row, row + len(predictions))
        for field, array in arrays.items():
            array[rows] = getattr(predictions, field).astype(np.float32)
        row += len(predictions)
    if row != shape[0]:
        msg = f"{row} predictions came for {shape[0]} conditions"
        raise RuntimeError(msg)
