"""Scale and shift a condition's effect by its context and perturbation type, before it is combined with the genes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ACTIVATION = ("crispra", "activation", "overexpression", "sunact", "oe")
"""Words in the name of a perturbation type that raises expression; its sign starts at -1 beside types that lower it."""


class Placing(nn.Module):
    """effect -> type_scale[type] x effect x (1 + scale[context]) + shift[context].

    Scale and shift begin at zero and the sign of a type at 1 (-1 for activation), so that a network of
    several contexts begins like the published one. With a single context, or a single type, there are
    no such parameters. A context without training conditions takes the mean of the trained contexts.
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
            sign = [-1.0 if any(word in name.lower() for word in ACTIVATION) else 1.0 for name in kinds]
            self.type_scale = nn.Parameter(torch.tensor(sign).unsqueeze(1).repeat(1, size))
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
        if not self.training and not bool(self.seen.all()):  # the second waits for the device
            mean_H = table_KH[self.seen].mean(0)
            table_KH = torch.where(self.seen.unsqueeze(1), table_KH, mean_H)
        return table_KH[context_U]
