"""Weights and settings of the published package, translated to this one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gears.messages import shorten
from gears.model.config import ModelConfig

# parameters that the published network holds and never uses
UNUSED_PREFIXES = ("pert_w.", "bn_pert_base_trans.")
WRAPPER_PREFIXES = ("module.", "_orig_mod.")
# what a published config holds beside settings: sizes, graphs and devices, which come from elsewhere
RUNTIME_KEYS = frozenset(
    {"device", "num_genes", "num_perts", "G_go", "G_go_weight", "G_coexpress", "G_coexpress_weight"}
)
# the published objective, which a published config does not name
PUBLISHED_OBJECTIVE = {"direction": "sign", "uncertainty_kind": "gears"}


def without_wrapper(key: str) -> str:
    """A parameter's own name, without what DistributedDataParallel and torch.compile put before it.

    Examples
    --------
    >>> without_wrapper("module._orig_mod.bn_emb.weight")
    'bn_emb.weight'
    """
    stripped = key
    while stripped.startswith(WRAPPER_PREFIXES):
        stripped = stripped.split(".", 1)[1]
    return stripped


def published_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """State dict of this package's network from a published or a wrapped one.

    Wrapper prefixes are stripped key by key, unused tensors (``pert_w.*``,
    ``bn_pert_base_trans.*``) are dropped by name, everything else is kept. Load the result
    with ``network.load_state_dict(...)``, which names what is missing or too much.

    Raises
    ------
    ValueError
        If two keys name the same parameter once stripped.
    """
    mapped: dict[str, Tensor] = {}
    clashes = []
    for key, tensor in state.items():
        name = without_wrapper(key)
        if name.startswith(UNUSED_PREFIXES):
            continue
        if name in mapped:
            clashes.append(name)
        mapped[name] = tensor
    if clashes:
        msg = (
            f"the state dict holds these parameters with and without a wrapper's prefix: {shorten(clashes)}; "
            f"expected each once: remove one of the two (prefixes: {', '.join(WRAPPER_PREFIXES)})"
        )
        raise ValueError(msg)
    return mapped


def published_config(values: Mapping[str, Any]) -> ModelConfig:
    """Settings from a published ``config`` dictionary.

    The published objective is kept (``direction="sign"``, ``uncertainty_kind="gears"``)
    unless the dictionary names another. Settings of other releases are warned about.
    """
    settings = {key: value for key, value in values.items() if key not in RUNTIME_KEYS}
    return ModelConfig.from_dict({**PUBLISHED_OBJECTIVE, **settings})
