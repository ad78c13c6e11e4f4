"""A trained model beside the baselines, and GEARS as a method that :func:`gears.evaluation.compare` can fit."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.assembly import check_names, perturbed_in
from gears.conditions import Condition
from gears.contexts.means import control_mean_of
from gears.data.control_view import whole_of
from gears.data.unit_screen import UnitScreen
from gears.evaluation.baselines.means_table import fitted_conditions
from gears.evaluation.cells import ScreenCells
from gears.evaluation.report import Profiles, write_report
from gears.evaluation.table import baseline_predictions, comparison_table, subgroup_line
from gears.evaluation.truth import Truth
from gears.messages import unknown_name
from gears.prior_choice import closed_form

if TYPE_CHECKING:
    from gears.data.screen import PreparedScreen
    from gears.data.splits import Split
    from gears.gears import GEARS
    from gears.pertdata import PertData
    from gears.priors import Prior

logger = logging.getLogger(__name__)

PRIOR_ALONE = "prior alone"
DRAWN = ("additive", "matching_mean", "train_mean")  # baselines in the figures of single conditions


def evaluate_model(
    model: GEARS,
    part: str,
    *,
    clip: bool = True,
    name: str = "gears",
    report: str | Path | None = None,
    shown: Sequence[str] = (),
    **options: Any,
) -> pd.DataFrame | None:
    """What :meth:`gears.GEARS.evaluate` does."""
    pert_data, parts = model._need_data("evaluate"), model._need_model()
    split = pert_data.split
    assert split is not None
    if part not in split.parts:
        raise ValueError(unknown_name("part of the split", part, list(split.parts)))
    chosen = perturbed_in(split, part)
    if not chosen:
        logger.info("part %r of the split holds no perturbed condition: there is nothing to evaluate", part)
        return None
    fitted_split = split if parts.split is None else parts.split
    known = set(pert_data.screen.conditions)
    fitted = [one for one in fitted_conditions(fitted_split, parts.fitted_parts) if one in known]
    predictions = model_predictions(model, chosen, name)
    defaults: dict[str, Any] = {
        "others": {method: values_UG for method, values_UG in predictions.items() if method != name},
        "method": name,
        "clip": clip,
        "mask_target": parts.config.mask_target,
        "annotation": pert_data.annotation,
        "part_screen": pert_data.screen_of(part),
        "fitted_parts": parts.fitted_parts,
        "fitted": fitted,
    }
    table = comparison_table(predictions[name], chosen, pert_data.screen, fitted_split, **defaults | options)
    line = subgroup_line(split, part, chosen, fitted)
    table.attrs["notes"] += [] if line is None else [line]
    if parts.prior is not None and parts.prior.network_weight == 0:
        table.attrs["labels"] = {name: f"{name} (the prior alone)"}
    if report is not None:
        profiles = None
        if not isinstance(pert_data.screen, UnitScreen):
            profiles = _profiles(pert_data, part, fitted, chosen, {name: predictions[name]}, clip, shown)
        details = {
            "screen": str(pert_data.dataset_name),
            "split": f"{split.name}, seed {split.seed}, part {part}",
        }
        write_report(
            table, report, title=f"{name} on {details['screen']}", profiles=profiles, details=details
        )
    return table


def model_predictions(
    model: GEARS, conditions: Sequence[Condition], name: str = "gears"
) -> dict[str, np.ndarray]:
    """Predicted means (U, G), not clipped, of the model as saved and of what it is compared with beside baselines.

    That is "prior alone" where prior and network are added, and "prior + network x W", at the best
    weight W that was tried, where the network was trained and is not used.
    """
    predictions = {name: model.predict(conditions, clip=False).expression_UG}
    prior = model._need_model().prior
    if prior is None:
        return predictions
    weights = {PRIOR_ALONE: 0.0}
    if prior.network_weight == 0:
        tried = prior.report.get("best_weight_tried")
        weights = {f"prior + network x {tried:g}": float(tried)} if tried else {}
    for label, weight in weights.items():
        variant = copy.copy(model)
        variant.parts = dataclasses.replace(
            model._need_model(), prior=dataclasses.replace(prior, network_weight=weight)
        )
        predictions[label] = variant.predict(conditions, clip=False).expression_UG
    return predictions


def _profiles(
    pert_data: PertData,
    part: str,
    fitted: Sequence[Condition],
    chosen: Sequence[Condition],
    predictions: dict[str, np.ndarray],
    clip: bool,
    shown: Sequence[str],
) -> Profiles:
    screen = pert_data.screen_of(part)
    truth = Truth.of(screen, chosen, fitted, cells=ScreenCells(screen))
    drawn, _ = baseline_predictions(chosen, pert_data.screen, fitted, DRAWN, annotation=pert_data.annotation)
    names = [Condition.of(condition).name for condition in shown]
    drawn = {**predictions, **drawn}
    if clip:
        drawn = {method: np.maximum(values_UG, 0.0) for method, values_UG in drawn.items()}
    return Profiles(truth, drawn, pert_data.screen.gene_names, names)


def load_with_screen(path: str | Path, pert_data: PertData, *, device: str | None = None) -> GEARS:
    """A saved model with its screen and the split that it was trained on, ready to evaluate.

    Raises
    ------
    ValueError
        The model has no split, or other genes than the screen.
    """
    from gears.gears import GEARS

    model = GEARS.from_pretrained(path, device=device)
    parts = model._need_model()
    check_names("genes", parts.gene_names, tuple(pert_data.screen.gene_names), path)
    if parts.split is None:
        msg = f"the model {path} does not say what it was trained on (no split.json); its scores would mean nothing"
        raise ValueError(msg)
    pert_data.use_split(parts.split)
    model.pert_data = pert_data
    return model


class GEARSEstimator:
    """GEARS with fixed settings, to be trained anew on every split: ``fit(screen, split)``, ``predict(conditions)``.

    Parameters
    ----------
    pert_data
        The screen; its own split and loaders are left as they are.
    network
        Arguments of :meth:`gears.GEARS.model_initialize`.
    training
        Arguments of :meth:`gears.GEARS.train`.
    seed
        Of the initial weights; the split's by default.
    device
        Where it trains.
    clip
        Set negative predictions to zero.

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
        clip: bool = True,
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
        """Train on the split's training part and return the estimator itself.

        Raises
        ------
        ValueError
            If the screen is not that of the PertData.
        """
        from gears.gears import GEARS

        if whole_of(screen).content_hash != self.pert_data.whole_screen.content_hash:
            msg = f"the screen {screen!r} is not that of the estimator's PertData ({self.pert_data.screen!r})"
            raise ValueError(msg)
        pert_data = copy.copy(self.pert_data)  # the split is the copy's own
        pert_data.use_split(split)
        self.model = GEARS(pert_data, device=self.device)
        self.model.model_initialize(**self.network, seed=self.seed)
        self.model.train(**{"verbose": False, "evaluate_test": False, **self.training})
        return self

    def predict(self, conditions: Iterable[Condition | str]) -> np.ndarray:
        """Predicted mean expression, (U, G)."""
        if self.model is None:
            msg = "this estimator is not fitted yet; call fit(screen, split) first"
            raise ValueError(msg)
        return self.model.predict(list(conditions), clip=self.clip).expression_UG


class PriorEstimator:
    """The closed form under the network, alone: ``fit(screen, split)``, ``predict(conditions)``.

    Parameters
    ----------
    pert_data
        The screen; its own split is left as it is.
    clip
        Set negative predictions to zero.
    refit
        Fit to the validation part as well, which decides nothing here.

    Attributes
    ----------
    fitted_parts
        Parts of the split that it is fitted to.
    """

    def __init__(self, pert_data: PertData, *, clip: bool = True, refit: bool = True) -> None:
        self.pert_data, self.clip = pert_data, clip
        self.fitted_parts: tuple[str, ...] = ("train", "val") if refit else ("train",)
        self.prior: Prior | None = None

    def fit(self, screen: PreparedScreen, split: Split) -> PriorEstimator:
        """Fit to the means of the split's `fitted_parts` and return the estimator itself."""
        pert_data = copy.copy(self.pert_data)  # the split is the copy's own
        pert_data.use_split(split)
        self.prior = closed_form(pert_data, self.fitted_parts)
        self._control_mean = partial(control_mean_of, pert_data.screen)
        return self

    def predict(self, conditions: Iterable[Condition | str]) -> np.ndarray:
        """Predicted mean expression, (U, G)."""
        if self.prior is None:
            msg = "this estimator is not fitted yet; call fit(screen, split) first"
            raise ValueError(msg)
        chosen = [Condition.of(condition) for condition in conditions]
        nodes = [self.pert_data.condition_nodes(condition) for condition in chosen]
        predicted_UG = self._control_mean(chosen) + self.prior(nodes)
        return np.maximum(predicted_UG, 0.0) if self.clip else predicted_UG
