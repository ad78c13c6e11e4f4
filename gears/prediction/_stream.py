"""Predict chunk by chunk, into memory, for a user's score, or atomically into an h5ad or zarr file of anndata."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import combinations, islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
import torch
from scipy import sparse

from gears.conditions import Condition
from gears.core._messages import shorten
from gears.core._numbers import clips, whole_number
from gears.distributed._devices import DeviceLike, find_device, plan_devices
from gears.prediction._information import source_of_genes, warn_uninformed
from gears.prediction.predictions import (
    Origin,
    Predictions,
    entries_in,
    in_contexts,
    listed_order,
    nodes_of,
    requested_conditions,
    requested_genes,
)

if TYPE_CHECKING:
    from gears.distributed._gpus import GpuIds
    from gears.model._folder import ModelParts
    from gears.model.network import GEARSNetwork
    from gears.priors._prior import GenePrior

Score = Callable[[Predictions], Any]
T = TypeVar("T")

MEMORY_MB = 256
"""Memory of a chunk, MiB, where its size is omitted."""
BYTES_PER_VALUE = 72  # float32 results, float64 expression, change and sd, and copies by a caller
MOST_PER_CHUNK = 1024
ARRAY_ATTRIBUTES = {"encoding-type": "array", "encoding-version": "0.2.0"}
SUFFIXES = (".h5ad", ".zarr")
ROWS_PER_BLOCK = 64  # rows of a storage chunk: few others are read with a condition

CreateArray = Callable[[str, tuple[int, int], tuple[int, int]], Any]


def chunk_size(n_genes: int) -> int:
    """Conditions of a chunk of about :data:`MEMORY_MB` MiB, at least 1; whole blocks of a file where possible."""
    size = int(max(1, min(MOST_PER_CHUNK, MEMORY_MB * 2**20 / (BYTES_PER_VALUE * max(1, n_genes)))))
    return size - size % ROWS_PER_BLOCK if size > ROWS_PER_BLOCK else size


def stream(
    network: GEARSNetwork | None,
    parts: ModelParts,
    conditions: Iterable[Condition],
    *,
    clip: bool | None = None,
    chunk: int | None = None,
    devices: Sequence[str] = (),
) -> Iterator[Predictions]:
    """Predict conditions chunk by chunk; everything that conditions share is computed once.

    Later changes of the network's weights do not affect a stream that has begun. `conditions` are read when needed,
    `chunk` at a time (by :func:`chunk_size` when None). The network computes on `devices`, chunks in turn, by default
    where it is; the prior always computes on the CPU.
    """
    size = chunk_size(len(parts.gene_names)) if chunk is None else whole_number("chunk", chunk)
    remaining = iter(conditions)

    def chunks() -> Iterator[tuple[Sequence[Sequence[int]], tuple[tuple[Condition, ...], np.ndarray]]]:
        while chunk_conditions := tuple(islice(remaining, size)):
            units, nodes, control_mean = in_contexts(chunk_conditions, parts)
            yield nodes, (units, control_mean)

    origin = Origin.of(parts)
    for (units, control_mean), changes in _changes(network, chunks(), parts.prior, devices):
        yield _predictions(parts, units, control_mean, changes, clip, origin)


class Changes(NamedTuple):
    """Predicted changes of U conditions, (U, G) float64, and their standard deviations where these are predicted."""

    delta_UG: np.ndarray  # mean change of every gene
    cell_sd_UG: np.ndarray | None = None
    """Standard deviation of a cell, by a network with ``uncertainty=True``."""
    sd_UG: np.ndarray | None = None  # standard deviation of the mean change, by the prior
    control_sd: np.ndarray | None = None  # standard error of the control mean in it, (G,) or (U, G)
    width_UL: np.ndarray | None = None  # width of intervals beside a Gaussian's


Chunk = tuple[Sequence[Sequence[int]], T]
Outputs = tuple[torch.Tensor, torch.Tensor | None]


@torch.no_grad()
def _changes(
    network: GEARSNetwork | None, chunks: Iterable[Chunk[T]], prior: GenePrior | None, devices: Sequence[str] = ()
) -> Iterator[tuple[T, Changes]]:
    """The prediction loop: changes of one chunk after another.

    A chunk is a pair of its conditions' nodes and a value that is yielded with their changes. Everything that chunks
    share is computed once. The network does not run where nothing depends on it: its weight is 0 and it
    predicts no variance.
    """
    if prior is not None and prior.network_weight == 0 and network is not None and not network.config.uncertainty:
        network = None
    computed = ((*chunk, None) for chunk in chunks) if network is None else _outputs(network, chunks, devices)
    for nodes, label, outputs in computed:
        network_UG = cell_sd_UG = None
        if outputs is not None:
            delta, logvar = outputs
            network_UG = _numpy(delta)
            cell_sd_UG = None if logvar is None else np.exp(0.5 * _numpy(logvar))
        if prior is None:
            assert network_UG is not None
            yield label, Changes(network_UG, cell_sd_UG)
            continue
        change_UG = prior(nodes)
        complete_UG = prior.complete(nodes, change_UG, network_UG)
        known = (prior.sd(nodes, change_UG), prior.control_sd(nodes), prior.widths(nodes))
        yield label, Changes(complete_UG, cell_sd_UG, *known)


def devices_of(device: DeviceLike, gpu_ids: GpuIds) -> tuple[str, ...]:
    """Devices that a caller names for predictions: GPUs by `gpu_ids`, or one device; empty for neither."""
    if gpu_ids is not None:
        return plan_devices(gpu_ids=gpu_ids, device=device).devices
    return () if device is None else (str(find_device(device)),)


def _outputs(
    network: GEARSNetwork, chunks: Iterable[Chunk[T]], devices: Sequence[str]
) -> Iterator[tuple[Sequence[Sequence[int]], T, Outputs]]:
    """Chunks with what the network says of them, in their order; each of `devices` computes one at a time."""
    places = [torch.device(device) for device in devices] or [network.indv_w1.device]
    shared = {id(network.prior): network.prior}  # not copied
    prepared = [
        (network if place == network.indv_w1.device else copy.deepcopy(network, dict(shared)).to(place)).prepared()
        for place in places
    ]
    if len(prepared) == 1:
        yield from ((nodes, label, prepared[0](nodes)) for nodes, label in chunks)
        return
    remaining, waiting = iter(chunks), deque[tuple[Chunk[T], Future[Outputs]]]()
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(ThreadPoolExecutor(1)) for _ in prepared]
        for worker, one in itertools.cycle(zip(workers, prepared, strict=True)):
            chunk = next(remaining, None)
            if chunk is not None:
                waiting.append((chunk, worker.submit(one, chunk[0])))
            if waiting and (chunk is None or len(waiting) == len(workers)):
                (nodes, label), outputs = waiting.popleft()
                yield nodes, label, outputs.result()
            elif chunk is None:
                return


def _predictions(
    parts: ModelParts,
    conditions: tuple[Condition, ...],
    control_mean: np.ndarray,
    changes: Changes,
    clip: bool | None,
    origin: Origin,
) -> Predictions:
    expression_UG, cut = control_mean + changes.delta_UG, None
    clip = clips(clip, parts.nonnegative)
    if clip:
        cut = sparse.csr_matrix(np.minimum(expression_UG, 0.0))
        np.maximum(expression_UG, 0.0, out=expression_UG)
    return Predictions(
        conditions,
        parts.gene_names,
        expression_UG,
        control_mean,
        changes.cell_sd_UG,
        clip,
        origin,
        changes.sd_UG,
        control_sd=changes.control_sd,
        width_UL=changes.width_UL,
        cut=cut,
        measured=None if parts.contexts is None else parts.contexts.is_measured(conditions),
    )


def predict(
    network: GEARSNetwork | None,
    parts: ModelParts,
    conditions: Iterable[str | Sequence[str] | Condition],
    *,
    clip: bool | None = None,
    chunk: int = 32,
    context: str | Sequence[str] | None = None,
    perturbation_type: str | None = None,
    warn: bool = True,
) -> Predictions:
    """Predict conditions into memory (see :meth:`gears.GEARS.predict`); `warn` once of genes that are hardly known."""
    entries = list(entries_in(conditions))
    requested = requested_conditions(entries, parts)
    units, nodes, control_mean = in_contexts(requested, parts, context, perturbation_type)
    changes = predict_changes(network, nodes, prior=parts.prior, chunk=whole_number("chunk", chunk))
    predictions = _predictions(parts, units, control_mean, changes, clip, Origin.of(parts))
    predictions = replace(predictions, gene_order=listed_order(entries))
    if warn:
        predictions.warn_uninformed()
    return predictions


def predict_changes(
    network: GEARSNetwork | None, nodes: Sequence[Sequence[int]], *, prior: GenePrior | None = None, chunk: int = 32
) -> Changes:
    """Change of every gene under each set of nodes, with standard deviations where they are predicted.

    In evaluation mode. `chunk` is the number of conditions per forward pass: it bounds memory, not the result.
    """
    slices = [slice(begin, begin + chunk) for begin in range(0, len(nodes), chunk)]
    found = [changes for _, changes in _changes(network, ((nodes[rows], None) for rows in slices), prior)]
    if not found:
        known = prior if network is None else network
        assert known is not None
        return Changes(np.empty((0, known.n_genes)))
    delta, *others = (
        None if parts[0] is None else parts[0] if parts[0].ndim == 1 else np.concatenate(parts)
        for parts in zip(*found, strict=True)
    )
    assert delta is not None
    return Changes(delta, *others)


def all_pairs(genes: Sequence[str]) -> Iterator[Condition]:
    """Every pair of distinct genes once, in the genes' order."""
    return (Condition(pair) for pair in combinations(genes, 2))


def candidate_genes(parts: ModelParts, genes: Iterable[str] | None) -> list[str]:
    """The genes to pair, each once, at least two nodes; by default those that the model was trained on."""
    if genes is None:
        genes = sorted(parts.pert_names[node] for node in parts.trained_nodes())
        if not genes:
            msg = "this model has no training conditions to take genes from; pass the genes to pair"
            raise ValueError(msg)
    elif isinstance(genes, str):
        msg = f"genes is the text {genes!r}; give a list of gene names"
        raise ValueError(msg)
    candidates = requested_genes(genes, parts)
    if len(candidates) < 2:
        msg = f"pairs need at least two genes; found {shorten(candidates) if candidates else 'none'}"
        raise ValueError(msg)
    nodes_of([Condition((gene,)) for gene in candidates], parts.pert_names)
    return candidates


def predict_all_pairs(
    network: GEARSNetwork | None,
    parts: ModelParts,
    genes: Iterable[str] | None = None,
    *,
    values: str = "expression",
    clip: bool | None = None,
    chunk: int | None = None,
    device: DeviceLike = None,
    gpu_ids: GpuIds = None,
) -> Iterator[pd.DataFrame]:
    """Predict every pair of genes; see :meth:`gears.GEARS.predict_all_pairs`."""
    candidates, devices = candidate_genes(parts, genes), devices_of(device, gpu_ids)
    warn_of_pairs(parts, candidates)
    chunks = stream(network, parts, all_pairs(candidates), clip=clip, chunk=chunk, devices=devices)
    return (predictions.to_frame(values) for predictions in chunks)


def warn_of_pairs(parts: ModelParts, genes: Sequence[str]) -> None:
    """Log a warning of genes that the model hardly knows."""
    warn_uninformed([Condition((gene,)) for gene in genes], source_of_genes(parts))


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    """A float64 array with a row per condition."""
    return np.ascontiguousarray(tensor.cpu().numpy(), dtype=np.float64)
