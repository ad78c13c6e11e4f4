"""Options as named arguments against the options classes; what objects say of themselves."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
from driving import gears_of

from gears import GEARS, PertData
from gears.core._messages import html_of
from gears.core._options import Options
from gears.data import ProcessingOptions
from gears.data.splits import SplitOptions, check_split
from gears.evaluation import ScoreOptions, compare
from gears.evaluation._scoring import N_SPLIT_HALF
from gears.jobs._job import TrainingJob
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
    GEARS.train: {"distributed"},
    GEARS.evaluate: {"part", "baselines", "embedding", "name", "report", "shown"},
    PertData.__init__: {"data_path"},
    PertData.load: {
        "data_name", "data_path", "drop_unmapped", "guides", "guide_targets", "workers", "dask", "moments", "screens",
        "genes",
    },
    PertData.prepare_split: set(),
}  # fmt: skip
DEFAULTS = {
    GEARS.evaluate: {"n_split_half": N_SPLIT_HALF, "mask_target": None},
    PertData.load: dict.fromkeys(ProcessingOptions.names()),  # None: as a prepared folder was prepared
}
NARROWER = {"gene2go": "Mapping[str, Any] | GeneAnnotation | str | Path | None"}
"""Types of the call, where the option says less."""


@pytest.mark.parametrize("function", TAKEN, ids=lambda function: function.__qualname__)
def test_every_option_is_a_named_argument_with_its_type_and_default(function):
    fields = TAKEN[function].__dataclass_fields__
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


def test_one_and_several_processes_train_with_the_same_defaults(tmp_path):
    parameters = inspect.signature(GEARS.train).parameters
    here = {name: parameters[name].default for name in TrainOptions.names()} | {"save_path": tmp_path / "m"}
    job = TrainingJob.check(tmp_path, "screen", None, {"save_path": tmp_path / "m"})
    assert job.options == TrainOptions.from_mapping(here)


@pytest.mark.parametrize(
    "function", [one for one in TAKEN if one is not PertData.__init__], ids=lambda function: function.__name__
)
def test_an_unknown_name_is_an_error_with_the_nearest(function):
    last = TAKEN[function].names()[-1]
    with pytest.raises(ValueError, match=f"unknown {TAKEN[function].kind} '{last}z'; did you mean '{last}'"):
        function(None, **{f"{last}z": 1})


def test_an_earlier_name_warns_where_the_user_calls():
    with (
        pytest.warns(DeprecationWarning, match="match_controls_by is called batch_key now") as warned,
        pytest.raises(TypeError, match="load is called on an object"),
    ):
        PertData.load(None, match_controls_by="donor")
    assert warned[0].filename == __file__


def test_text_is_short_and_html_shows_it_escaped(small_data):
    model = GEARS(small_data, device="cpu")
    assert repr(model) == "GEARS(not initialised, on cpu)"
    model.model_initialize(hidden_size=8)
    genes = f"{len(model.pert_list)} genes to perturb, 60 genes predicted"
    assert repr(model) == f"GEARS(not trained, {genes}, on cpu)"
    result = model.train(epochs=0, verbose=False)
    assert repr(model) == f"GEARS(prior alone, {genes}, on cpu)"
    predictions = model.predict(small_data.split.conditions("test")[:2])
    for thing in (model, small_data, small_data.screen, small_data.split, predictions, result):
        html = thing._repr_html_()
        assert html.startswith('<pre style="white-space: pre-wrap">') == (thing not in (predictions, result))
        assert len(repr(thing).splitlines()[0]) < 160
    comparison = compare({}, small_data.screen, small_data.split, baselines=["no_change", "train_mean"])
    assert "train_mean" in repr(comparison)
    assert comparison._repr_html_() == html_of(comparison)
    leaks = check_split(small_data.split, small_data.screen)
    assert repr(leaks) == str(leaks)
    assert html_of("<b>").endswith(">&#x27;&lt;b&gt;&#x27;</pre>")


def test_tables_of_splits_and_predictions(small_data):
    parts = {part: len(labels) for part, labels in small_data.split.parts.items()}
    assert repr(small_data.split).startswith("Split('simulation', seed 1: ")
    assert f"{parts['train']} train" in repr(small_data.split)
    table = small_data.split._repr_html_()
    for part, n in parts.items():
        counts = re.findall(rf"<td>{part}</td>\s*<td>\w*</td>\s*<td>(\d+)</td>", table)
        assert sum(map(int, counts)) == n
    model = gears_of(small_data)
    pair = small_data.split.conditions("test")[0]
    html = model.predict([pair])._repr_html_()
    assert html.count(f"<td>{pair.name}</td>") == 3
