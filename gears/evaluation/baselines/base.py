"""The base class of baselines, and the condition means that they are fitted to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from gears.conditions import Condition
from gears.core.messages import check_unique
from gears.core.numbers import clips
from gears.core.registry import Registry
from gears.data.screen.statistics import variance_within
from gears.data.splits.split import Split, perturbed_in
from gears.evaluation.truth import mean_profile
from gears.graphs.profiles import control_profiles

if TYPE_CHECKING:
    from gears.data.screen.prepared import PreparedScreen
    from gears.graphs.annotation import GeneAnnotation
    from gears.graphs.embeddings import GeneEmbedding


@dataclass(frozen=True)
class ConditionMeans:
    """Mean expression of C conditions over G genes, and which of them are trained on.

    Parameters
    ----------
    mean_CG
        Mean expression (log-normalised) of each condition, (C, G) float64.
    conditions
        The C conditions; the control is among them.
    train_ids
        Rows of the training conditions, each once; the control is excluded.
    gene_names
        Names of the G measured genes; needed by baselines that use a target's own expression.
    n_cells_C
        Cells of each condition; needed by means weighted by cells.
    nonnegative
        Whether no value of the screen is below 0.
    cell_variance_G
        Variance of a cell's expression within a condition, pooled; needed by standard deviations.
    profiles
        Makes vectors of the measured genes whose cosines say which are co-expressed, (G, K), NaN for a gene without;
        needed by baselines that use co-expression, and called by no other.
    """

    mean_CG: np.ndarray
    conditions: tuple[Condition, ...]
    train_ids: np.ndarray
    gene_names: tuple[str, ...] | None = None
    n_cells_C: np.ndarray | None = None
    nonnegative: bool = True
    profiles: Callable[[], np.ndarray] | None = None
    cell_variance_G: np.ndarray | None = None

    def __post_init__(self) -> None:
        mean_CG = np.asarray(self.mean_CG)
        if mean_CG.ndim != 2 or len(mean_CG) != len(self.conditions):
            msg = (
                f"mean_CG has shape {mean_CG.shape} for {len(self.conditions)} conditions; "
                "expected one row per condition, one column per gene"
            )
            raise ValueError(msg)
        check_unique((condition.name for condition in self.conditions), "conditions of a table of means")
        if Condition() not in self.conditions:
            msg = "the control ('ctrl') is not among the conditions; its mean is the origin of every change"
            raise ValueError(msg)
        if self.gene_names is not None and len(self.gene_names) != mean_CG.shape[1]:
            msg = f"{len(self.gene_names)} gene names for {mean_CG.shape[1]} genes; give one per column"
            raise ValueError(msg)
        if self.n_cells_C is not None and len(self.n_cells_C) != len(mean_CG):
            msg = f"{len(self.n_cells_C)} cell numbers for {len(mean_CG)} conditions; give one per row"
            raise ValueError(msg)
        train_ids = np.asarray(self.train_ids, dtype=np.int64).ravel()
        if len(train_ids) and not (train_ids.min() >= 0 and train_ids.max() < len(mean_CG)):
            msg = f"train_ids lie between {train_ids.min()} and {train_ids.max()}; expected 0 to {len(mean_CG) - 1}"
            raise ValueError(msg)
        perturbed_ids = list(
            dict.fromkeys(row for row in train_ids.tolist() if not self.conditions[row].is_control)
        )
        object.__setattr__(self, "mean_CG", mean_CG)
        object.__setattr__(self, "train_ids", np.asarray(perturbed_ids, dtype=np.int64))

    @classmethod
    def of(
        cls, screen: PreparedScreen, fitted: Iterable[Condition], whole: PreparedScreen | None = None
    ) -> ConditionMeans:
        """From a prepared screen and the conditions to fit to (arrays stay mapped from disk).

        Where `screen` is one of several settings, `whole` has the control cells of all, which profiles are made from.
        """
        rows = np.array([screen.id_of(condition) for condition in fitted], dtype=np.int64)
        return cls(
            np.asarray(screen.statistics.mean),
            tuple(screen.conditions),
            rows,
            tuple(screen.gene_names),
            np.asarray(screen.statistics.n),
            screen.nonnegative,
            partial(control_profiles, screen if whole is None else whole),
            variance_within(screen.statistics, rows) if len(rows) else None,
        )

    @property
    def control_id(self) -> int:
        """Row of the control."""
        return self.conditions.index(Condition())

    @property
    def control_mean_G(self) -> np.ndarray:
        """Mean of the control cells, (G,)."""
        return np.asarray(self.mean_CG[self.control_id], dtype=np.float64)

    @property
    def train(self) -> tuple[Condition, ...]:
        """The training conditions, without the control."""
        return tuple(self.conditions[row] for row in self.train_ids)

    def reference_mean(self, *, weights: str = "conditions") -> np.ndarray:
        """Mean of the training conditions' means, (G,): each once, or ``weights="cells"``; NaN without any."""
        return mean_profile(self.mean_CG, self.train_ids, self.n_cells_C, weights)

    def reference_sd(self) -> np.ndarray | None:
        """Standard deviation over the training conditions' means without sampling noise, (G,); None for one alone."""
        if self.cell_variance_G is None or self.n_cells_C is None or len(self.train_ids) < 2:
            return None
        noise_G = self.cell_variance_G * float((1 / self.n_cells_C[self.train_ids]).mean())
        spread_G = np.asarray(self.mean_CG[self.train_ids], dtype=np.float64).var(axis=0, ddof=1)
        return np.sqrt(np.maximum(spread_G - noise_G, 0.0))

    def single_means(self, *, everywhere: bool = False) -> dict[str, np.ndarray]:
        """Mean expression (G,) of single-gene conditions by gene: of training, or of every part."""
        rows = range(len(self.conditions)) if everywhere else self.train_ids.tolist()
        return {
            self.conditions[row].genes[0]: np.asarray(self.mean_CG[row], dtype=np.float64)
            for row in rows
            if len(self.conditions[row]) == 1
        }

    def require_training(self, what: str) -> None:
        """Raise if there is no training condition."""
        if not len(self.train_ids):
            msg = f"{what} needs at least one training condition besides the control; the split has none"
            raise ValueError(msg)

    def require_gene_names(self, what: str) -> tuple[str, ...]:
        """The gene names; raises if there are none."""
        if self.gene_names is None:
            msg = f"{what} needs the names of the measured genes; give gene_names"
            raise ValueError(msg)
        return self.gene_names

    def require_profiles(self, what: str) -> tuple[tuple[str, ...], np.ndarray]:
        """The gene names and their profiles (G, K); raises if there are none."""
        names = self.require_gene_names(what)
        if self.profiles is None:
            msg = f"{what} needs profiles of the measured genes; give profiles"
            raise ValueError(msg)
        return names, self.profiles()


def fitted_conditions(split: Split, parts: Iterable[str] = ("train",)) -> tuple[Condition, ...]:
    """Perturbed conditions of some parts of a split, each once; a part that the split lacks has none."""
    return tuple(dict.fromkeys(condition for part in parts for condition in perturbed_in(split, part)))


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
    sd_G: np.ndarray | None = (
        None  # standard deviation of its predictions' errors, the same for every condition
    )

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
    kind: type[Baseline]
    arguments: dict[str, Any]
    formula: str
    weak: bool = False

    @property
    def uses_held_out(self) -> bool:
        """Whether it uses held-out conditions."""
        return self.kind(**self.arguments).uses_held_out


BASELINES: Registry[BaselineEntry] = Registry("baseline")
Kind = TypeVar("Kind", bound=type[Baseline])


def register_baseline(
    name: str, formula: str, *, weak: bool = False, **arguments: Any
) -> Callable[[Kind], Kind]:
    """Add a baseline class, with these arguments, to :data:`BASELINES`.

    `weak` marks it in tables as a weak reference: a mean, or singles alone, which a useful model beats easily.
    """

    def add(kind: Kind) -> Kind:
        BASELINES.add(name, BaselineEntry(name, kind, arguments, formula, weak))
        return kind

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
    extra: dict[str, Any] = {"annotation": annotation} if entry.kind.takes_annotation else {}
    extra |= {"embedding": embedding} if entry.kind.takes_embedding else {}
    return entry.kind(clip=clip, **entry.arguments, **extra)
