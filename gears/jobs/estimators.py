"""GEARS and its prior as estimators for `compare`."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gears.conditions import Condition
from gears.core._numbers import clipped
from gears.evaluation._scoring import Predicted
from gears.gears import GEARS, on_split
from gears.graphs._similarities import PriorInputs
from gears.graphs._sources import with_sources
from gears.model._folder import check_names, check_scale
from gears.model.config import ModelOptions
from gears.priors._source import prior_of

if TYPE_CHECKING:
    from gears.data.screen._prepared import PreparedScreen
    from gears.data.splits._split import Split
    from gears.pertdata import PertData
    from gears.priors._prior import GenePrior


def load_with_screen(path: str | Path, pert_data: PertData, *, device: str | None = None) -> GEARS:
    """A saved model with its screen and the split that it was trained on, ready to evaluate.

    Raises
    ------
    ValueError
        The model has no split, or other genes than the screen, or was trained on values of another scale.
    """
    model = GEARS.from_pretrained(path, device=device)
    parts = model._need_model()
    check_names("genes", parts.gene_names, tuple(pert_data.screen.gene_names), path)
    check_scale(parts, pert_data.screen.scale, path)
    if parts.split is None:
        msg = f"the model {path} has no split.json, so its training conditions are unknown and it cannot be scored"
        raise ValueError(msg)
    pert_data.use_split(parts.split)
    model.pert_data = pert_data
    return model


class GEARSEstimator:
    """GEARS with fixed options, retrained on every split: ``fit(screen, split)``, ``predict(conditions)``.

    Parameters
    ----------
    pert_data
        The screen; its split and loaders stay unchanged.
    network
        Arguments of :meth:`gears.GEARS.model_initialize`.
    training
        Arguments of :meth:`gears.GEARS.train`.
    seed
        Seed of the initial weights; by default that of the split.
    device
        Device to train on.
    clip
        Set negative predictions to zero; by default where the screen has no negative values.

    Examples
    --------
    >>> compare({"gears": lambda seed: GEARSEstimator(pert_data, seed=seed)}, pert_data.screen,
    ...         folds(pert_data.screen, 5), seeds=[1, 2])                      # doctest: +SKIP
    """

    def __init__(
        self,
        pert_data: PertData,
        *,
        network: Mapping[str, Any] | None = None,
        training: Mapping[str, Any] | None = None,
        seed: int | None = None,
        device: str | None = None,
        clip: bool | None = None,
    ) -> None:
        self.pert_data = pert_data
        self.network, self.training = dict(network or {}), dict(training or {})
        self.seed, self.device, self.clip = seed, device, clip
        self.model: GEARS | None = None

    @property
    def fitted_parts(self) -> tuple[str, ...]:
        """Parts of the split that the model was fitted to: training, and validation after a refit."""
        return ("train",) if self.model is None else self.model._need_model().fitted_parts

    def fit(self, screen: PreparedScreen, split: Split) -> GEARSEstimator:
        """Train on the split's training part, return the estimator; ValueError for another screen than its own."""
        if screen.with_controls(None).content_hash != self.pert_data.whole_screen.content_hash:
            msg = f"the screen {screen!r} is not that of the estimator's PertData ({self.pert_data.screen!r})"
            raise ValueError(msg)
        self.model = on_split(self.pert_data, {**self.network, "seed": self.seed}, split, self.device)
        self.model.train(**{"verbose": False, "evaluate_test": False, **self.training})
        return self

    def predict(self, conditions: Iterable[Condition | str]) -> Predicted:
        """Predicted mean expression with its standard deviations, where the model has a prior."""
        if self.model is None:
            msg = "this estimator is not fitted yet; call fit(screen, split) first"
            raise ValueError(msg)
        predictions = self.model.predict(list(conditions), clip=self.clip)
        return Predicted(predictions.expression_UG, predictions.sd)


class PriorEstimator:
    """The prior alone: ``fit(screen, split)``, ``predict(conditions)``.

    Parameters
    ----------
    pert_data
        The screen; its split stays unchanged.
    network
        Arguments of :meth:`gears.GEARS.model_initialize`, of which the prior reads `pert_embedding` and `hidden_size`
        (to how many numbers embeddings of more are brought).
    effects_of, similarities
        As for :meth:`gears.GEARS.train`.
    clip
        Set negative predictions to zero; by default where the screen has no negative values.
    refit
        Fit to the validation part as well, which is not used to choose anything here.
    """

    def __init__(
        self,
        pert_data: PertData,
        *,
        network: Mapping[str, Any] | None = None,
        effects_of: Any = None,
        similarities: Any = None,
        clip: bool | None = None,
        refit: bool = True,
    ) -> None:
        self.pert_data, self.clip = pert_data, clip
        self.network = dict(network or {})
        self.effects_of, self.similarities = effects_of, similarities
        self.fitted_parts: tuple[str, ...] = ("train", "val") if refit else ("train",)
        self.prior: GenePrior | None = None

    def fit(self, screen: PreparedScreen, split: Split) -> PriorEstimator:
        """Fit to the means of the split's `fitted_parts` and return the estimator itself."""
        pert_data = copy.copy(self.pert_data)  # the caller's object keeps its split
        pert_data.use_split(split)
        options = ModelOptions.from_mapping(self.network)
        inputs = PriorInputs.of(pert_data, options.hidden_size, options.pert_embedding)
        inputs = with_sources(inputs, pert_data, self.effects_of, self.similarities)
        fitted = prior_of(pert_data, self.fitted_parts, inputs)
        if fitted is None:
            msg = f"the split has no perturbed condition in {' and '.join(self.fitted_parts)} to fit the prior to"
            raise ValueError(msg)
        self.prior = fitted.prior
        self._contexts = pert_data.screen.model_contexts
        return self

    def predict(self, conditions: Iterable[Condition | str]) -> Predicted:
        """Predicted mean expression with its standard deviations."""
        if self.prior is None:
            msg = "this estimator is not fitted yet; call fit(screen, split) first"
            raise ValueError(msg)
        parsed = [Condition.of(condition) for condition in conditions]
        nodes = [self.pert_data.condition_nodes(condition) for condition in parsed]
        change_UG = self.prior(nodes)
        predicted_UG = self._contexts.control_means(parsed) + change_UG
        means_UG = clipped(predicted_UG, self.clip, self.pert_data.screen.nonnegative)
        return Predicted(means_UG, self.prior.sd(nodes, change_UG))
