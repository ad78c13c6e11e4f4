"""The Gaussian-process prior of a run: fitted to conditions of a split and kept with the screen."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from gears.assembly import perturbed_in
from gears.caching import cached_arrays
from gears.conditions import Condition
from gears.contexts.prior import prior_source
from gears.files import content_hash
from gears.model.network import GEARSNetwork
from gears.priors import FittedPrior, Prior, read_prior

if TYPE_CHECKING:
    from gears.pertdata import PertData

FORMAT = 9  # raise when a prior of the same key would come out differently


def prior_of(
    pert_data: PertData, parts: Sequence[str] = ("train",), start_PH: np.ndarray | None = None
) -> FittedPrior | None:
    """The prior fitted to the perturbed conditions of some parts of the split; None where there is none.

    It comes from the screen's cache where it was fitted before. It depends on the screen, these conditions
    and the annotation, on nothing else: neither on other conditions nor on the network or the number of workers.

    Parameters
    ----------
    parts
        Parts of the split.
    start_PH
        Embeddings of all perturbation nodes for a second similarity, (P, H); NaN where a node has none.
    """
    conditions = _perturbed(pert_data, parts)
    if not conditions:
        return None
    screen, source = pert_data.screen, prior_source(pert_data)
    key = {
        "format": FORMAT,
        "screen": screen.content_hash,
        "conditions": [screen.id_of(condition) for condition in conditions],
        "groups": [str(group) for group in source.groups(conditions)],
        "nodes": [str(name) for name in pert_data.pert_names],
        "annotation": pert_data.annotation.content_hash,
        "start": None if start_PH is None else content_hash(start_PH),
    }

    def fit() -> dict[str, np.ndarray]:
        fitted = source.fit(conditions, source.data(conditions, start_PH))
        report = np.array(json.dumps(dict(fitted.prior.report)))
        return {**fitted.prior.arrays(), "report": report, "left_out": fitted.left_out_CG}

    arrays = cached_arrays(screen.folder / "priors", "prior", key, fit)
    report = json.loads(str(arrays.pop("report")))
    left_out_CG = arrays.pop("left_out")
    return FittedPrior(dataclasses.replace(read_prior(arrays, report), network_weight=0.0), left_out_CG)


def prior_rows(pert_data: PertData, fitted: FittedPrior) -> np.ndarray:
    """Changes by condition of the screen, (C, G) float32: each training condition predicted without itself, else 0.

    So the network learns the errors that the prior makes on conditions that it has not seen.
    """
    screen = pert_data.screen
    rows_CG = np.zeros((len(screen.conditions), len(screen.gene_names)), dtype=np.float32)
    rows_CG[[screen.id_of(condition) for condition in _perturbed(pert_data, ("train",))]] = fitted.left_out_CG
    return rows_CG


def begin_at_zero(network: GEARSNetwork) -> None:
    """Let the network's change start at zero: its last layer is set to zero."""
    with torch.no_grad():
        network.indv_w2.zero_()
        network.indv_b2.zero_()


def closed_form(pert_data: PertData, parts: Sequence[str] = ("train",)) -> Prior:
    """The prior alone, fitted to the perturbed conditions of some parts of the split."""
    conditions = _perturbed(pert_data, parts)
    source = prior_source(pert_data)
    fitted = source.fit(conditions, source.data(conditions))
    return dataclasses.replace(fitted.prior, network_weight=0.0)


def _perturbed(pert_data: PertData, parts: Sequence[str]) -> list[Condition]:
    """Perturbed conditions of some parts by their id, so that the order of a split does not matter."""
    named = [condition for part in parts for condition in perturbed_in(pert_data.split, part)]
    return sorted(named, key=pert_data.screen.id_of)
