"""Adam as torch has it, without what torch imports for compiled optimisers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _bare(function: Callable[..., Any]) -> Callable[..., Any]:
    """A method without torch's wrapper that keeps it out of compiled graphs (where there is one)."""
    return getattr(function, "__wrapped__", function)


_step = _bare(torch.optim.Adam.step)


class Adam(torch.optim.Adam):
    """``torch.optim.Adam`` whose construction does not import ``torch._dynamo``.

    That import takes one to two CPU seconds and some 100 MB in every worker, and serves only optimisers
    that are compiled themselves. Steps and saved state are those of ``torch.optim.Adam``.
    """

    add_param_group = _bare(torch.optim.Optimizer.add_param_group)
    state_dict = _bare(torch.optim.Optimizer.state_dict)
    load_state_dict = _bare(torch.optim.Optimizer.load_state_dict)
    zero_grad = _bare(torch.optim.Optimizer.zero_grad)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step; see ``torch.optim.Adam``."""
        return _step(self, closure)
