"""Options as named arguments: the signatures of public functions against the options classes."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from gears import GEARS, PertData
from gears.core.options import Options
from gears.data.checks.options import ProcessingOptions
from gears.evaluation.scoring import N_SPLIT_HALF, ScoreOptions
from gears.jobs.job import TrainingJob
from gears.training.options import TrainOptions

TAKEN: dict[Callable[..., Any], type[Options]] = {
    GEARS.train: TrainOptions,
    GEARS.evaluate: ScoreOptions,
    PertData.load: ProcessingOptions,
}
BESIDE = {
    GEARS.train: {"evaluate_test", "distributed"},
    GEARS.evaluate: {"split", "baselines", "embedding", "name", "report", "shown"},
    PertData.load: {"data_name", "data_path", "drop_unmapped", "guides", "guide_targets", "workers", "dask"},
}
DEFAULTS = {
    GEARS.evaluate: {"n_split_half": N_SPLIT_HALF, "mask_target": None},
    PertData.load: dict.fromkeys(ProcessingOptions.names()),  # None: as a prepared folder was prepared
}
ACCEPTED = {"loggers": "str | Sequence[str]", "save_path": "str | Path | None"}
"""Types that a call accepts and that options bring into one form."""


@pytest.mark.parametrize("function", TAKEN, ids=lambda function: function.__name__)
def test_every_option_is_a_named_argument_with_its_type_and_default(function):
    fields = TAKEN[function].__dataclass_fields__
    parameters = dict(inspect.signature(function).parameters)
    assert parameters.pop("self")
    assert set(parameters) == set(fields) | BESIDE[function]
    for name, field in fields.items():
        parameter, default = parameters[name], DEFAULTS.get(function, {}).get(name, field.default)
        assert parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        assert parameter.default == default, name
        kind = ACCEPTED.get(name, field.type)
        optional = kind if default is not None or kind.endswith("| None") else f"{kind} | None"
        assert parameter.annotation == optional, name


def test_one_and_several_processes_train_with_the_same_defaults(tmp_path):
    parameters = inspect.signature(GEARS.train).parameters
    here = {name: parameters[name].default for name in TrainOptions.names()} | {"save_path": tmp_path / "m"}
    job = TrainingJob.check(tmp_path, "screen", None, {"save_path": tmp_path / "m"})
    assert job.options == TrainOptions.from_mapping(here)


@pytest.mark.parametrize("function", TAKEN, ids=lambda function: function.__name__)
def test_an_unknown_name_is_an_error_with_the_nearest(function):
    last = TAKEN[function].names()[-1]
    with pytest.raises(ValueError, match=f"unknown {TAKEN[function].kind} '{last}z'; did you mean '{last}'"):
        function(None, **{f"{last}z": 1})


def test_an_earlier_name_warns_where_the_user_calls():
    with (
        pytest.warns(DeprecationWarning, match="match_controls_by is called batch_key now") as warned,
        pytest.raises(AttributeError),
    ):
        PertData.load(None, match_controls_by="donor")
    assert warned[0].filename == __file__
