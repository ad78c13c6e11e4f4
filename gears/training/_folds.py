"""Cross-validation of a model: it is trained again for each fold, and scored over all conditions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gears.conditions import Condition
from gears.core._options import divided
from gears.data.splits._make import folds_like
from gears.data.splits._split import Split
from gears.distributed._gpus import GpuIds
from gears.distributed._log import quiet, shown
from gears.evaluation.compare import CompareOptions, Comparison, compare
from gears.prediction.predictions import Predictions
from gears.report.of_model import start_embedding
from gears.training._shards import one_thread
from gears.training.options import TrainOptions

if TYPE_CHECKING:
    from gears.data.screen._prepared import PreparedScreen
    from gears.model._folder import ModelParts
    from gears.pertdata import PertData

logger = logging.getLogger(__name__)


@dataclass
class Fold:
    """A model that is made and trained on each split that it is fitted to: a method of :func:`compare`.

    Attributes
    ----------
    make
        Makes the model, not trained, from a split and a device (None: that of the worker).
    training
        Arguments of its ``train``.
    """

    make: Callable[[Split, torch.device | None], Any]
    training: Mapping[str, Any]
    device: torch.device | None
    fitted_parts: tuple[str, ...] = ("train",)

    def fit(self, screen: PreparedScreen, split: Split) -> None:
        """Train, with warnings alone, in one thread: sums do not depend on how many folds share the cores."""
        with quiet(logging.WARNING), one_thread():
            self.model = self.make(split, self.device)
            self.model.train(**{**self.training, "evaluate_test": False, "verbose": False})
        self.fitted_parts = self.model.parts.fitted_parts

    def predict(self, conditions: Sequence[Condition]) -> Predictions:
        """Predictions of the fitted model, not clipped."""
        return self.model.predict(conditions, clip=False)


def cross_validated(
    make: Callable[[Split, torch.device | None], Any],
    pert_data: PertData,
    parts: ModelParts,
    device: torch.device,
    folds: int,
    gpu_ids: GpuIds,
    n_at_once: int | None,
    options: Mapping[str, Any],
) -> Comparison:
    """Cross-validate; see :meth:`gears.GEARS.cross_validate`."""
    training, scoring = divided("cross_validate", options, TrainOptions, CompareOptions)
    if training.save_path is not None:
        msg = "cross_validate keeps no model, so save_path has no effect; omit it"
        raise ValueError(msg)
    assert pert_data.split is not None
    splits = folds_like(pert_data.whole_screen, pert_data.split, folds)
    in_this_process = gpu_ids is None and n_at_once is None
    with shown(training.verbose):
        result = compare(
            {"gears": Fold(make, training.given(), device if in_this_process else None)},
            pert_data.screen,
            {f"fold {number}": split for number, split in enumerate(splits, start=1)},
            annotation=pert_data.annotation,
            embedding=start_embedding(parts),
            gpu_ids=gpu_ids,
            n_at_once=n_at_once,
            device=device.type if gpu_ids is None else None,
            **{"n_split_half": 0, "mask_target": parts.config.mask_target, **scoring.given()},
        )
        logger.info("%s", result)
    return result
