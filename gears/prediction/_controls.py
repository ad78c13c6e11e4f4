"""A model with one more context, of which control cells are given: a line that no training saw."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gears.data.checks._controls import control_cells
from gears.data.reading._open import in_reach
from gears.data.screen._contexts import ModelContexts
from gears.priors._new_settings import Controls, with_context

if TYPE_CHECKING:
    from gears.model._folder import ModelParts

logger = logging.getLogger(__name__)


def with_controls(parts: ModelParts, adata: Any, name: str | None = None) -> tuple[ModelParts, str]:
    """The model with the context of some control cells (AnnData, in the units of the screen), and its name.

    ValueError for cells that cannot be used, or a name that the model has.
    """
    name = "controls" if name is None else name
    contexts = parts.contexts
    if contexts is None:  # what the model was trained on is its only context
        contexts = ModelContexts(("",), (), parts.control_mean_G[None])
    elif not contexts.contexts:
        contexts = dataclasses.replace(contexts, contexts=("",))
    if not isinstance(name, str) or name in contexts.contexts:
        msg = f"the context of the controls is {name!r}; give a new name, the model has {', '.join(contexts.contexts)}"
        raise ValueError(msg)
    scale = parts.provenance.get("scale")
    adata = in_reach(adata.to_memory() if getattr(adata, "isbacked", False) else adata, Path())
    cells, is_there_G = control_cells(adata, parts.gene_names, parts.gene_ids, scale)
    mean_G = np.asarray(cells.mean(axis=0), dtype=np.float64).ravel()
    square_G = np.asarray(cells.multiply(cells).mean(axis=0), dtype=np.float64).ravel()
    sd_G = np.sqrt(np.maximum(square_G - mean_G**2, 0.0))
    trained = {condition.context for condition in parts.training_conditions()} & set(contexts.contexts)
    rows = [number for number, one in enumerate(contexts.contexts) if one in trained or not trained]
    mean_G = np.where(is_there_G, mean_G, contexts.control_mean_KG[rows].mean(axis=0))
    if len(rows) < 2:
        logger.warning(
            "this model was trained on one context: nothing shows how much of it carries over to another; half of the "
            "variance of the effects is taken to be the other's own"
        )
    known_KG = contexts.is_measured_KG
    contexts = dataclasses.replace(
        contexts,
        contexts=(*contexts.contexts, name),
        control_mean_KG=np.vstack([contexts.control_mean_KG, mean_G]),
        is_measured_KG=None if known_KG is None else np.vstack([known_KG, is_there_G]),
    )
    prior = parts.prior
    if prior is not None:
        prior = with_context(prior, Controls(mean_G, sd_G, float(cells.shape[0])))
    return dataclasses.replace(parts, contexts=contexts, prior=prior), name
