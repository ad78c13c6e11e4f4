"""Layers of network and head: perceptron, propagation on a fixed graph, settings, and their division over workers.

Propagation computes, as torch-geometric's ``SGConv`` does,

    messages = S x,    S = D^-1/2 A D^-1/2    (:attr:`gears.graphs.Graph.normalised_weight`)

The graph never changes, so S is computed once, when the graph is built, and kept as compressed rows,
(start, column, value); the backward multiplies with the transpose, which is kept as well
because its rows cannot be read from the first form without a scatter. A sum of weighted embeddings per row
(``F.embedding_bag``) reads each edge once: gathering one message per edge, (E, H), and scattering them takes about 50
times as long. Where messages of a few nodes are needed only, a table of each node's neighbours, (n, K), gives them by
one small product. ``tests/model/test_model_propagation.py`` compares with ``SGConv`` of torch-geometric.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gears.data.screen._contexts import type_signs
from gears.distributed._world import Reducer
from gears.graphs._graph import Graph
from gears.model._batchnorm import Note, WeightedBatchNorm, Weights, statistics_dtype

Linear = tuple[Tensor, Tensor]  # weight (out, in), bias (out,)
WIDEST = 64
"""Widest table of neighbours: with more neighbours of any node, messages are always computed for all nodes."""


class MLP(nn.Module):
    """Layers of the given sizes (input, hidden, output), named ``network.0``, ``network.1``, ... as published.

    Weights are uninitialised: the network fills them from a local generator.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for n_in, n_out in pairwise(sizes):
            layers += [BlankLinear(n_in, n_out), WeightedBatchNorm(n_out), nn.ReLU()]
        self.network = nn.Sequential(*layers[:-1])

    def parts(self) -> tuple[list[BlankLinear], list[WeightedBatchNorm]]:
        """Linear maps and batch norms, layer by layer."""
        layers = range(0, len(self.network), 3)
        linears = [cast(BlankLinear, self.network[i]) for i in layers]
        return linears, [cast(WeightedBatchNorm, self.network[i + 1]) for i in layers]

    def forward(
        self,
        rows: Tensor,
        weight: Weights | Tensor | None = None,
        count: Tensor | float | None = None,
        notes: list[Note] | None = None,
        *,
        exchanged: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Apply to rows (U, H); arguments as in :class:`WeightedBatchNorm`.

        `exchanged` is applied to the values of the first linear map, (U, hidden).
        """
        linears, norms = self.parts()
        for linear, norm in zip(linears, norms, strict=True):
            # in training the norm takes a shift of all rows out again
            values = F.linear(rows, linear.weight) if self.training else linear(rows)
            if exchanged is not None and norm is norms[0]:
                values = exchanged(values)
            shift, relu = linear.bias.detach(), norm is not norms[-1]
            rows = norm(values, weight, count, relu=relu, notes=notes, shift=shift)
        return rows


class BlankEmbedding(nn.Embedding):
    """An embedding table with uninitialised rows.

    ``torch.nn.utils.skip_init`` does the same through the meta device, whose first use imports ``torch._dynamo``
    (seconds in every worker and every loaded model).
    """

    def reset_parameters(self) -> None:
        """Keep the weights uninitialised."""


class BlankLinear(nn.Linear):
    """A linear layer with uninitialised weights."""

    def reset_parameters(self) -> None:
        """Keep the weights uninitialised."""


class Rows(NamedTuple):
    """A sparse matrix by rows: row i holds entries ``start[i]:start[i + 1]``."""

    column: Tensor  # (E,) int64
    start: Tensor  # (n + 1,) int64
    value: Tensor  # (E,)


class Propagation(nn.Module):
    """x -> D^-1/2 A D^-1/2 x for a fixed graph; nodes without edges keep their own features."""

    forward_column: Tensor
    forward_start: Tensor
    forward_value: Tensor
    backward_column: Tensor
    backward_start: Tensor
    backward_value: Tensor
    near_column: Tensor
    near_value: Tensor

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.n_nodes = n_nodes = len(graph.nodes)
        source, target = torch.from_numpy(graph.normalised_edge_index)
        value = torch.from_numpy(graph.normalised_weight.copy())
        forward, backward = _by_rows(target, source, value, n_nodes), _by_rows(source, target, value, n_nodes)
        near = _padded(forward)
        self._exact = (forward.value, backward.value, near.value)  # float64: a cast must not round a rounded value
        dtype = torch.get_default_dtype()
        self.register_buffer("near_column", near.column, persistent=False)
        self.register_buffer("near_value", near.value.to(dtype), persistent=False)
        for prefix, rows in (("forward", forward), ("backward", backward)):
            self.register_buffer(f"{prefix}_column", rows.column, persistent=False)
            self.register_buffer(f"{prefix}_start", rows.start, persistent=False)
            self.register_buffer(f"{prefix}_value", rows.value.to(dtype), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Propagate node features (n_nodes, H)."""
        matrix = Rows(self.forward_column, self.forward_start, self.forward_value)
        transpose = Rows(self.backward_column, self.backward_start, self.backward_value)
        return _Propagate.apply(x.to(self.forward_value.dtype), matrix, transpose)

    def of_nodes(self, x: Tensor, nodes: Tensor) -> Tensor:
        """Messages of some nodes only, (M, H): the same rows as those of :meth:`forward`."""
        if self.near_column.shape[1] == 0:  # some node has very many neighbours
            return self(x).index_select(0, nodes)
        x = x.to(self.near_value.dtype)
        column_MK, value_MK = self.near_column[nodes], self.near_value[nodes]
        near_MKH = x.index_select(0, column_MK.flatten()).view(*column_MK.shape, x.shape[1])
        return torch.bmm(value_MK.unsqueeze(1), near_MKH).squeeze(1)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Propagation:
        """Move or cast like any module, but always round the weights from float64, not from an earlier cast."""
        super()._apply(fn, recurse)
        self.forward_value = self._exact[0].to(self.forward_value)
        self.backward_value = self._exact[1].to(self.backward_value)
        self.near_value = self._exact[2].to(self.near_value)
        return self

    def extra_repr(self) -> str:
        """Shown by ``print(network)``."""
        return f"{self.n_nodes} nodes, {self.forward_column.shape[0]} edges with self loops"


class GraphLinear(nn.Module):
    """The learned part of a graph convolution, named as in ``SGConv``: ``lin``."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.lin = BlankLinear(n_in, n_out)
        self.shifts_all = False  # as in a batch norm: then the bias takes no part in training

    def forward(self, x: Tensor) -> Tensor:
        """Apply to propagated features (n, n_in)."""
        return F.linear(x, self.lin.weight, self.lin.bias.detach() if self.shifts_all else self.lin.bias)


def _by_rows(row: Tensor, column: Tensor, value: Tensor, n_rows: int) -> Rows:
    order = torch.argsort(row, stable=True)
    start = torch.zeros(n_rows + 1, dtype=torch.long)
    start[1:] = torch.bincount(row, minlength=n_rows).cumsum(0)
    return Rows(column[order], start, value[order])


def _padded(rows: Rows) -> Rows:
    """The entries of each row as a table, (n, K), padded with zeros; K = 0 if it were wider than WIDEST."""
    n_rows, length = len(rows.start) - 1, rows.start.diff()
    width = int(length.max()) if n_rows else 0
    if width > WIDEST:
        width = 0
    column = torch.zeros(n_rows, width, dtype=torch.long)
    value = torch.zeros(n_rows, width, dtype=rows.value.dtype)
    if width:
        row = torch.repeat_interleave(torch.arange(n_rows), length)
        position = torch.arange(len(row)) - rows.start[row]
        column[row, position], value[row, position] = rows.column, rows.value
    return Rows(column, rows.start, value)


def _sum_rows(matrix: Rows, x: Tensor) -> Tensor:
    """Sparse times dense: a bag of weighted embeddings per row."""
    x = x.contiguous()
    return F.embedding_bag(
        matrix.column, x, matrix.start, mode="sum", per_sample_weights=matrix.value, include_last_offset=True
    )


class _Propagate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Rows, transpose: Rows) -> Tensor:
        ctx.transpose = transpose
        return _sum_rows(matrix, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _sum_rows(ctx.transpose, grad), None, None


class Placing(nn.Module):
    """effect -> type_scale[type] x effect x (1 + scale[context]) + shift[context].

    Scale and shift begin at zero and the sign of a type at 1 (-1 for activation), so that a network of
    several contexts begins like the published one. With a single context, or a single type, there are
    no such parameters. A context without training conditions, or beyond those of the network, takes the mean of the
    trained contexts.
    `size` is the width of the effects, H.
    """

    seen: Tensor

    def __init__(self, n_contexts: int, kinds: tuple[str, ...], size: int) -> None:
        super().__init__()
        self.n_contexts, self.kinds = n_contexts, tuple(kinds)
        if n_contexts > 1:
            self.context_shift = nn.Parameter(torch.zeros(n_contexts, size))
            self.context_scale = nn.Parameter(torch.zeros(n_contexts, size))
        if len(kinds) > 1:
            self.type_scale = nn.Parameter(torch.tensor(type_signs(kinds)).unsqueeze(1).repeat(1, size))
        self.register_buffer("seen", torch.ones(max(n_contexts, 1), dtype=torch.bool), persistent=False)

    @property
    def is_trivial(self) -> bool:
        """Whether the effects stay unchanged: one context, one type."""
        return self.n_contexts <= 1 and len(self.kinds) <= 1

    def trained_on(self, contexts: set[int]) -> None:
        """Set the contexts that have training conditions; an empty set means all."""
        is_trained = torch.tensor([not contexts or context in contexts for context in range(len(self.seen))])
        self.seen = is_trained.to(self.seen.device)

    def forward(self, effect_UH: Tensor, context_U: Tensor | None, kind_U: Tensor | None) -> Tensor:
        """Effects of conditions (zero for controls) in their contexts, (U, H); omitted numbers, (U,) int64, are 0."""
        if self.is_trivial:
            return effect_UH
        first_U = torch.zeros(len(effect_UH), dtype=torch.int64, device=effect_UH.device)
        context_U, kind_U = (first_U if number_U is None else number_U for number_U in (context_U, kind_U))
        if len(self.kinds) > 1:
            effect_UH = effect_UH * self.type_scale[kind_U]
        if self.n_contexts > 1:
            effect_UH = effect_UH * (1 + self._rows(self.context_scale, context_U))
            effect_UH = effect_UH + self._rows(self.context_shift, context_U)
        return effect_UH

    def _rows(self, table_KH: Tensor, context_U: Tensor) -> Tensor:
        if not self.training:
            mean_H = table_KH[self.seen].mean(0)
            table_KH = torch.cat([torch.where(self.seen.unsqueeze(1), table_KH, mean_H), mean_H[None]])
            context_U = context_U.clamp(max=len(table_KH) - 1)
        return table_KH[context_U]


HEAD_HIDDEN = 32
"""Width of both hidden layers of a head."""


class SharedHead(nn.Module):
    """M small networks side by side, from the inputs of a gene under a condition to its change: a head in training.

    Member k is trained without the conditions of fold k, and its predictions for these say what the head is worth on
    conditions that it has not seen. The last member is trained on all conditions and is the one that predicts. All go
    through the same matrix products, so that a training with folds takes one run. They begin with the same weights, the
    last layer at zero: the head begins as the prior alone. Inputs are cut at `limit` standard deviations.
    """

    # centre_F, spread_F: mean and standard deviation of the inputs
    centre_F: Tensor
    spread_F: Tensor

    def __init__(
        self, centre_F: np.ndarray, spread_F: np.ndarray, n_members: int, *, limit: float, seed: int = 0
    ) -> None:
        super().__init__()
        self.limit = limit
        self.register_buffer("centre_F", torch.as_tensor(centre_F, dtype=torch.float32))
        self.register_buffer("spread_F", torch.as_tensor(spread_F, dtype=torch.float32))
        generator = torch.Generator().manual_seed(seed)
        widths = [len(centre_F), HEAD_HIDDEN, HEAD_HIDDEN, 1]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for n_in, n_out in pairwise(widths):
            bound = 0.0 if n_out == 1 else 1 / math.sqrt(n_in)
            shapes = (n_in, n_out), (1, n_out)
            weight, bias = (
                torch.empty(shape, dtype=torch.float32).uniform_(-1, 1, generator=generator) * bound for shape in shapes
            )
            self.weights.append(nn.Parameter(weight.repeat(n_members, 1, 1)))
            self.biases.append(nn.Parameter(bias.repeat(n_members, 1, 1)))

    def forward(self, inputs_UGF: Tensor) -> Tensor:
        """Changes of all genes by each member, (M, U, G)."""
        n_conditions, n_genes, _ = inputs_UGF.shape
        inputs_UGF = ((inputs_UGF - self.centre_F) / self.spread_F).clamp(-self.limit, self.limit)
        n_members, n_inputs = self.weights[0].shape[:2]
        rows = inputs_UGF.reshape(1, n_conditions * n_genes, n_inputs)
        values = rows.expand(n_members, -1, -1)
        last = len(self.weights) - 1
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            values = torch.baddbmm(bias, values, weight)
            values = values if number == last else F.silu(values)
        return values.reshape(n_members, n_conditions, n_genes)

    def layers_of(self, member: int) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
        """Weight (in, out) and bias (out,) of each layer of a member, float64."""
        return tuple(
            (weight[member].detach().cpu().double().numpy(), bias[member, 0].detach().cpu().double().numpy())
            for weight, bias in zip(self.weights, self.biases, strict=True)
        )


@dataclass(frozen=True)
class Division:
    """Which conditions of the global batch each worker computes; the same on all workers.

    Everything that depends on conditions alone, a few vectors of H numbers each, is computed by every worker for all
    conditions of the global batch: its norms then need no collective, forward or backward. What depends on genes as
    well is computed by the worker that has the condition's cells. Without uncertainty a step of the network has

        2 gathers, 2 sums     the norms of ``recovery_w``, one after the other: each needs the one before
        1 gather, 1 sum       the inputs of the norms of ``cross_gene_state``, (U, H) of each worker (:meth:`gathered`)
        1 sum                 all gradients

    The norms depend on each other in this order, so fewer collectives are possible only by computing rows twice.
    """

    rows_WU: Tensor
    """(W, U) int64 rows of the global batch's conditions; U is the largest number of any worker. Padding is 0."""
    weight_WU: Tensor  # (W, U) cells of the condition on that worker; 0 for padding
    sizes: tuple[int, ...]  # number of conditions of each worker
    reducer: Reducer  # sums over workers, and this worker's rank

    @property
    def own_rows(self) -> Tensor:
        """Rows of this worker's conditions, (n,)."""
        return self.rows_WU[self.reducer.rank, : self.sizes[self.reducer.rank]]

    @property
    def own_weight(self) -> Tensor:
        """Cells of this worker's conditions, (n,)."""
        return self.weight_WU[self.reducer.rank, : self.sizes[self.reducer.rank]]

    def gathered(self, values_UH: Tensor) -> Tensor:
        """Rows of all workers, (W U, H), from this worker's; differentiable."""
        values_UH = values_UH.to(statistics_dtype(values_UH.dtype))
        return _Gathered.apply(values_UH, self.rows_WU.shape[1], self.reducer)

    def own(self, rows_WUH: Tensor) -> Tensor:
        """This worker's rows of those of all workers, (n, H)."""
        start = self.reducer.rank * self.rows_WU.shape[1]
        return rows_WUH[start : start + self.sizes[self.reducer.rank]]


class _Gathered(torch.autograd.Function):
    """Rows of all workers; the gradient of a row is the sum of what it has on every worker."""

    @staticmethod
    def forward(ctx: Any, values_UH: Tensor, n_rows: int, reducer: Reducer) -> Tensor:
        ctx.n_own, ctx.n_rows, ctx.reducer = len(values_UH), n_rows, reducer
        return reducer.gather(F.pad(values_UH, (0, 0, 0, n_rows - len(values_UH)))).flatten(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        start = ctx.reducer.rank * ctx.n_rows
        return ctx.reducer.sum(grad)[start : start + ctx.n_own], None, None


class Fallback(nn.Module):
    """Gives isolated nodes without training conditions, whose embedding is random, the mean of the trained messages."""

    unknown: Tensor
    trained: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("unknown", "trained"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.int64), persistent=False)

    def set(self, edge_index: np.ndarray, n_nodes: int, trained: Iterable[int]) -> None:
        """Find the nodes from a graph's edges (2, E) and the nodes perturbed in training."""
        trained_T = np.unique(np.fromiter(trained, dtype=np.int64))
        alone_P = np.ones(n_nodes, dtype=bool)
        # an edge brings a message to its target; self edges do not count
        alone_P[edge_index[1, edge_index[0] != edge_index[1]]] = False
        alone_P[trained_T] = False
        unknown = np.flatnonzero(alone_P) if len(trained_T) else np.empty(0, dtype=np.int64)
        self.unknown = torch.from_numpy(unknown).to(self.unknown.device)
        self.trained = torch.from_numpy(trained_T).to(self.trained.device)

    def forward(self, nodes_PH: Tensor) -> Tensor:
        """Messages of all nodes, those of unknown ones replaced."""
        if not len(self.unknown):
            return nodes_PH
        mean_H = nodes_PH.index_select(0, self.trained).mean(0)
        return nodes_PH.index_copy(0, self.unknown, mean_H.expand(len(self.unknown), -1))


def exact(tensor: Tensor) -> Tensor:
    """A float64 copy, where the tensor is or, on devices without float64, on the CPU."""
    tensor = tensor.detach()
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def affine(norm: WeightedBatchNorm) -> tuple[Tensor, Tensor]:
    """Scale and shift (H,), float64, of a batch norm in evaluation mode."""
    scale_H = exact(norm.weight) * torch.rsqrt(exact(norm.running_var) + norm.eps)
    return scale_H, exact(norm.bias) - exact(norm.running_mean) * scale_H


def folded(mlp: MLP) -> list[Linear]:
    """The linear maps (float64) of an MLP in evaluation mode, batch norms folded in; ReLU goes between them."""
    layers = []
    for linear, norm in zip(*mlp.parts(), strict=True):
        scale_H, shift_H = affine(norm)
        layers.append((exact(linear.weight) * scale_H.unsqueeze(1), exact(linear.bias) * scale_H + shift_H))
    return layers


def applied(layers: Sequence[Linear], rows: Tensor) -> Tensor:
    """The folded layers of an MLP, applied to rows; what they compute between them is overwritten."""
    for position, (weight, bias) in enumerate(layers):
        rows = F.linear(rows if position == 0 else rows.relu_(), weight, bias)
    return rows
