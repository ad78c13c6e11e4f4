"""Initial weights from a local generator, distributed as in the published package."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

PER_GENE_TENSORS = ("indv_w1", "indv_b1", "indv_w2", "indv_b2")


@torch.no_grad()
def initialise(network: nn.Module, seed: int) -> None:
    """Fill all parameters in place; the same seed gives the same values for any dtype and device.

    Embeddings are standard normal, linear layers torch's default (uniform
    within 1/sqrt(fan in)), per-gene tensors Xavier-normal, batch norms 1 and 0.
    The global random state is not touched.
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
    """Let rows of the perturbation embedding start from given vectors; NaN rows stay as they were drawn."""
    table = network.get_parameter("pert_emb.weight")
    known_P = torch.from_numpy(~np.isnan(start_PH).any(axis=1)).to(table.device)
    table[known_P] = torch.from_numpy(start_PH).to(table)[known_P]


def _drawn(parameter: Tensor) -> Tensor:
    """A CPU tensor of single precision to draw into, so that draws do not depend on dtype or device."""
    return torch.empty(parameter.shape, dtype=torch.float32)
