"""What every baseline is: fitted in closed form to the training conditions' means, clipped as the model is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gears.conditions import Condition
from gears.messages import unknown_name

if TYPE_CHECKING:
    from gears.data.screen import PreparedScreen
    from gears.data.splits import Split


class Baseline(ABC):
    """A prediction that needs no training: ``fit(screen, split)``, then ``predict(conditions)``.

    Parameters
    ----------
    clip
        Set predictions below zero to zero; give what the model was given.
    """

    uses_held_out = False  # True: it looks at held-out conditions, and is marked so in tables

    def __init__(self, *, clip: bool = True) -> None:
        self.clip = clip

    def fit(self, screen: PreparedScreen, split: Split) -> Baseline:
        """Read what is needed from the screen's statistics and return the baseline itself.

        Raises
        ------
        ValueError
            If the split has no training condition besides the control and the baseline needs one.
        """
        self.control_mean_G = np.asarray(screen.statistics.mean[screen.control_id], dtype=np.float64)
        self._fit(screen, training_conditions(split))
        return self

    def predict(self, conditions: Iterable[Condition | str]) -> np.ndarray:
        """Predicted mean expression, (U, G) float64; the control is predicted by its own mean."""
        chosen = [Condition.of(condition) for condition in conditions]
        predicted_UG = np.empty((len(chosen), len(self.control_mean_G)))
        for row, condition in enumerate(chosen):
            predicted_UG[row] = self.control_mean_G if condition.is_control else self._predict(condition)
        return np.maximum(predicted_UG, 0.0) if self.clip else predicted_UG

    @abstractmethod
    def _fit(self, screen: PreparedScreen, train: tuple[Condition, ...]) -> None:
        """Learn from the training conditions (control left out)."""

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


BASELINES: dict[str, BaselineEntry] = {}
Kind = TypeVar("Kind", bound=type[Baseline])


def register_baseline(name: str, formula: str, **arguments: Any) -> Callable[[Kind], Kind]:
    """Add a baseline class, with these arguments, to :data:`BASELINES`."""

    def add(kind: Kind) -> Kind:
        if name in BASELINES:
            msg = f"a baseline named {name!r} is already registered; choose another name"
            raise ValueError(msg)
        BASELINES[name] = BaselineEntry(name, kind, arguments, formula)
        return kind

    return add


def make_baseline(name: str, *, clip: bool = True) -> Baseline:
    """The (unfitted) baseline of that name; an unknown name is answered with near matches."""
    if name not in BASELINES:
        raise ValueError(unknown_name("baseline", name, list(BASELINES)))
    entry = BASELINES[name]
    return entry.kind(clip=clip, **entry.arguments)


def training_conditions(split: Split) -> tuple[Condition, ...]:
    """Training conditions of a split, each once, control left out."""
    if "train" not in split.parts:
        return ()
    return tuple(dict.fromkeys(c for c in split.conditions("train") if not c.is_control))


def require_training(train: tuple[Condition, ...], what: str) -> None:
    """Refuse a split without training conditions."""
    if not train:
        msg = f"{what} needs at least one training condition besides the control; the split has none"
        raise ValueError(msg)


def single_means(screen: PreparedScreen, conditions: Iterable[Condition]) -> dict[str, np.ndarray]:
    """Mean expression (G,) of the single-gene conditions among these, by gene."""
    return {
        condition.genes[0]: np.asarray(screen.statistics.mean[screen.id_of(condition)], dtype=np.float64)
        for condition in conditions
        if len(condition) == 1
    }
