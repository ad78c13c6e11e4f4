"""The GEARS network, which computes each distinct condition once, and its initial weights.

Roohani, Huang, Leskovec, "Predicting transcriptional outcomes of novel multigene perturbations with GEARS", Nature
Biotechnology 2023. The predicted change depends on the condition alone, never on the cell: a forward costs one row per
gene and distinct condition, and one row per gene for the part that does not depend on the perturbation. Batch norm
counts each condition as often as it has cells. Co-expression messages reach every cell.

For prediction everything that conditions share is computed once (:class:`PreparedNetwork`). In evaluation mode a batch
norm is an affine map. It is folded into the linear map before it, and the last linear map of ``recovery_w`` into the
per-gene decoder: with r the hidden units of gene g,

    o_g = <W r + b, w1_g> + b1_g = <r, W^T w1_g> + (<b, w1_g> + b1_g),

so the second of its two matrix products is never computed. Genes are computed in blocks whose intermediate values stay
in the processor's cache: no tensor of size genes x conditions x hidden is ever in memory.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gears.conditions import Condition, NodeSet, contexts_of, kinds_of
from gears.distributed._world import IDENTITY, Reducer
from gears.graphs._graph import Graph
from gears.model._batchnorm import Note, WeightedBatchNorm, Weights, statistics_dtype, track
from gears.model._blockwise import BufferPool, Layer, gene_values
from gears.model.config import ModelConfig
from gears.model.layers import (
    MLP,
    BlankEmbedding,
    Division,
    Fallback,
    GraphLinear,
    Linear,
    Placing,
    Propagation,
    affine,
    applied,
    exact,
    folded,
)

MESSAGE_SHARE = 0.2  # published weight of co-expression messages beside a gene's own embedding

PER_GENE_TENSORS = ("indv_w1", "indv_b1", "indv_w2", "indv_b2")

# rows (genes x conditions) of a block: as many as leave the block in a cache of 1 MiB, or keep a GPU busy
BLOCK_ROWS = {"cpu": 2048}
GPU_BLOCK_ROWS = 1 << 19


class GEARSNetwork(nn.Module):
    """Predicts the change of every gene's expression for a set of perturbed genes.

    Parameters
    ----------
    go, coexpress
        Graphs over the P nodes of perturbations and the G measured genes.
    seed
        Seed of the initial weights, drawn from a local generator.
    n_contexts, kinds
        Number of contexts and names of types of perturbation (:class:`gears.model.layers.Placing`).

    Attributes
    ----------
    reducer
        Sums over workers in training mode, with a :class:`Division` of each batch; not part of the state dict.
        Every worker does the same collectives, whatever its conditions are.
    pool, most_kept
        Buffers that training steps share, and the bytes of hidden values that a step may keep for its
        gradient, for the changes and for the log-variances each; beyond, they are computed again
        (None: :data:`gears.model._blockwise.MOST_KEPT`).
    prior
        Prior that the network's change is added to where it is called with a batch of cells, or None.
    """

    prior: Any = None

    def __init__(
        self,
        go: Graph,
        coexpress: Graph,
        config: ModelConfig,
        *,
        seed: int = 0,
        n_contexts: int = 1,
        kinds: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.n_genes, self.n_perts, self.config = len(coexpress.nodes), len(go.nodes), config
        n_genes, n_perts = self.n_genes, self.n_perts
        self.reducer: Reducer = IDENTITY
        self.pool = BufferPool()
        self.most_kept: int | None = None
        size = config.hidden_size
        self.gene_emb = BlankEmbedding(n_genes, size)
        self.emb_pos = BlankEmbedding(n_genes, size)
        self.pert_emb = BlankEmbedding(n_perts, size)
        self.bn_emb = WeightedBatchNorm(size)
        self.bn_pert_base = WeightedBatchNorm(size)
        self.coexpress_graph, self.go_graph = Propagation(coexpress), Propagation(go)
        self.layers_emb_pos = nn.ModuleList(GraphLinear(size, size) for _ in range(config.num_gene_gnn_layers))
        self.sim_layers = nn.ModuleList(GraphLinear(size, size) for _ in range(config.num_go_gnn_layers))
        self.emb_trans_v2 = MLP([size, size, size])
        self.pert_fuse = MLP([size, size, size])
        self.recovery_w = MLP([size, 2 * size, size])
        self.cross_gene_state = MLP([n_genes, size, size])
        self.indv_w1 = nn.Parameter(torch.empty(n_genes, size, 1))
        self.indv_b1 = nn.Parameter(torch.empty(n_genes, 1))
        self.indv_w2 = nn.Parameter(torch.empty(1, n_genes, size + 1))
        self.indv_b2 = nn.Parameter(torch.empty(1, n_genes))
        if config.uncertainty:
            self.uncertainty_w = MLP([size, 2 * size, size, 1])
        self.fallback = Fallback()
        self.placing = Placing(n_contexts, kinds, size)
        self.to(torch.float32)  # whatever torch's default type is
        # a norm follows each of them, and takes a shift of all rows out again
        self.emb_trans_v2.parts()[1][-1].shifts_all = True
        cast(GraphLinear, self.layers_emb_pos[-1]).shifts_all = True
        self._shifts, self._zeros = tuple(self.shift_parameters()), list[Tensor]()
        initialise(self, seed)

    def shift_parameters(self) -> list[str]:
        """Parameters that only shift all rows of a batch norm, which takes the shift out again.

        In training their gradient is zero except for rounding errors, which Adam would scale up to
        steps that differ with the number of workers. They take no part, and their gradient is exactly zero.
        """
        names = ["emb_trans_v2.network.4.bias"]
        for name, module in self.named_modules():
            if isinstance(module, MLP):
                names += [f"{name}.network.{i}.bias" for i in range(0, len(module.network), 3)]
            elif isinstance(module, GraphLinear) and module.shifts_all:
                names.append(f"{name}.lin.bias")
        return names

    def trains_on(self, conditions: Iterable[Condition]) -> None:
        """Note the training conditions: where all perturb equally many genes, a bias of the graph layers is a shift."""
        last = cast(GraphLinear, self.sim_layers[-1])
        # the sum over a condition's genes holds the bias as often as it has genes: equally often is a shift of all rows
        last.shifts_all = len({len(condition.genes) for condition in conditions} - {0}) < 2
        self._shifts, self._zeros = tuple(self.shift_parameters()), []

    def hand_written(self) -> list[tuple[nn.Module, str]]:
        """Modules and methods with a hand-written backward and collectives, which a compiler must not trace."""
        modules = [module for module in self.modules() if isinstance(module, WeightedBatchNorm | Propagation)]
        return [(self, "_block_by_block"), *((module, "forward") for module in modules)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """:meth:`forward`; with a batch of cells alone the published form (:func:`_predict_cells`)."""
        if len(args) == 1 and not kwargs:
            return _predict_cells(self, args[0])
        return super().__call__(*args, **kwargs)

    def forward(
        self,
        pert_row: Tensor,
        pert_node: Tensor,
        weight: Tensor,
        *,
        context: Tensor | None = None,
        kind: Tensor | None = None,
        division: Division | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Changes of all genes under U conditions; in evaluation mode without a gradient (:class:`PreparedNetwork`).

        Parameters
        ----------
        pert_row, pert_node
            (M,) int64 each: condition ``pert_row[m]``, from 0 to U - 1, perturbs node ``pert_node[m]``. The control is
            a condition without entries. The order of entries has no effect.
        weight
            (U,) number of cells of each condition. U = 0 and weights of 0 are allowed.
        context, kind
            (U,) int64 numbers of each condition's context and type of perturbation; 0 where omitted.
        division
            With several workers, the conditions are those of the global batch, and this says which of them each worker
            computes: the outputs are this worker's.

        Returns
        -------
        delta_UG
            Change of expression (log scale); the prediction is a control's expression plus this.
        logvar_UG
            Log-variances; None without ``config.uncertainty``.
        """
        self.renormalise_embeddings()
        if not self.training:
            return PreparedNetwork(self).changes(pert_row, pert_node, len(weight), context, kind)
        self._leave_shifts()
        weight_U = weight.to(statistics_dtype(self.indv_w1.dtype))
        notes: list[Note] = []
        weights = Weights.of(weight_U)
        base_GH = self.base(weights.n_cells * self.n_genes, notes)
        effect_UH = self.placing(self._effects(pert_row, pert_node, weight_U, notes), context, kind)
        own_GU, logvar_GU = self._block_by_block(base_GH, effect_UH, weights, notes, division)
        delta_UG = self._all_changes(own_GU, weights, notes, division)
        track(notes)  # running statistics change at the end
        return delta_UG, None if logvar_GU is None else logvar_GU.t().to(delta_UG.dtype)

    def _leave_shifts(self) -> None:
        """Give parameters without an effect in training a gradient of zero."""
        if not torch.is_grad_enabled():
            return
        shifts = list(map(self.get_parameter, self._shifts))
        if not self._zeros or self._zeros[0].device != shifts[0].device or self._zeros[0].dtype != shifts[0].dtype:
            self._zeros = list(map(torch.zeros_like, shifts))
        for parameter, zero in zip(shifts, self._zeros, strict=True):
            if parameter.grad is None:
                parameter.grad = zero

    def _block_by_block(
        self, base_GH: Tensor, effect_UH: Tensor, weights: Weights, notes: list[Note], division: Division | None
    ) -> tuple[Tensor, Tensor | None]:
        """Value of each gene before its bias, (G, U), and its log-variance, in training mode."""
        device, dtype = base_GH.device.type, self.indv_w1.dtype
        terms = self.bn_pert_base.outer_terms(base_GH.to(dtype), effect_UH.to(dtype), weights, notes=notes)
        if division is not None:
            terms = terms[0], terms[1].index_select(0, division.own_rows)
            weights = Weights.of(division.own_weight)
        options: dict[str, Any] = {
            "eps": self.bn_pert_base.eps,
            "reducer": self.reducer,
            "pool": self.pool,
            "most_kept": self.most_kept,
        }
        if torch.is_autocast_enabled(device):
            options["matmul_dtype"] = torch.get_autocast_dtype(device)

        def values_by(mlp: MLP, decoder_GH: Tensor | None = None) -> Tensor:
            parts = list(zip(*mlp.parts(), strict=True))
            layers = [Layer(linear.weight, norm.weight, norm.bias) for linear, norm in parts]
            value_GU, statistics = gene_values(*terms, layers, weights, decoder_GH=decoder_GH, **options)
            for (linear, norm), moments in zip(parts, statistics, strict=True):
                notes.append(Note(norm, moments, linear.bias))
            return value_GU

        own_GU = values_by(self.recovery_w, self.indv_w1.squeeze(-1))
        return own_GU, values_by(self.uncertainty_w) if self.config.uncertainty else None

    @torch.no_grad()
    def renormalise_embeddings(self) -> None:
        """Shorten embedding rows longer than 1 to length 1, in place and without a gradient.

        Done for complete tables at the start of each forward, so it is the same on all workers. Rows of
        length 1 stay unchanged, so several forwards may share one backward; writing to ``.data``
        does not change autograd's version counter.
        """
        for embedding in (self.gene_emb, self.emb_pos, self.pert_emb):
            norm = torch.linalg.vector_norm(embedding.weight, dim=1, keepdim=True)
            longest = 1 + 8 * torch.finfo(norm.dtype).eps  # a row that was shortened once stays unchanged
            embedding.weight.data.mul_(torch.where(norm > longest, 1 / (norm + 1e-7), 1.0))

    @torch.no_grad()
    def prepared(self) -> PreparedNetwork:
        """A frozen copy for prediction: evaluation mode, everything that conditions share computed once."""
        was_training = self.training
        self.eval()
        try:
            self.renormalise_embeddings()
            return PreparedNetwork(self)
        finally:
            self.train(was_training)

    def node_messages(self) -> Tensor:
        """Messages that every perturbation node gets, before the last graph layer's linear map, (P, H)."""
        return self.fallback(self.go_graph(self._inner_nodes()))

    def base(self, count: Tensor | None = None, notes: list[Note] | None = None) -> Tensor:
        """Gene representations before any perturbation, (G, H), equal on all workers; `count` rows in the norms."""
        own_GH = self.bn_emb(self.gene_emb.weight, None, count, relu=True, notes=notes)
        messages_GH = self.emb_pos.weight
        for i, layer in enumerate(self.layers_emb_pos):
            messages_GH = layer(self.coexpress_graph(F.relu(messages_GH) if i else messages_GH))
        sum_GH = torch.add(own_GH, messages_GH, alpha=MESSAGE_SHARE)
        return self.emb_trans_v2(sum_GH, None, count, notes=notes)

    def _effects(self, pert_row: Tensor, pert_node: Tensor, weight_U: Tensor, notes: list[Note]) -> Tensor:
        """Effect of each condition on the representations, (U, H); zero for controls."""
        # the last messages and the last linear map are needed for the perturbed nodes only
        members_MH = self.sim_layers[-1](self.go_graph.of_nodes(self._inner_nodes(), pert_node))
        n_conditions = weight_U.shape[0]
        sums_UH = members_MH.new_zeros(n_conditions, members_MH.shape[1]).index_add(0, pert_row, members_MH)
        # controls have weight 0 instead of being removed, so that shapes do not depend on the data
        perturbed_U = weight_U.new_zeros(n_conditions).index_fill_(0, pert_row, 1.0)
        effect_UH = self.pert_fuse(sums_UH, Weights.of(weight_U * perturbed_U), notes=notes)
        return effect_UH * perturbed_U.unsqueeze(1).to(effect_UH.dtype)

    def _inner_nodes(self) -> Tensor:
        """Features of all perturbation nodes before the last propagation, (P, H)."""
        nodes_PH = self.pert_emb.weight
        for layer in self.sim_layers[:-1]:
            nodes_PH = F.relu(layer(self.go_graph(nodes_PH)))
        return nodes_PH

    def _all_changes(self, own_GU: Tensor, weights: Weights, notes: list[Note], division: Division | None) -> Tensor:
        """Changes from each gene's own value and the state of all genes, (U, G)."""
        own_UG = (own_GU + self.indv_b1).t()
        if division is None:
            state_UH = self.cross_gene_state(own_UG, weights, notes=notes)
        else:  # the norms see the rows of all workers
            weights = Weights.of(division.weight_WU.flatten())
            state_UH = self.cross_gene_state(own_UG, weights, notes=notes, exchanged=division.gathered)
            state_UH = division.own(state_UH)
        own_weight_G, state_weight_GH = self.indv_w2[0, :, 0], self.indv_w2[0, :, 1:]
        delta_UG = torch.addcmul(F.linear(state_UH, state_weight_GH, self.indv_b2[0]), own_weight_G, own_UG)
        delta_UG = delta_UG.to(self.indv_w1.dtype)
        return delta_UG * 0.0 if self.config.no_perturb else delta_UG


@torch.no_grad()
def initialise(network: nn.Module, seed: int) -> None:
    """Fill all parameters in place; the same seed gives the same values for any dtype and device.

    Embeddings are standard normal, linear layers torch's default (uniform within 1/sqrt(fan in)), per-gene tensors
    Xavier-normal, batch norms 1 and 0. The global random state is not touched.
    """
    generator = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.Embedding):
            module.weight.copy_(_drawn(module.weight).normal_(generator=generator))
        elif isinstance(module, nn.Linear):
            bound = 1 / math.sqrt(module.in_features)
            for parameter in (module.weight, module.bias):
                parameter.copy_(_drawn(parameter).uniform_(-bound, bound, generator=generator))
    for name in PER_GENE_TENSORS:
        parameter = getattr(network, name)
        parameter.copy_(nn.init.xavier_normal_(_drawn(parameter), generator=generator))


@torch.no_grad()
def start_from(network: nn.Module, start_PH: np.ndarray) -> None:
    """Replace initial rows of the perturbation embedding; those that are NaN in `start_PH` stay random."""
    table = network.get_parameter("pert_emb.weight")
    known_P = torch.from_numpy(~np.isnan(start_PH).any(axis=1)).to(table.device)
    table[known_P] = torch.from_numpy(start_PH).to(table)[known_P]


def _drawn(parameter: Tensor) -> Tensor:
    """A float32 tensor on the CPU to draw into, so that draws do not depend on dtype or device."""
    return torch.empty(parameter.shape, dtype=torch.float32)


def begin_at_zero(network: GEARSNetwork) -> None:
    """Let the network's change start at zero: its last layer is set to zero."""
    with torch.no_grad():
        network.indv_w2.zero_()
        network.indv_b2.zero_()


class PreparedNetwork:
    """A frozen copy of a network in evaluation mode; made by :meth:`GEARSNetwork.prepared`."""

    def __init__(self, network: GEARSNetwork) -> None:
        self.no_perturb = network.config.no_perturb
        parameter = network.indv_w1
        self.device, self.dtype, self.n_genes = parameter.device, parameter.dtype, network.n_genes
        scale_H, shift_H = affine(network.bn_pert_base)
        self._base_GH = self._own(exact(network.base()) * scale_H + shift_H)
        self._scale_H = self._own(scale_H)
        self._message_PH = network.node_messages()
        last_layer = cast(GraphLinear, network.sim_layers[-1]).lin
        self._last_layer = last_layer.weight.clone(), last_layer.bias.clone()
        self._fuse = self._owned(folded(network.pert_fuse))
        self._placing = copy.deepcopy(network.placing)
        *hidden, last = folded(network.recovery_w)
        self._hidden = self._owned(hidden)
        weight_GH = exact(network.indv_w1.squeeze(-1))
        self._decoder_GK = self._own(weight_GH @ last[0])
        self._decoder_G = self._own(weight_GH @ last[1] + exact(network.indv_b1.squeeze(-1)))
        self._cross = self._owned(folded(network.cross_gene_state))
        self._own_G = network.indv_w2[0, :, 0].clone()
        self._state = network.indv_w2[0, :, 1:].clone(), network.indv_b2[0].clone()
        self._logvar = self._owned(folded(network.uncertainty_w)) if network.config.uncertainty else None

    def __call__(self, nodes: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None]:
        """Changes of all genes under U conditions, and their log-variances.

        `nodes` are those of the perturbation graph that each condition perturbs; none for the control. A
        :class:`gears.conditions.NodeSet` also has context and perturbation type. Log-variances are None without
        ``config.uncertainty``.
        """
        row = torch.tensor([i for i, members in enumerate(nodes) for _ in members], dtype=torch.int64)
        node = torch.tensor([j for members in nodes for j in members], dtype=torch.int64)
        context, kind = torch.from_numpy(contexts_of(nodes)), torch.from_numpy(kinds_of(nodes))
        row, node, context, kind = [numbers.to(self.device) for numbers in (row, node, context, kind)]
        return self.changes(row, node, len(nodes), context, kind)

    @torch.no_grad()
    def changes(
        self,
        pert_row: Tensor,
        pert_node: Tensor,
        n_conditions: int,
        context: Tensor | None = None,
        kind: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The same from the arguments of :meth:`GEARSNetwork.forward`."""
        effect_UH = self._effects(pert_row, pert_node, n_conditions, context, kind)
        own_GU = torch.empty(self.n_genes, n_conditions, device=self.device, dtype=self.dtype)
        logvar_GU = torch.empty_like(own_GU) if self._logvar is not None else None
        step = max(1, BLOCK_ROWS.get(self.device.type, GPU_BLOCK_ROWS) // max(1, n_conditions))
        for begin in range(0, self.n_genes, step):
            genes = slice(begin, begin + step)
            self._block(genes, effect_UH, own_GU, logvar_GU)
        own_UG = own_GU.t()
        state_UH = applied(self._cross, own_UG)
        delta_UG = torch.addmm(self._state[1], state_UH, self._state[0].t()).addcmul_(own_UG, self._own_G)
        if self.no_perturb:
            delta_UG = delta_UG * 0.0
        return delta_UG, None if logvar_GU is None else logvar_GU.t()

    def _block(self, genes: slice, effect_UH: Tensor, own_GU: Tensor, logvar_GU: Tensor | None) -> None:
        """Compute the value of each gene of a block (and log-variance) and write it in place."""
        base_BH = self._base_GH[genes]
        n_block, n_conditions = len(base_BH), len(effect_UH)
        rows_RH = (base_BH.unsqueeze(1) + effect_UH).relu_().flatten(0, 1)
        hidden_RK = rows_RH
        for weight, bias in self._hidden:
            hidden_RK = torch.addmm(bias, hidden_RK, weight.t()).relu_()
        hidden_BUK = hidden_RK.reshape(n_block, n_conditions, hidden_RK.shape[1])
        decoder_BK1 = self._decoder_GK[genes].unsqueeze(-1)
        own_BU1 = torch.baddbmm(self._decoder_G[genes].view(-1, 1, 1), hidden_BUK, decoder_BK1)
        own_GU[genes] = own_BU1.squeeze(-1)
        if logvar_GU is not None and self._logvar is not None:
            logvar_GU[genes] = applied(self._logvar, rows_RH).reshape(n_block, n_conditions)

    def _effects(
        self, row: Tensor, node: Tensor, n_conditions: int, context: Tensor | None, kind: Tensor | None
    ) -> Tensor:
        """Scaled effect of each condition on the representations, (U, H); zero for controls."""
        member_MH = F.linear(self._message_PH[node], *self._last_layer)  # for the perturbed nodes only
        sums_UH = member_MH.new_zeros(n_conditions, member_MH.shape[1]).index_add_(0, row, member_MH)
        effect_UH = applied(self._fuse, sums_UH)
        perturbed_U = torch.zeros(n_conditions, dtype=torch.bool, device=self.device).index_fill_(0, row, True)
        effect_UH = torch.where(perturbed_U.unsqueeze(1), effect_UH, 0.0)
        return self._placing(effect_UH, context, kind) * self._scale_H

    def _owned(self, layers: Sequence[Linear]) -> list[Linear]:
        return [(self._own(weight), self._own(bias)) for weight, bias in layers]

    def _own(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, self.dtype).contiguous()


def _predict_cells(network: GEARSNetwork, batch: Any) -> Tensor | tuple[Tensor, Tensor]:
    """Expression of every cell of a batch, (B, G): its control cell's plus its condition's change; and log-variances.

    The batch has ``x`` (B * G, 1), control expression, and ``pert_idx``, the B cells' perturbation nodes ([-1] for a
    control cell): one of the loaders, or of torch-geometric. For a network of several contexts they hold each cell's
    context (:class:`gears.conditions.NodeSet`), as those of the loaders do. Each distinct condition is computed once.
    """
    has_settings = not network.placing.is_trivial
    if has_settings and not all(isinstance(nodes, NodeSet) for nodes in batch.pert_idx):
        msg = (
            "the batches do not contain the cells' contexts, and this network has several; use the loaders of the "
            "PertData, or GEARS.predict(..., context=...)"
        )
        raise ValueError(msg)
    cells = [_cell_key(nodes) for nodes in batch.pert_idx]
    conditions = list(dict.fromkeys(cells))
    row_of = {condition: row for row, condition in enumerate(conditions)}
    node_sets = [NodeSet(nodes, context=context, kind=kind) for nodes, context, kind in conditions]
    device = batch.x.device
    row_B = torch.tensor([row_of[cell] for cell in cells], dtype=torch.long, device=device)
    settings = {"context": contexts_of(node_sets), "kind": kinds_of(node_sets)} if has_settings else {}
    change_UG, logvar_UG = network(
        torch.tensor([row for row, nodes in enumerate(node_sets) for _ in nodes], dtype=torch.long, device=device),
        torch.tensor([node for nodes in node_sets for node in nodes], dtype=torch.long, device=device),
        torch.bincount(row_B, minlength=len(conditions)).to(torch.float32),
        **{name: torch.from_numpy(numbers).to(device) for name, numbers in settings.items()},
    )
    expression_BG = batch.x.reshape(len(cells), -1) + _with_prior(network, node_sets, change_UG)[row_B]
    return expression_BG if logvar_UG is None else (expression_BG, logvar_UG[row_B])


def _cell_key(nodes: Sequence[int]) -> tuple[tuple[int, ...], int, int]:
    """Sorted nodes of a cell without the control's -1, its context and its perturbation type."""
    cell_nodes = tuple(sorted(int(node) for node in nodes if int(node) >= 0))
    return cell_nodes, getattr(nodes, "context", 0), getattr(nodes, "kind", 0)


def _with_prior(network: GEARSNetwork, sets: Sequence[NodeSet], change_UG: Tensor) -> Tensor:
    """Changes of prior and network together; of the network alone where there is no prior."""
    prior = network.prior
    if prior is None:
        return change_UG
    prior_UG = np.asarray(prior(sets))
    return torch.as_tensor(prior_UG).to(change_UG) + prior.network_weight * change_UG
