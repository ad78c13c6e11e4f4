"""What the prior of a run is fitted to and judged by, for a screen with contexts and for one without."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gears.conditions import Condition
from gears.contexts.means import control_means
from gears.data.unit_screen import UnitScreen
from gears.evaluation.scoring import by_setting
from gears.evaluation.truth import Truth
from gears.node_sets import contexts_of, kinds_of
from gears.priors import FittedPrior, fit_prior, judge, mean_of, means_without, prior_data
from gears.priors.context_fit import fit_context_prior
from gears.priors.context_process import UnitData
from gears.priors.evidence import sample
from gears.priors.fit import Criterion
from gears.priors.screen import criterion_of, data_of, most_judged

if TYPE_CHECKING:
    from gears.data.screen import PreparedScreen
    from gears.pertdata import PertData


class PriorSource:
    """A screen as its prior sees it.

    Parameters
    ----------
    pert_data
        The screen with its nodes, annotation and split.
    screen
        Of one context.
    """

    def __init__(self, pert_data: PertData, screen: PreparedScreen) -> None:
        self.pert_data, self.screen = pert_data, screen

    def _nodes(self, conditions: Sequence[Condition]) -> list[Sequence[int]]:
        return [self.pert_data.condition_nodes(condition) for condition in conditions]

    @property
    def _names(self) -> list[str]:
        return [str(name) for name in self.pert_data.pert_names]

    def data(self, conditions: Sequence[Condition], vectors_PH: np.ndarray | None = None) -> Any:
        """What is fitted, with ``subset(rows)`` and ``sets``; vectors of nodes are a second similarity."""
        nodes, plain = self._nodes(conditions), [condition.plain for condition in conditions]
        return prior_data(self.screen, plain, nodes, self._names, self.pert_data.annotation, vectors_PH)

    def fit(self, conditions: Sequence[Condition], data: Any) -> FittedPrior:
        """The prior of training conditions; of very many a fixed sample is judged."""
        plain = [condition.plain for condition in conditions]
        rows = sample(len(plain), most_judged(len(self.screen.gene_names)))
        some = [plain[row] for row in rows.tolist()]
        return fit_prior(data, judge(self.screen, some, means_without(self.screen, plain, rows)), rows)

    def known_means(self, inner: Sequence[Condition], held_out: Sequence[Condition]) -> np.ndarray:
        """Train mean of each held-out condition, (U, G)."""
        return np.repeat(mean_of(self.screen, [one.plain for one in inner])[None], len(held_out), axis=0)

    def judge(self, conditions: Sequence[Condition], known_mean_UG: np.ndarray) -> Criterion:
        """Error of predicted changes (:func:`gears.priors.judge`)."""
        return judge(self.screen, [condition.plain for condition in conditions], known_mean_UG)

    def groups(self, conditions: Sequence[Condition]) -> list[Hashable]:
        """What is held out together: here every condition by itself."""
        return list(range(len(conditions)))


class UnitSource(PriorSource):
    """A screen of several contexts or types of perturbation."""

    screen: UnitScreen

    def data(self, conditions: Sequence[Condition], vectors_PH: np.ndarray | None = None) -> UnitData:
        """Changes of units against the control of their context."""
        screen, nodes, names = self.screen, self._nodes(conditions), self._names
        ids = np.array([screen.id_of(unit) for unit in conditions], dtype=np.int64)
        mean_KG, n_kinds = control_means(screen), max(1, len(screen.kinds))
        delta_CG, mean_G = screen.statistics.delta(ids), mean_KG.mean(axis=0)
        units = data_of(screen, ids, delta_CG, mean_G, nodes, names, self.pert_data.annotation, vectors_PH)
        groups = self.groups(conditions)
        numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
        setting_C = contexts_of(nodes) * n_kinds + kinds_of(nodes)
        group_C = np.array([numbers[group] for group in groups], dtype=np.int64)
        return UnitData(units, setting_C, np.repeat(mean_KG, n_kinds, axis=0), n_kinds, group_C, nodes)

    def fit(self, conditions: Sequence[Condition], data: UnitData) -> FittedPrior:
        """The prior of training units; of very many a fixed sample is judged."""
        chosen = sample(len(conditions), most_judged(len(self.screen.gene_names)))
        known_RG = np.empty((len(chosen), len(self.screen.gene_names)))
        for _, rows in by_setting(self.screen, conditions):
            here, places = np.isin(chosen, rows), np.flatnonzero(np.isin(rows, chosen))
            units = [conditions[row] for row in rows.tolist()]
            known_RG[here] = means_without(self.screen, units, places)
        some = [conditions[row] for row in chosen.tolist()]
        return fit_context_prior(data, self.judge(some, known_RG), chosen)

    def known_means(self, inner: Sequence[Condition], held_out: Sequence[Condition]) -> np.ndarray:
        """Mean of the inner units of the same setting; without any, the control plus the mean change elsewhere."""
        screen = self.screen
        ids = np.array([screen.id_of(unit) for unit in inner], dtype=np.int64)
        change_G = screen.statistics.delta(ids).mean(axis=0)
        known_UG = np.empty((len(held_out), len(screen.gene_names)))
        for row, unit in enumerate(held_out):
            same = [one for one in inner if (one.context, one.kind) == (unit.context, unit.kind)]
            control = screen.statistics.mean[screen.id_of(Condition((), unit.context))]
            known_UG[row] = mean_of(screen, same) if same else control + change_G
        return known_UG

    def judge(self, conditions: Sequence[Condition], known_mean_UG: np.ndarray) -> Criterion:
        """Mean over units of the criterion within each setting."""
        parts = [
            (rows, criterion_of(Truth.of(view, [conditions[row].plain for row in rows]), known_mean_UG[rows]))
            for view, rows in by_setting(self.screen, conditions)
        ]

        def criterion(delta_UG: np.ndarray) -> float:
            total = sum(len(rows) * part(delta_UG[rows]) for rows, part in parts)
            return float(total) / max(1, len(conditions))

        return criterion

    def groups(self, conditions: Sequence[Condition]) -> list[Hashable]:
        """What is left out together where predictions of unseen units are imitated.

        Contexts, where the split holds whole contexts out and two or more train; single units, where it
        holds units out; else conditions in all their contexts.
        """
        split = self.pert_data.split
        name = "" if split is None else split.name
        if name == "context_held_out" and len({unit.context for unit in conditions}) > 1:
            return [unit.context for unit in conditions]
        if name == "unit_held_out":
            return list(range(len(conditions)))
        return [unit.genes for unit in conditions]


def prior_source(pert_data: PertData) -> PriorSource:
    """The source of a screen's prior; one context and type is a screen like any other."""
    screen = pert_data.screen
    if not isinstance(screen, UnitScreen):
        return PriorSource(pert_data, screen)
    if len(screen.settings) == 1:
        return PriorSource(pert_data, screen.settings[0])
    return UnitSource(pert_data, screen)
