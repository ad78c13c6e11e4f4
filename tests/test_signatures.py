"""Options as named arguments: the signatures of public functions against the options classes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gears import GEARS, PertData
from gears.core.options import Options
from gears.data.checks.options import ProcessingOptions
from gears.data.splits.registry import SplitOptions
from gears.evaluation.scoring import N_SPLIT_HALF, ScoreOptions
from gears.jobs.job import TrainingJob
from gears.model.config import ModelConfig
from gears.pertdata import PertDataOptions
from gears.training.options import TrainOptions

TAKEN: dict[Callable[..., Any], type[Options]] = {
    GEARS.model_initialize: ModelConfig,
    GEARS.train: TrainOptions,
    GEARS.evaluate: ScoreOptions,
    PertData.__init__: PertDataOptions,
    PertData.load: ProcessingOptions,
    PertData.prepare_split: SplitOptions,
}
BESIDE = {
    GEARS.model_initialize: {
        "G_go", "G_go_weight", "G_coexpress", "G_coexpress_weight", "pert_embedding", "seed",
    },
    GEARS.train: {"evaluate_test", "distributed"},
    GEARS.evaluate: {"split", "baselines", "embedding", "name", "report", "shown"},
    PertData.__init__: {"data_path"},
    PertData.load: {"data_name", "data_path", "drop_unmapped", "guides", "guide_targets", "workers", "dask"},
    PertData.prepare_split: set(),
}  # fmt: skip
DEFAULTS = {
    GEARS.evaluate: {"n_split_half": N_SPLIT_HALF, "mask_target": None},
    PertData.load: dict.fromkeys(ProcessingOptions.names()),  # None: as a prepared folder was prepared
}
NARROWER = {"gene2go": "Mapping[str, Any] | GeneAnnotation | str | Path | None"}
"""Types of the call, where the option says less."""


@pytest.mark.parametrize("function", TAKEN, ids=lambda function: function.__qualname__)
def test_every_option_is_a_named_argument_with_its_type_and_default(function: Callable[..., Any]) -> None:
    fields = TAKEN[function].__dataclass_fields__  # type: ignore[attr-defined]
    parameters = dict(inspect.signature(function).parameters)
    assert parameters.pop("self")
    assert set(parameters) == set(TAKEN[function].names()) | BESIDE[function]
    for name in TAKEN[function].names():
        field, parameter = fields[name], parameters[name]
        default = DEFAULTS.get(function, {}).get(name, field.default)
        assert parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        assert parameter.default == default, name
        kind = NARROWER.get(name, field.type)
        optional = kind if default is not None or kind.endswith("| None") else f"{kind} | None"
        assert parameter.annotation == optional, name


def test_one_and_several_processes_train_with_the_same_defaults(tmp_path: Path) -> None:
    parameters = inspect.signature(GEARS.train).parameters
    here = {name: parameters[name].default for name in TrainOptions.names()} | {"save_path": tmp_path / "m"}
    job = TrainingJob.check(tmp_path, "screen", None, {"save_path": tmp_path / "m"})
    assert job.options == TrainOptions.from_mapping(here)


@pytest.mark.parametrize(
    "function", [one for one in TAKEN if one is not PertData.__init__], ids=lambda function: function.__name__
)
def test_an_unknown_name_is_an_error_with_the_nearest(function: Callable[..., Any]) -> None:
    last = TAKEN[function].names()[-1]
    with pytest.raises(ValueError, match=f"unknown {TAKEN[function].kind} '{last}z'; did you mean '{last}'"):
        function(None, **{f"{last}z": 1})


def test_an_earlier_name_warns_where_the_user_calls() -> None:
    with (
        pytest.warns(DeprecationWarning, match="match_controls_by is called batch_key now") as warned,
        pytest.raises(AttributeError),
    ):
        PertData.load(None, match_controls_by="donor")  # type: ignore[call-arg, arg-type]
    assert warned[0].filename == __file__
