"""Several models of one screen as one: the mean of their predictions and how far they are apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gears.conditions import Condition
from gears.files import user_path
from gears.gears import GEARS
from gears.many import RunOutcome
from gears.predictions import Predictions
from gears.training.model_folder import difference


@dataclass(frozen=True, eq=False)
class EnsemblePredictions(Predictions):
    """Mean over M models, with their spread; everything else as in :class:`Predictions`.

    Attributes
    ----------
    spread_UG
        Standard deviation of the models' predictions, before clipping (M - 1 in the denominator).
    n_models
        M.
    logvar_UG
        Where the models predict a variance: log of its mean plus the squared spread (the
        variance of the mixture, up to the denominator); else None. Lakshminarayanan et al. 2017, section 2.4.
    """

    spread_UG: np.ndarray | None = None
    n_models: int = 0

    def spread(self, key: Any) -> np.ndarray:
        """Spread of one condition, (G,)."""
        return self._values("spread")[self._row(key)]

    def _sd_UG(self) -> np.ndarray | None:
        own_UG = super()._sd_UG()
        return self.spread_UG if own_UG is None and self.spread_UG is not None else own_UG

    def _provenance(self) -> dict[str, Any]:
        return super()._provenance() | {"n_models": self.n_models}

    def _values(self, values: str) -> np.ndarray:
        if values == "spread":
            assert self.spread_UG is not None
            return self.spread_UG
        return super()._values(values)


class Ensemble:
    """Models of the same genes whose predictions are averaged.

    Parameters
    ----------
    models
        At least two trained models with the same genes and perturbation nodes.

    Raises
    ------
    ValueError
        There are fewer than two, or they do not belong together; both sides are named.

    Examples
    --------
    >>> ensemble = Ensemble.load(["models/seed1", "models/seed2"])
    >>> ensemble
    Ensemble(2 models, 40 genes)
    >>> ensemble.predict(["AHR+KLF1"]).to_frame("spread").shape
    (1, 40)
    """

    def __init__(self, models: Sequence[GEARS]) -> None:
        if len(models) < 2:
            msg = f"an ensemble has at least two models; found {len(models)}"
            raise ValueError(msg)
        self.models = list(models)
        first = models[0]._need_model()
        for number, model in enumerate(models[1:], start=2):
            parts = model._need_model()
            for kind in ("gene_names", "pert_names"):
                there, here = getattr(first, kind), getattr(parts, kind)
                if there != here:
                    msg = f"models 1 ('there') and {number} ('here') have other {kind}: {difference(there, here)}"
                    raise ValueError(msg)
            if not np.allclose(first.control_mean_G, parts.control_mean_G):
                msg = f"models 1 and {number} have another control mean: they were trained on other control cells"
                raise ValueError(msg)

    def __len__(self) -> int:
        return len(self.models)

    def __repr__(self) -> str:
        return f"Ensemble({len(self)} models, {len(self.gene_list)} genes)"

    @classmethod
    def load(
        cls, members: Iterable[str | Path | RunOutcome], device: str | torch.device | None = None
    ) -> Ensemble:
        """From saved folders, or from what :func:`gears.train_many` returned (failed runs are left out)."""
        paths = [
            member.save_path if isinstance(member, RunOutcome) else member
            for member in members
            if not (isinstance(member, RunOutcome) and not member.ok)
        ]
        return cls([GEARS.from_pretrained(path, device=device) for path in paths])

    @property
    def gene_list(self) -> list[str]:
        """Genes whose expression is predicted, G."""
        return self.models[0].gene_list

    @property
    def pert_list(self) -> list[str]:
        """Genes that can be perturbed."""
        return self.models[0].pert_list

    def predict(
        self, pert_list: Iterable[str | Sequence[str] | Condition], *, clip: bool = True, chunk: int = 32
    ) -> EnsemblePredictions:
        """Mean and spread of the models' predictions (see :meth:`GEARS.predict`)."""
        if not isinstance(pert_list, str | Condition):
            pert_list = list(pert_list)
        each = [model.predict(pert_list, clip=False, chunk=chunk) for model in self.models]
        stacked_MUG = np.stack([predictions.expression_UG for predictions in each])
        mean_UG, spread_UG = stacked_MUG.mean(axis=0), stacked_MUG.std(axis=0, ddof=1)
        first = each[0]
        return EnsemblePredictions(
            first.conditions,
            first.gene_names,
            np.maximum(mean_UG, 0.0) if clip else mean_UG,
            first.control_mean_G,
            _total_logvar(each, spread_UG),
            clip,
            first.origin,
            spread_UG=spread_UG,
            n_models=len(each),
        )


def _total_logvar(each: Sequence[Predictions], spread_UG: np.ndarray) -> np.ndarray | None:
    logvars = [predictions.logvar_UG for predictions in each if predictions.logvar_UG is not None]
    if len(logvars) < len(each):
        return None
    return np.log(np.mean([np.exp(logvar) for logvar in logvars], axis=0) + spread_UG**2)


def ensemble_configs(
    config: Mapping[str, Any], seeds: Sequence[int], folder: str | Path
) -> list[dict[str, Any]]:
    """A configuration of :func:`gears.train_many` per seed: other initial weights, the same screen and split.

    Parameters
    ----------
    config
        Common to all; a ``save_path`` in it is replaced.
    seeds
        Of the initial weights, one model each.
    folder
        The models go to ``<folder>/seed-<seed>``.
    """
    if len(set(seeds)) < len(seeds):
        msg = f"seeds {list(seeds)} has a seed twice: two models would be the same"
        raise ValueError(msg)
    configs = []
    for seed in seeds:
        args = dict(config.get("args") or {})
        args["model_config"] = {**(args.get("model_config") or {}), "seed": seed}
        args["save_path"] = str(user_path(folder) / f"seed-{seed}")
        configs.append(dict(config) | {"args": args})
    return configs
