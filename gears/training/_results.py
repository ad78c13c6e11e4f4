"""The result of training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, Self

import pandas as pd

from gears.core._messages import count
from gears.evaluation.intervals import summary_table
from gears.evaluation.verdict import closing_frame, footnotes, short_table

if TYPE_CHECKING:
    from gears.training._fitting import Fit


@dataclass
class TrainResult:
    """Result of :meth:`gears.GEARS.train` and :func:`gears.train_multi_gpu`; printed, it compares with the baselines.

    Attributes
    ----------
    history
        One record per epoch: losses, validation metrics, learning rate, seconds.
    best_epoch
        Epoch (from 1) whose weights are kept; None when no validation metric was defined.
    table
        Scores of the model beside the baselines on the test part, tidy (condition, subgroup, n_cells, method, metric,
        value); with fewer than ten test conditions on all conditions in folds (:meth:`gears.GEARS.evaluate`). None
        without a test part or on a worker other than rank 0.
    stopped
        Whether a signal stopped the run before its end.
    stopped_because
        Why fewer epochs ran than planned; None where all ran.
    epochs
        Planned epochs; ``len(history)`` were run.
    network_weight
        Factor on the network's change beside the prior; None without a prior.
    refitted
        Whether the prior was fitted again to training and validation conditions.
    devices
        Device of each worker, rank by rank.
    seconds
        Wall time by stage.
    save_path
        Folder of the model (:meth:`gears.GEARS.from_pretrained` loads it); None where none was written.
    rank
        0, except on the other workers of a process group that torchrun started.
    """

    history: list[dict[str, Any]]
    best_epoch: int | None
    table: pd.DataFrame | None = None
    stopped: bool = False
    stopped_because: str | None = None
    epochs: int = 0
    network_weight: float | None = None
    refitted: bool = False
    devices: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    save_path: str | None = None
    rank: int = 0

    @classmethod
    def of(cls, fit: Fit, table: pd.DataFrame | None = None) -> Self:
        """The result of a fit."""
        run = fit.run
        return cls(
            history=run.history,
            best_epoch=run.best_epoch,
            table=table,
            stopped=run.stopped,
            stopped_because=run.stopped_because,
            epochs=fit.options.epochs or len(run.history),
            network_weight=None if fit.choice is None else fit.choice.weight,
            refitted="val" in fit.parts.fitted_parts,
            devices=run.devices,
            seconds=dict(fit.seconds),
            save_path=None if fit.saved_in is None else str(fit.saved_in),
            rank=fit.worker.rank,
        )

    @property
    def world_size(self) -> int:
        """Number of workers."""
        return len(self.devices)

    @property
    def summary(self) -> pd.DataFrame | None:
        """Means over conditions per subgroup, method and metric."""
        return None if self.table is None else summary_table(self.table)

    @property
    def test_metrics(self) -> dict[str, float]:
        """Mean of each metric over the conditions of `table`, of the model itself."""
        summary = self.summary
        if summary is None:
            return {}
        model_rows = summary[(summary["method"] == "gears") & (summary["subgroup"] == "all")]
        means = model_rows.set_index("metric")["mean"]
        return {str(name): float(value) for name, value in means.items()}

    def _repr_html_(self) -> str:
        table, html = self.table, ""
        if table is not None and len(frame := closing_frame(table)):
            notes = "".join(f"<p>{escape(line)}</p>" for line in footnotes(table))
            html = f'<div style="overflow-x: auto">{frame.to_html(index=False, border=0)}</div>{notes}'
        facts = "; ".join(f"{name}: {text}" for name, text in self._facts().items())
        return f"{html}<p>{escape(facts)}</p>"

    def __repr__(self) -> str:
        table = "test part: not scored" if self.table is None else short_table(self.table)
        facts = (f"{name:<12}{text}" for name, text in self._facts().items())
        return "\n".join([table, "", *facts])

    def _facts(self) -> dict[str, str]:
        best = f", best {self.best_epoch}" if self.best_epoch and self.network_weight != 0 else ""
        epochs = f"{len(self.history)} of {count(self.epochs, 'epoch')}{best}"
        if self.stopped_because:
            epochs += f" ({self.stopped_because})"
        if self.network_weight is None:
            predictions = "the network alone (prior=None)"
        elif self.network_weight > 0:
            predictions = f"prior + {self.network_weight:g} x network"
        else:
            conditions = "training and validation" if self.refitted else "training"
            predictions = f"the prior, fitted to {conditions} conditions"
        stages = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.seconds.items() if seconds >= 0.05)
        facts = {
            "predictions": predictions,
            "epochs": epochs,
            "devices": ", ".join(self.devices),
            "seconds": stages,
            "saved in": self.save_path or "nothing was saved",
        }
        if not self.history and not self.stopped:
            del facts["epochs"]
        return facts
