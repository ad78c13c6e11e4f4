"""Which training conditions a prediction rests on: parts that add up to it, with the weights of measured changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.conditions import Condition, check_one_change
from gears.core._messages import count, shorten
from gears.core._numbers import whole_number
from gears.prediction._information import effective_number, name_of_training, shares_of_weights
from gears.prediction._stream import in_contexts, predict, requested_conditions, requested_genes
from gears.priors._decomposition import MEAN, MEASURED, OFFSET, SHARED, Decomposition, decompose
from gears.priors._explain import OWN

if TYPE_CHECKING:
    from gears.model._folder import ModelParts
    from gears.model.network import GEARSNetwork
    from gears.priors._prior import GenePrior

HEAD, NETWORK, CLIPPED = "correction network", "network", "no expression below 0"
COLUMNS = ("part", "condition", "similarity", "group", "cells", "weight", "share", "without")
_COMMON = dict.fromkeys((OFFSET, SHARED, MEAN), "what conditions share")
_LEAST_SHARE = 0.005  # of a group in the text
_MINOR = "other conditions"


@dataclass(frozen=True, eq=False)
class Explanation:
    """A prediction as a sum of parts, the result of :meth:`gears.GEARS.explain`.

    Attributes
    ----------
    condition
        The condition that is predicted.
    prediction
        Predicted changes of the chosen genes, by gene.
    table
        One row per part. ``part``: "condition" for what a training condition gives through one similarity, "others"
        for all conditions of a group that are not listed, else the step of the model: offset, shared (what perturbed
        genes have in common), factor for several genes, slope, on-target, correction network, network.
        ``condition``, ``similarity`` ("own": the same gene; "measured": its own measurement; or a name of
        :data:`gears.graphs.SIMILARITIES`), ``group`` (what the text calls the part), ``cells`` of the condition,
        ``weight`` of its measured change (mean over genes, by squared prediction; before factor and slope). What a
        condition adds is the weight times what it shows beyond the mean of the conditions (of its context).
        ``share`` of the prediction: 1 for all parts together, below 0 for what points the other way. ``without``: by
        how much the prediction changes where the condition is not there, on the same scale.
    changes
        What each row of the table adds to the predicted change, rows x genes; the sum of the rows is `prediction`.
    n_effective
        Effective number of training conditions: 1 / sum of squared shares of their weights.
    """

    condition: Condition
    prediction: pd.Series
    table: pd.DataFrame
    changes: pd.DataFrame
    n_effective: float

    @property
    def groups(self) -> pd.Series:
        """Share of the prediction by group, largest first."""
        shares = self.table.groupby("group", sort=False)["share"].sum()
        return shares.reindex(shares.abs().sort_values(ascending=False, kind="stable").index)

    @property
    def text(self) -> str:
        """One line: the groups with their shares of the prediction, and the effective number of conditions."""
        shown = [f"{100 * share:.0f} % {group}" for group, share in self.groups.items() if abs(share) >= _LEAST_SHARE]
        rests = "1 condition" if self.n_effective < 1.05 else f"{self.n_effective:.1f} conditions"
        return f"{self.condition.name}: {', '.join(shown) or 'no change'}; effectively rests on {rests}"

    @property
    def _shown(self) -> pd.DataFrame:
        """The table without missing cell numbers."""
        cells = self.table["cells"]
        return self.table.assign(cells=cells.astype(object).where(cells.notna(), ""))

    def __str__(self) -> str:
        columns = [name for name in COLUMNS if name not in ("part", "group")]
        is_condition = self.table["condition"] != ""
        named = self._shown.assign(condition=self.table["condition"].where(is_condition, self.table["part"]))
        return f"{self.text}\n\n{named[columns].to_string(index=False, float_format='{:.3f}'.format, na_rep='')}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        table = self._shown.to_html(index=False, border=0, float_format="{:.3f}".format, na_rep="")
        return f'<p>{self.text}</p><div style="overflow-x: auto">{table}</div>'


def explain(
    network: GEARSNetwork | None,
    parts: ModelParts,
    condition: str | Sequence[str] | Condition,
    genes: str | Iterable[str] | None = None,
    n: int = 10,
) -> Explanation:
    """Explain one prediction; see :meth:`gears.GEARS.explain`."""
    n, prior = whole_number("n", n), parts.prior
    if prior is None:
        msg = 'only predictions of a prior are sums over conditions; this model has none: train(prior="auto") fits one'
        raise ValueError(msg)
    one, nodes = _placed(parts, condition)
    columns = _columns(parts, genes)
    predictions = predict(network, parts, [one], warn=False)
    # parts add up to the prediction before values below 0 are cut; what that adds is a step
    unclipped = predict(network, parts, [one], clip=False, warn=False) if predictions.clip else predictions
    terms = decompose(prior, nodes)
    steps = _steps(prior, nodes, terms, predictions.delta_UG[0], unclipped.delta_UG[0])
    prediction_G = predictions.delta_UG[0][columns]
    table, change_RN = _table(parts, one, terms, steps, prediction_G, columns, n)
    names = np.asarray(parts.gene_names)[columns]
    n_effective = effective_number(shares_of_weights(prior, [nodes]))
    return Explanation(
        one,
        pd.Series(prediction_G, index=pd.Index(names, name="gene"), name="change"),
        table,
        pd.DataFrame(change_RN, columns=pd.Index(names, name="gene")),
        float(n_effective[0]),
    )


def _placed(parts: ModelParts, condition: str | Sequence[str] | Condition) -> tuple[Condition, Sequence[int]]:
    """One perturbed condition in one context, and its nodes."""
    requested = requested_conditions([condition], parts)
    units, nodes, _ = in_contexts(requested, parts)
    check_one_change(units, "explain")
    return units[0], nodes[0]


def _columns(parts: ModelParts, genes: str | Iterable[str] | None) -> np.ndarray:
    """Columns of the chosen genes, all by default."""
    if genes is None:
        return np.arange(len(parts.gene_names))
    names = requested_genes([genes] if isinstance(genes, str) else genes, parts)
    column = {name: number for number, name in enumerate(parts.gene_names)}
    unknown = [name for name in names if name not in column]
    if unknown or not names:
        msg = f"{shorten(unknown, 3) or 'no gene'} cannot be explained; give measured genes of the screen"
        raise ValueError(msg)
    return np.array([column[name] for name in names], dtype=np.int64)


def _steps(
    prior: GenePrior, nodes: Sequence[int], terms: Decomposition, change_G: np.ndarray, unclipped_G: np.ndarray
) -> dict[str, np.ndarray]:
    """The steps of the prior, and what head, network and clipping add."""
    steps = dict(terms.steps)
    without_head_G = prior.without_head([nodes])[0]
    prior_G = prior([nodes])[0]
    more = {HEAD: prior_G - without_head_G, NETWORK: unclipped_G - prior_G, CLIPPED: change_G - unclipped_G}
    has = {HEAD: prior.head is not None, NETWORK: prior.network_weight > 0, CLIPPED: bool(more[CLIPPED].any())}
    return steps | {name: step_G for name, step_G in more.items() if has[name]}


def _group(condition: Condition, other: Condition, link: str) -> str:
    """What the text calls what another condition gives to a prediction through a link."""
    if other == condition:
        return "its own measurement"
    genes, here = set(other.genes), set(condition.genes)
    if link in (OWN, MEASURED):
        common = "+".join(sorted(genes & here))
        if len(genes) == 1:
            text = "measured singles" if len(here) > 1 else f"{common} measured"
        elif genes <= here:
            text = "measured pairs of its genes" if genes < here else "the same genes measured"
        else:
            text = f"{'pairs' if len(genes) == 2 else 'combinations'} with {common}"
    else:
        text = f"genes alike in {link}"
    pairs = ((other.context, condition.context), (other.kind, condition.kind))
    return " in ".join([text, *(there for there, mine in pairs if there != mine)])


def _table(
    parts: ModelParts,
    condition: Condition,
    terms: Decomposition,
    steps: dict[str, np.ndarray],
    prediction_G: np.ndarray,
    columns: np.ndarray,
    n: int,
) -> tuple[pd.DataFrame, np.ndarray]:
    """Table and changes of an explanation."""
    square = float((prediction_G**2).sum())
    along_G = prediction_G / square if square > 0 else np.zeros_like(prediction_G)
    change_RG = terms.change_RG[:, columns]
    share_R, weight_R = change_RG @ along_G, terms.weight_RG[:, columns] @ (prediction_G * along_G)
    order = np.argsort(-np.abs(share_R), kind="stable")
    assert parts.prior is not None
    assert parts.prior.basis is not None
    n_C = parts.prior.basis.n_C
    conditions = {row: name_of_training(parts, row) for row in dict.fromkeys(terms.rows_R.tolist())}
    groups = [
        _group(condition, conditions[row], link) for row, link in zip(terms.rows_R.tolist(), terms.links, strict=True)
    ]
    listed = order[:n].tolist()
    rows = list(dict.fromkeys(terms.rows_R[listed].tolist()))
    without = dict(zip(rows, (terms.without(rows)[:, columns] @ along_G).tolist(), strict=True))
    records: list[tuple[Any, ...]] = []
    changes = [change_RG[listed]]
    for part in listed:
        row = int(terms.rows_R[part])
        name, weight, share = conditions[row].name, float(weight_R[part]), float(share_R[part])
        records.append(
            ("condition", name, terms.links[part], groups[part], float(n_C[row]), weight, share, without[row])
        )
    others: dict[tuple[str, str], list[int]] = {}
    for part in order[n:].tolist():
        others.setdefault((groups[part], terms.links[part]), []).append(part)
    minor = [key for key, of_group in others.items() if abs(share_R[of_group].sum()) < _LEAST_SHARE]
    if len(minor) > 1:
        others[_MINOR, ""] = [part for key in minor for part in others.pop(key)]
    for (group, link), of_group in others.items():
        changes.append(change_RG[of_group].sum(axis=0)[None])
        name = count(len(set(terms.rows_R[of_group].tolist())), "other")
        weight, share = float(np.nansum(weight_R[of_group])), float(share_R[of_group].sum())
        records.append(("others", name, link, group, np.nan, weight, share, np.nan))
    for name, step_G in steps.items():
        if step_G[columns].any():
            changes.append(step_G[columns][None])
            share = float(step_G[columns] @ along_G)
            records.append((name, "", "", _COMMON.get(name, name), np.nan, np.nan, share, np.nan))
    table = pd.DataFrame(records, columns=list(COLUMNS)).astype({"cells": "Int64"})
    return table, np.concatenate(changes)
