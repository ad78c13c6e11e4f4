"""The base class of baselines, and their registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from gears.conditions import Condition
from gears.core._numbers import clips
from gears.core._registry import Registry
from gears.data.splits._split import Split
from gears.evaluation._fitted import ConditionMeans, fitted_conditions
from gears.graphs._annotation import GeneAnnotation

if TYPE_CHECKING:
    from scipy import sparse

    from gears.data.screen._prepared import PreparedScreen
    from gears.graphs._embeddings import GeneEmbedding


class Estimator(Protocol):
    """A method that can be compared: it fits to a screen's training part and predicts means (U, G).

    One that states standard deviations returns both as :class:`gears.evaluation.Predicted`. Any object with these two
    methods is one; :class:`Baseline` is a base class for them.
    """

    def fit(self, screen: PreparedScreen, split: Split) -> Any:
        """Learn from the training part."""

    def predict(self, conditions: Iterable[Condition | str]) -> Any:
        """Predicted mean expression, (U, G)."""


class Baseline(ABC):
    """A prediction that needs no training: ``fit(screen, split)``, then ``predict(conditions)``.

    Without a screen, :meth:`fit_means` fits to a table of condition means.

    Parameters
    ----------
    clip
        Set predictions below zero to zero; by default where the values that it is fitted to have none below zero.
    """

    uses_held_out = False  # True: it uses held-out conditions, and is marked in tables
    takes_annotation = False  # True: its constructor takes `annotation`
    takes_embedding = False  # True: its constructor takes `embedding`
    sd_G: np.ndarray | None = None  # standard deviation of its errors, the same for every condition

    def __init__(self, *, clip: bool | None = None) -> None:
        self.clip = clip

    def fit(self, screen: PreparedScreen, split: Split) -> Baseline:
        """Fit to the screen's statistics and return the baseline itself.

        Raises
        ------
        ValueError
            If the split has no training condition besides the control and the baseline needs one.
        """
        return self.fit_means(ConditionMeans.of(screen, fitted_conditions(split)))

    def fit_means(self, means: ConditionMeans) -> Baseline:
        """Fit to a table of condition means and return the baseline itself.

        Examples
        --------
        >>> from gears.evaluation.baselines import Additive
        >>> conditions = tuple(Condition.of(label) for label in ("ctrl", "A+ctrl", "B+ctrl"))
        >>> means = ConditionMeans(np.array([[1.0, 1.0], [2.0, 1.0], [1.0, 3.0]]), conditions, np.array([1, 2]))
        >>> Additive().fit_means(means).predict(["A+B"]).tolist()
        [[2.0, 3.0]]
        """
        self.control_mean_G = means.control_mean_G
        self._clips = clips(self.clip, means.nonnegative)
        self._fit(means)
        return self

    def predict(self, conditions: Iterable[Condition | str]) -> np.ndarray:
        """Predicted mean expression, (U, G) float64; that of the control is its mean."""
        parsed = [Condition.of(condition) for condition in conditions]
        predicted_UG = np.empty((len(parsed), len(self.control_mean_G)))
        for row, condition in enumerate(parsed):
            predicted_UG[row] = self.control_mean_G if condition.is_control else self._predict(condition)
        return np.maximum(predicted_UG, 0.0) if self._clips else predicted_UG

    @abstractmethod
    def _fit(self, means: ConditionMeans) -> None:
        """Learn from the training conditions."""

    @abstractmethod
    def _predict(self, condition: Condition) -> np.ndarray:
        """Unclipped mean expression of a condition that is not the control, (G,)."""


@dataclass(frozen=True)
class BaselineEntry:
    """A registered baseline: its class, its arguments, its formula, and whether it is a weak reference."""

    name: str
    baseline: type[Baseline]
    arguments: dict[str, Any]
    formula: str
    weak: bool = False

    @property
    def uses_held_out(self) -> bool:
        """Whether it uses held-out conditions."""
        return self.baseline(**self.arguments).uses_held_out


BASELINES: Registry[BaselineEntry] = Registry("baseline")
Subclass = TypeVar("Subclass", bound=type[Baseline])


def register_baseline(
    name: str, formula: str, *, weak: bool = False, **arguments: Any
) -> Callable[[Subclass], Subclass]:
    """Add a baseline class, with these arguments, to :data:`BASELINES`.

    `weak` marks it in tables as a weak reference: a mean, or singles alone, which a useful model beats easily.
    """

    def add(baseline: Subclass) -> Subclass:
        BASELINES.add(name, BaselineEntry(name, baseline, arguments, formula, weak))
        return baseline

    return add


def make_baseline(
    name: str,
    *,
    clip: bool | None = None,
    annotation: GeneAnnotation | None = None,
    embedding: GeneEmbedding | None = None,
) -> Baseline:
    """The unfitted baseline of that name; the error for an unknown name suggests similar ones.

    Parameters
    ----------
    name
        A key of :data:`BASELINES`.
    clip
        Set predictions below zero to zero; by default where the values that it is fitted to have none below zero.
    annotation
        GO terms for the baselines that use them (the packaged human ones by default); the others ignore it.
    embedding
        Gene embeddings for ``"embedding_ridge"``, which needs them; the others ignore them.
    """
    entry = BASELINES[name]
    extra: dict[str, Any] = {"annotation": annotation} if entry.baseline.takes_annotation else {}
    extra |= {"embedding": embedding} if entry.baseline.takes_embedding else {}
    return entry.baseline(clip=clip, **entry.arguments, **extra)


def term_rows(annotation: GeneAnnotation | None, genes: Sequence[str]) -> sparse.csr_matrix:
    """Term rows (genes, terms) of an annotation, by default the packaged human one."""
    return (GeneAnnotation.human() if annotation is None else annotation).rows(genes)


def mean_of_nearest(similarity_S: np.ndarray, values_SG: np.ndarray, k: int) -> np.ndarray | None:
    """Mean (G,) of the rows of the `k` greatest similarities (and ties), weighted by them; None if none is above 0."""
    least = np.sort(similarity_S)[-min(k, len(similarity_S))]
    weight_S = np.where(similarity_S >= max(least, 1e-12), similarity_S, 0.0)
    total = weight_S.sum()
    return weight_S @ values_SG / total if total > 0 else None
