"""The head in training: several members of the same shape side by side.

Member k is trained without the conditions of fold k, and its predictions for these say what the head is worth on
conditions that it has not seen. The last member is trained on all conditions and is the one that predicts. All members
go through the same matrix products, so that a training with folds takes one run.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

HIDDEN = 32
"""Width of both hidden layers."""


class SharedHead(nn.Module):
    """M small networks from the inputs of a gene under a condition to its change.

    All members begin with the same weights, and with the last layer at zero: the head begins as the prior alone.

    `n_members`: number of members, M.
    `limit`: inputs are cut at so many standard deviations.
    `seed`: seed of the initial weights.
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
        widths = [len(centre_F), HIDDEN, HIDDEN, 1]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for n_in, n_out in itertools.pairwise(widths):
            bound = 0.0 if n_out == 1 else 1 / math.sqrt(n_in)
            weight = torch.empty(n_in, n_out).uniform_(-1, 1, generator=generator) * bound
            bias = torch.empty(1, n_out).uniform_(-1, 1, generator=generator) * bound
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
            (_plain(weight[member]), _plain(bias[member, 0]))
            for weight, bias in zip(self.weights, self.biases, strict=True)
        )


def _plain(tensor: Tensor) -> np.ndarray:
    return np.asarray(tensor.detach().cpu().double().numpy())
