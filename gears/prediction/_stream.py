"""The one loop that predicts, chunk by chunk, and the conditions and genes that a user requests of a model."""

from __future__ import annotations

import contextlib
import copy
import itertools
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import pandas as pd
import torch
from scipy import sparse

from gears.conditions import CONTROL_LABEL, Condition
from gears.core._messages import count, shorten
from gears.core._numbers import clips, whole_number
from gears.data.checks._names import model_names
from gears.distributed._devices import DeviceLike, find_device, plan_devices
from gears.graphs._annotation import GeneAnnotation
from gears.prediction._information import Origin, nodes_of, source_of_genes, warn_uninformed
from gears.prediction.predictions import Predictions

if TYPE_CHECKING:
    from gears.distributed._gpus import GpuIds
    from gears.model._folder import ModelParts
    from gears.model.network import GEARSNetwork
    from gears.priors._prior import GenePrior

logger = logging.getLogger(__name__)

T = TypeVar("T")

MEMORY_MB = 256
"""Memory of a chunk, MiB, where its size is omitted."""
BYTES_PER_VALUE = 72  # float32 results, float64 expression, change and sd, and copies by a caller
MOST_PER_CHUNK = 1024
ROWS_PER_BLOCK = 64  # rows of a storage chunk: few others are read with a condition


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
        while chunk_conditions := tuple(itertools.islice(remaining, size)):
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
    prepared = [on_device(network, device).prepared() for device in devices] or [network.prepared()]
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
            # the oldest first, so that chunks keep their order and one for each device is in memory
            if waiting and (chunk is None or len(waiting) == len(workers)):
                (nodes, label), outputs = waiting.popleft()
                yield nodes, label, outputs.result()
            elif chunk is None:
                return


def on_device(network: GEARSNetwork, device: str) -> GEARSNetwork:
    """The network where it is on the device, else a copy, which shares the prior."""
    if network.indv_w1.device == torch.device(device):
        return network
    return copy.deepcopy(network, {id(network.prior): network.prior}).to(device)


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
    chunks = [changes for _, changes in _changes(network, ((nodes[rows], None) for rows in slices), prior)]
    if not chunks:
        known = prior if network is None else network
        assert known is not None
        return Changes(np.empty((0, known.n_genes)))
    delta, *others = (
        None if parts[0] is None else parts[0] if parts[0].ndim == 1 else np.concatenate(parts)
        for parts in zip(*chunks, strict=True)
    )
    assert delta is not None
    return Changes(delta, *others)


def all_pairs(genes: Sequence[str]) -> Iterator[Condition]:
    """Every pair of distinct genes once, in the genes' order."""
    return (Condition(pair) for pair in itertools.combinations(genes, 2))


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
    if no_genes := [one for one in candidates if isinstance(one, Condition)]:
        msg = f"genes holds the condition {no_genes[0].name}; give the genes to pair, such as model.pert_list[:100]"
        raise ValueError(msg)
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


def requested_conditions(
    entries: str | Condition | Iterable[str | Sequence[str] | Condition], parts: ModelParts
) -> tuple[Condition, ...]:
    """The distinct conditions that a user requests of a model, in order; at least one.

    Genes that the model has under another name get that name, with one log line.

    Raises
    ------
    ValueError
        No condition, an empty one, or a name of two genes of the model.
    """
    conditions = [_requested_condition(entry, parts) for entry in entries_in(entries)]
    if not conditions:
        msg = "predict got no condition; give at least one, such as [['A', 'B']] or ['A+B', 'A']"
        raise ValueError(msg)
    names = _names_in_model((gene for condition in conditions for gene in condition.genes), parts)
    renamed = (replace(one, genes=tuple(names.get(gene, gene) for gene in one.genes)) for one in conditions)
    return tuple(dict.fromkeys(renamed))


def entries_in(
    conditions: str | Condition | Iterable[str | Sequence[str] | Condition],
) -> Iterable[str | Sequence[str] | Condition]:
    """A user's conditions; what is one condition, or none, is one entry."""
    is_several = isinstance(conditions, Iterable) and not isinstance(conditions, str | Condition)
    return conditions if is_several else [conditions]  # type: ignore[list-item, return-value]


def listed_order(entries: Iterable[str | Sequence[str] | Condition]) -> dict[tuple[str, ...], tuple[str, ...]]:
    """:attr:`Predictions.gene_order` of conditions that are given as lists of genes."""
    lists = (entry for entry in entries if not isinstance(entry, str | Condition))
    genes = [tuple(gene for gene in entry if gene != CONTROL_LABEL) for entry in lists]
    return {tuple(sorted(listed)): listed for listed in genes if list(listed) != sorted(listed)}


def requested_genes(genes: Iterable[str], parts: ModelParts) -> list[str]:
    """The distinct genes that a user requests of a model, as :func:`requested_conditions` names them."""
    genes = list(genes)
    names = _names_in_model(genes, parts)
    return list(dict.fromkeys(names.get(gene, gene) for gene in genes))


def _names_in_model(genes: Iterable[str], parts: ModelParts) -> dict[str, str]:
    """Other names of genes in the model (:func:`gears.data.checks._names.model_names`), logged."""
    genes, screen, nodes = list(genes), set(parts.gene_names), dict.fromkeys(parts.pert_names)
    if all(gene in screen and gene in nodes for gene in genes):
        return {}  # no label of the split needs to be read
    if parts.split is not None:
        labels = [*itertools.chain(*parts.split.parts.values()), *parts.split.excluded]
        screen |= {gene for label in labels for gene in Condition.parse(label).genes}
    names = model_names(genes, screen, nodes.keys(), lambda gene: GeneAnnotation.human().resolve(gene))
    if names:
        shown = shorten(f"{old} is {new}" for old, new in names.items())
        logger.warning("%s under another name in this model: %s", count(len(names), "gene"), shown)
    return names


def _requested_condition(entry: str | Sequence[str] | Condition, parts: ModelParts) -> Condition:
    """A condition from a user's entry: a label as in the screen, a gene, or a list of genes (not empty)."""
    if isinstance(entry, Sequence) and len(entry) == 0:
        msg = "predict got an empty condition; give its genes, such as ['A', 'B'], or 'ctrl' for the control"
        raise ValueError(msg)
    return parts.spelling.condition(entry, parts.pert_names)


def in_contexts(
    conditions: Sequence[Condition],
    parts: ModelParts,
    context: str | Sequence[str] | None = None,
    kind: str | None = None,
) -> tuple[tuple[Condition, ...], list[Sequence[int]], np.ndarray]:
    """Conditions in the requested contexts, their nodes, and the control mean of each (or of all).

    Raises ValueError for a gene that is no node, or a context or type that the model lacks.
    """
    contexts = parts.contexts
    if contexts is None:
        if context is not None or kind is not None or any(condition.suffix for condition in conditions):
            msg = (
                "this model has one context and one type of perturbation; prepare the screen with context_key= or "
                "perturbation_type_key= and train on it, or omit context and type"
            )
            raise ValueError(msg)
        return tuple(conditions), list(nodes_of(conditions, parts.pert_names)), parts.control_mean_G
    units = contexts.placed(conditions, context, kind)
    sets = contexts.node_sets(units, nodes_of(units, parts.pert_names))
    return units, list(sets), contexts.control_means(units)
