"""What training returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from gears.evaluation.table import summary_table


@dataclass
class TrainResult:
    """What :meth:`gears.GEARS.train` returns.

    Attributes
    ----------
    history
        One record per epoch: losses, validation metrics, learning rate, seconds.
    best_epoch
        Epoch (from 1) whose weights are kept; None when no validation metric was defined.
    table
        Test scores of the model beside the baselines, tidy (condition, subgroup, n_cells,
        method, metric, value); None without a test part or on a worker other than rank 0.
    stopped
        Whether the run was asked to stop before its end.
    """

    history: list[dict[str, Any]] = field(repr=False)
    best_epoch: int | None
    table: pd.DataFrame | None = field(default=None, repr=False)
    stopped: bool = False

    @property
    def summary(self) -> pd.DataFrame | None:
        """Means over conditions per subgroup, method and metric."""
        return None if self.table is None else summary_table(self.table)


@dataclass
class MultiProcessResult(TrainResult):
    """What :func:`gears.train_distributed.train_multi_gpu` returns.

    Attributes
    ----------
    save_path
        Folder of the trained model (:meth:`gears.GEARS.from_pretrained` loads it).
    world_size, devices
        Number of workers, and the device of each rank.
    rank
        0, except on the other workers of a world that torchrun started.
    """

    save_path: str = ""
    world_size: int = 1
    devices: tuple[str, ...] = ()
    rank: int = 0

    @property
    def test_metrics(self) -> dict[str, float]:
        """Mean of each metric over the test conditions, of the model itself."""
        summary = self.summary
        if summary is None:
            return {}
        own = summary[(summary["method"] == "gears") & (summary["subgroup"] == "all")]
        return {str(name): float(value) for name, value in zip(own["metric"], own["mean"], strict=True)}
