"""How predictions look as AnnData: conditions x genes, with what is known of each and of the model.

``X`` is predicted expression, ``layers["delta"]`` its change over the control mean, ``layers["sd"]`` the predicted
standard deviation where the model has one. The names follow scverse: rows are named by condition, columns by gene.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears._install import __version__
from gears.conditions import Condition
from gears.data.splits.split import subgroup_names

if TYPE_CHECKING:
    from gears.training.model_folder import ModelParts

CONTENT = "predicted mean expression"


@dataclass(frozen=True)
class Origin:
    """What predictions came from.

    Attributes
    ----------
    gene_ids
        Ids of the G genes, as the index of the screen's ``var`` has them.
    fitted_to
        Conditions that the model was fitted to, the control among them; None where the model knows no split.
    description
        Plain values for ``uns``: dataset, hash of the screen, split.
    """

    gene_ids: tuple[str, ...]
    fitted_to: frozenset[Condition] | None = None
    description: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, parts: ModelParts) -> Origin:
        """The origin of what a model predicts."""
        split, told = parts.split, {}
        fitted = None
        if split is not None:
            train = split.conditions("train") if "train" in split.parts else []
            fitted = frozenset([*parts.fitted_conditions(), *(one for one in train if one.is_control)])
            told = {"split": split.name, "split_seed": split.seed, "split_hash": split.hash}
        plain = {
            name: value
            for name, value in {**parts.provenance, **told}.items()
            if isinstance(value, str | int | float)
        }
        return cls(parts.gene_ids, fitted, plain)


def condition_table(conditions: Sequence[Condition], origin: Origin | None) -> pd.DataFrame:
    """One row per condition: ``condition``, ``genes`` (joined by ","), ``n_genes``, ``subgroup``, ``trained``.

    ``subgroup`` says how many of the genes the conditions that the model was fitted to perturb ("combo_seen1",
    "unseen_single", "ctrl"), ``trained`` whether the condition is among them; both are omitted where that is
    not known.
    """
    names = [condition.name for condition in conditions]
    table = pd.DataFrame(
        {
            "condition": names,
            "genes": [",".join(condition.genes) for condition in conditions],
            "n_genes": [len(condition) for condition in conditions],
        },
        index=pd.Index(names),
    )
    if any(condition.suffix for condition in conditions):
        table["context"] = [condition.context for condition in conditions]
        table["perturbation_type"] = [condition.kind for condition in conditions]
    if origin is not None and origin.fitted_to is not None:
        table["subgroup"] = subgroup_names(conditions, origin.fitted_to)
        table["trained"] = [condition in origin.fitted_to for condition in conditions]
    return table


def gene_table(
    gene_names: Sequence[str], control_mean_G: np.ndarray | None, origin: Origin | None
) -> pd.DataFrame:
    """One row per gene: ``gene_name``, ``gene_id`` (where known), ``control_mean`` (where it is one for all)."""
    table = pd.DataFrame({"gene_name": list(gene_names)}, index=pd.Index(list(gene_names)))
    if origin is not None:
        table["gene_id"] = list(origin.gene_ids)
    if control_mean_G is not None:
        table["control_mean"] = np.array(control_mean_G, dtype=np.float64)
    return table


def provenance(clip: bool, origin: Origin | None, **more: Any) -> dict[str, Any]:
    """What stands in ``uns["gears"]``: plain values that h5ad and zarr hold."""
    told = {} if origin is None else dict(origin.description)
    return {"content": CONTENT, "clip": clip, "version": __version__, **told, **more}
