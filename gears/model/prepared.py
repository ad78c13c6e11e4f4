"""The network for prediction: everything that conditions share is computed once, in evaluation mode.

In evaluation mode a batch norm is an affine map. It is folded into the linear map before it, and
the last linear map of ``recovery_w`` into the per-gene decoder: with r the hidden units of gene g,

    o_g = <W r + b, w1_g> + b1_g = <r, W^T w1_g> + (<b, w1_g> + b1_g),

so the second of its two matrix products is never computed. Genes are computed in blocks whose intermediate values stay
in the processor's cache: no tensor of size genes x conditions x hidden is ever in memory.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gears.conditions import NodeSet, contexts_of, kinds_of

if TYPE_CHECKING:
    from gears.model.batchnorm import WeightedBatchNorm
    from gears.model.layers import MLP
    from gears.model.network import GEARSNetwork

Linear = tuple[Tensor, Tensor]  # weight (out, in), bias (out,)

# rows (genes x conditions) of a block: as many as leave the block in a cache of 1 MiB, or keep a GPU busy
BLOCK_ROWS = {"cpu": 2048}
GPU_BLOCK_ROWS = 1 << 19


class PreparedNetwork:
    """A frozen copy of a network in evaluation mode; made by :meth:`GEARSNetwork.prepared`.

    Later changes of the network's weights do not affect it.
    """

    def __init__(self, network: GEARSNetwork) -> None:
        self.no_perturb = network.config.no_perturb
        parameter = network.indv_w1
        self.device, self.dtype, self.n_genes = parameter.device, parameter.dtype, network.n_genes
        scale_H, shift_H = affine(network.bn_pert_base)
        self._base_GH = self._own(exact(network.base()) * scale_H + shift_H)
        self._scale_H = self._own(scale_H)
        self._node_PH = network.node_effects()
        self._fuse = self._folded(network.pert_fuse)
        self._placing = copy.deepcopy(network.placing)
        *hidden, last = folded(network.recovery_w)
        self._hidden = [self._own_pair(layer) for layer in hidden]
        weight_GH = exact(network.indv_w1.squeeze(-1))
        self._decoder_GK = self._own(weight_GH @ last[0])
        self._decoder_G = self._own(weight_GH @ last[1] + exact(network.indv_b1.squeeze(-1)))
        self._cross = self._folded(network.cross_gene_state)
        self._own_G = network.indv_w2[0, :, 0].clone()
        self._state = network.indv_w2[0, :, 1:].clone(), network.indv_b2[0].clone()
        self._logvar = self._folded(network.uncertainty_w) if network.config.uncertainty else None

    def __call__(self, nodes: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None]:
        """Changes of all genes under U conditions, and their log-variances.

        `nodes` are those of the perturbation graph that each condition perturbs; none for the control. A
        :class:`gears.conditions.NodeSet` also has context and perturbation type. Log-variances are None without
        ``config.uncertainty``.
        """
        row = torch.tensor([i for i, members in enumerate(nodes) for _ in members], dtype=torch.int64)
        node = torch.tensor([j for members in nodes for j in members], dtype=torch.int64)
        numbers = (torch.from_numpy(numbers_U) for numbers_U in (contexts_of(nodes), kinds_of(nodes)))
        return self.changes(
            row.to(self.device), node.to(self.device), len(nodes), *(n.to(self.device) for n in numbers)
        )

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
        state_UH = _apply(self._cross, own_UG)
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
            logvar_GU[genes] = _apply(self._logvar, rows_RH).reshape(n_block, n_conditions)

    def _effects(
        self,
        row: Tensor,
        node: Tensor,
        n_conditions: int,
        context: Tensor | None,
        kind: Tensor | None,
    ) -> Tensor:
        """Scaled effect of each condition on the representations, (U, H); zero for controls."""
        sums_UH = self._node_PH.new_zeros(n_conditions, self._node_PH.shape[1])
        effect_UH = _apply(self._fuse, sums_UH.index_add_(0, row, self._node_PH[node]))
        perturbed_U = torch.zeros(n_conditions, dtype=torch.bool, device=self.device).index_fill_(
            0, row, True
        )
        effect_UH = torch.where(perturbed_U.unsqueeze(1), effect_UH, 0.0)
        return self._placing(effect_UH, context, kind) * self._scale_H

    def _folded(self, mlp: MLP) -> list[Linear]:
        return [self._own_pair(layer) for layer in folded(mlp)]

    def _own_pair(self, layer: Linear) -> Linear:
        return self._own(layer[0]), self._own(layer[1])

    def _own(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, self.dtype).contiguous()


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


def _apply(layers: Sequence[Linear], rows: Tensor) -> Tensor:
    for position, (weight, bias) in enumerate(layers):
        rows = F.linear(rows if position == 0 else rows.relu_(), weight, bias)
    return rows


def predict_cells(network: GEARSNetwork, batch: Any) -> Tensor | tuple[Tensor, Tensor]:
    """Expression of every cell of a batch: its control cell's plus the change of its condition.

    Parameters
    ----------
    network
        Each distinct condition is computed once; in training mode batch norms count its cells.
    batch
        Has ``x`` (B * G, 1), control expression, and ``pert_idx``, the B cells' perturbation nodes
        ([-1] for a control cell): a batch of the loaders, or one of torch-geometric. For a network of several
        contexts they hold each cell's context (:class:`gears.conditions.NodeSet`), as those of the loaders do.

    Returns
    -------
    Tensor, or (Tensor, Tensor) with ``config.uncertainty``
        (B, G) expression, and log-variances.
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
        torch.tensor(
            [row for row, nodes in enumerate(node_sets) for _ in nodes], dtype=torch.long, device=device
        ),
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
