"""A trained model beside the baselines, and GEARS as a method that :func:`gears.evaluation.compare` can fit."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.assembly import check_names, perturbed_in, subgroups_of
from gears.conditions import Condition
from gears.contexts.evaluation import unit_table_of
from gears.contexts.means import control_mean_of
from gears.data.unit_screen import UnitScreen
from gears.evaluation.baselines.means_table import training_conditions
from gears.evaluation.cells import ScreenCells
from gears.evaluation.report import Profiles, write_report
from gears.evaluation.table import baseline_predictions, comparison_table
from gears.evaluation.truth import Truth
from gears.prior_choice import closed_form

if TYPE_CHECKING:
    from gears.data.screen import PreparedScreen
    from gears.data.splits import Split
    from gears.gears import GEARS
    from gears.pertdata import PertData
    from gears.priors import Prior

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
    pert_data = model._need_data("evaluate")
    split = pert_data.split
    chosen = perturbed_in(split, part)
    if split is None or not chosen or not perturbed_in(split, "train"):
        return None
    predicted_UG = model.predict(chosen, clip=clip).expression_UG
    settings: dict[str, Any] = {"clip": clip, "method": name, "annotation": pert_data.annotation}
    settings |= {"mask_target": model.parts is not None and model.parts.config.mask_target}
    divided, screen = isinstance(pert_data.screen, UnitScreen), pert_data.screen
    if isinstance(screen, UnitScreen):
        settings |= {"truth_screen": pert_data.screen_of(part)}
        table = unit_table_of(predicted_UG, chosen, screen, split, **settings | options)
    else:
        settings |= {
            "subgroups": subgroups_of(split, part, chosen),
            "truth_screen": pert_data.screen_of(part),
        }
        table = comparison_table(predicted_UG, chosen, screen, split, **settings | options)
    if report is not None:
        profiles = None
        if not divided:
            profiles = _profiles(pert_data, part, split, chosen, {name: predicted_UG}, clip, shown)
        details = {
            "screen": str(pert_data.dataset_name),
            "split": f"{split.name}, seed {split.seed}, part {part}",
            "training conditions": str(len(training_conditions(split))),
        }
        write_report(
            table, report, title=f"{name} on {details['screen']}", profiles=profiles, details=details
        )
    return table


def _profiles(
    pert_data: PertData,
    part: str,
    split: Split,
    chosen: Sequence[Condition],
    predictions: dict[str, np.ndarray],
    clip: bool,
    shown: Sequence[str],
) -> Profiles:
    screen = pert_data.screen_of(part)
    truth = Truth.of(screen, chosen, training_conditions(split), cells=ScreenCells(screen))
    drawn, _ = baseline_predictions(
        chosen, pert_data.screen, split, DRAWN, clip=clip, annotation=pert_data.annotation
    )
    names = [Condition.of(condition).name for condition in shown]
    return Profiles(truth, {**predictions, **drawn}, pert_data.screen.gene_names, names)


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

    def fit(self, screen: PreparedScreen, split: Split) -> GEARSEstimator:
        """Train on the split's training part and return the estimator itself.

        Raises
        ------
        ValueError
            If the screen is not that of the PertData.
        """
        from gears.gears import GEARS

        if screen.content_hash != self.pert_data.screen.content_hash:
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
    """

    def __init__(self, pert_data: PertData, *, clip: bool = True) -> None:
        self.pert_data, self.clip = pert_data, clip
        self.prior: Prior | None = None

    def fit(self, screen: PreparedScreen, split: Split) -> PriorEstimator:
        """Fit to the means of the split's training part and return the estimator itself."""
        pert_data = copy.copy(self.pert_data)  # the split is the copy's own
        pert_data.use_split(split)
        self.prior = closed_form(pert_data)
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
