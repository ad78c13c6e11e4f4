"""What every baseline is: fitted in closed form to the training conditions' means, clipped as the model is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from gears.conditions import Condition
from gears.core.registry import Registry
from gears.evaluation.baselines.means_table import ConditionMeans, fitted_conditions

if TYPE_CHECKING:
    from gears.data.screen import PreparedScreen
    from gears.data.splits import Split
    from gears.graphs.annotation import GeneAnnotation


class Estimator(Protocol):
    """What a table, a comparison or a prior asks of a method: fit to a screen's training part, predict means.

    Any object with these two methods can be compared; :class:`Baseline` is the usual way to make one.
    """

    def fit(self, screen: PreparedScreen, split: Split) -> Any:
        """Learn from the training part."""
        ...

    def predict(self, conditions: Iterable[Condition | str]) -> np.ndarray:
        """Predicted mean expression, (U, G)."""
        ...


class Baseline(ABC):
    """A prediction that needs no training: ``fit(screen, split)``, then ``predict(conditions)``.

    Without a screen, :meth:`fit_arrays` fits to plain condition means.

    Parameters
    ----------
    clip
        Set predictions below zero to zero; give what the model was given.
    """

    uses_held_out = False  # True: it looks at held-out conditions, and is marked so in tables
    takes_annotation = False  # True: its constructor takes `annotation`

    def __init__(self, *, clip: bool = True) -> None:
        self.clip = clip

    def fit(self, screen: PreparedScreen, split: Split) -> Baseline:
        """Read what is needed from the screen's statistics and return the baseline itself.

        Raises
        ------
        ValueError
            If the split has no training condition besides the control and the baseline needs one.
        """
        return self.fit_means(ConditionMeans.of(screen, fitted_conditions(split)))

    def fit_arrays(
        self,
        mean_CG: np.ndarray,
        conditions: Iterable[Condition | str],
        train_ids: Sequence[int] | np.ndarray,
        *,
        gene_names: Sequence[str] | None = None,
        n_cells_C: np.ndarray | None = None,
    ) -> Baseline:
        """Fit to condition means alone (see :class:`ConditionMeans`) and return the baseline itself.

        Examples
        --------
        >>> from gears.evaluation.baselines import Additive
        >>> means = [[1.0, 1.0], [2.0, 1.0], [1.0, 3.0]]
        >>> Additive().fit_arrays(means, ["ctrl", "A+ctrl", "B+ctrl"], [1, 2]).predict(["A+B"]).tolist()
        [[2.0, 3.0]]
        """
        means = ConditionMeans.from_arrays(
            mean_CG, conditions, train_ids, gene_names=gene_names, n_cells_C=n_cells_C
        )
        return self.fit_means(means)

    def fit_means(self, means: ConditionMeans) -> Baseline:
        """Fit to a table of condition means and return the baseline itself."""
        self.control_mean_G = means.control_mean_G
        self._fit(means)
        return self

    def predict(self, conditions: Iterable[Condition | str]) -> np.ndarray:
        """Predicted mean expression, (U, G) float64; the control is predicted by its own mean."""
        chosen = [Condition.of(condition) for condition in conditions]
        predicted_UG = np.empty((len(chosen), len(self.control_mean_G)))
        for row, condition in enumerate(chosen):
            predicted_UG[row] = self.control_mean_G if condition.is_control else self._predict(condition)
        return np.maximum(predicted_UG, 0.0) if self.clip else predicted_UG

    @abstractmethod
    def _fit(self, means: ConditionMeans) -> None:
        """Learn from the training conditions."""

    @abstractmethod
    def _predict(self, condition: Condition) -> np.ndarray:
        """Unclipped mean expression of a condition that is not the control, (G,)."""


@dataclass(frozen=True)
class BaselineEntry:
    """A registered baseline: its class, its arguments, and one line on what it predicts."""

    name: str
    kind: type[Baseline]
    arguments: dict[str, Any]
    formula: str

    @property
    def uses_held_out(self) -> bool:
        """Whether it looks at held-out conditions."""
        return self.kind(**self.arguments).uses_held_out


BASELINES: Registry[BaselineEntry] = Registry("baseline")
Kind = TypeVar("Kind", bound=type[Baseline])


def register_baseline(name: str, formula: str, **arguments: Any) -> Callable[[Kind], Kind]:
    """Add a baseline class, with these arguments, to :data:`BASELINES`."""

    def add(kind: Kind) -> Kind:
        BASELINES.add(name, BaselineEntry(name, kind, arguments, formula))
        return kind

    return add


def make_baseline(name: str, *, clip: bool = True, annotation: GeneAnnotation | None = None) -> Baseline:
    """The (unfitted) baseline of that name; an unknown name is answered with near matches.

    Parameters
    ----------
    name
        A key of :data:`BASELINES`.
    clip
        Set predictions below zero to zero.
    annotation
        GO terms for the baselines that use them (the packaged human ones by default); the others ignore it.
    """
    entry = BASELINES[name]
    extra = {"annotation": annotation} if entry.kind.takes_annotation else {}
    return entry.kind(clip=clip, **entry.arguments, **extra)
