"""`gears train-many`: independent trainings of a file, here or one by one as a job array, and the table of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gears.cli._parser import CommandParser, show
from gears.cli._screens import check_output_of, gpu_ids_of
from gears.core._messages import count
from gears.files._paths import need_file, user_path
from gears.files.formats import read_json, write_json, write_text

if TYPE_CHECKING:
    import pandas as pd

EPILOG = """examples:
  gears train-many configs.yaml                            (all, one at a time per GPU or CPU core)
  gears train-many configs.yaml --device cpu --n-at-once 2
  gears train-many configs.yaml --index 3                  (one; a job array: examples/train_many.sbatch)
  gears train-many configs.yaml --dask tcp://HOST:8786     (each a task of a dask cluster)
  gears train-many configs.yaml --collect --output table.csv

CONFIGS is a YAML list with the arguments of `gears.train_many`:

  - pert_data_path: data
    dataset_name: norman
    split_config: {split: simulation, seed: 1}
    args: {save_path: models/seed-1, resume: true}
"""
SCORES = "scores.json"
"""File of a run beside its model: mean scores of the test part, for the table."""


def train_many_parser() -> CommandParser:
    description = "Train each configuration of a file separately, and print a table of all."
    parser = CommandParser("train-many", "CONFIGS", description, EPILOG)
    parser.add("configs", "YAML file with a list of configurations")
    parser.add("--index", "train this one only, counted from 0", type=int | None)
    parser.add("--collect", "train nothing: the table of all runs that have ended", action="store_true")
    parser.add("--gpu-ids", "GPUs to use, such as 0 2, or free:2", nargs="+", type=int | str)
    parser.add("--n-at-once", "trainings at the same time; default: all GPUs, or cores", type=int | None)
    text = "address of a dask scheduler (tcp://HOST:8786) whose workers train, one configuration at a time each"
    parser.add("--dask", text, metavar="ADDRESS")
    parser.add("--device", "cuda or cpu; detected if omitted")
    parser.add("--timeout", "seconds after which a worker that does not respond is declared dead", type=float | None)
    parser.add("--output", "write the table to this CSV file")
    parser.add("--overwrite", "replace an existing OUTPUT", action="store_true")
    return parser


def run_train_many(options: Any) -> int:
    """Train, and print the table; returns 1 where a run has failed."""
    check_output_of(options)
    configs, failed = _read(options.configs), 0
    if not options.collect:
        if options.index is not None and not 0 <= options.index < len(configs):
            msg = f"--index is {options.index}; {options.configs} has {len(configs)} configurations, counted from 0"
            raise ValueError(msg)
        from gears.jobs.ensemble import train_many

        to_train = configs if options.index is None else [configs[options.index]]
        where = {name: options[name] for name in ("n_at_once", "device", "timeout", "dask")}
        outcomes = train_many(to_train, gpu_ids_of(options), **where)
        for outcome in outcomes:
            if outcome.result is not None and not outcome.result.stopped:
                write_json(user_path(outcome.save_path) / SCORES, outcome.result.test_metrics)
        failed = sum(not outcome.ok for outcome in outcomes)
    table = _table(configs)
    if options.output is not None:
        write_text(options.output, table.to_csv(index=False))
    missing = table["number"][~table["ended"]].tolist()
    text = table.drop(columns="ended").round(4).to_string(index=False, na_rep="")
    if missing:
        text += f"\n\n{count(len(missing), 'run')} of {len(table)} missing: {', '.join(map(str, missing))}"
    show(options, {"rows": table.to_dict("records"), "missing": missing}, text)
    return int(failed > 0)


def _read(path: str) -> list[Mapping[str, Any]]:
    import yaml

    text = need_file(path, "CONFIGS").read_text(encoding="utf-8")
    try:
        configs = yaml.safe_load(text)
    except yaml.YAMLError as error:
        msg = f"{path} is no YAML file: {error}"
        raise ValueError(msg) from error
    is_list = isinstance(configs, list) and all(isinstance(one, Mapping) for one in configs)
    if not is_list or not configs or not all((one.get("args") or {}).get("save_path") for one in configs):
        msg = f"{path} holds no list of configurations; expected entries with pert_data_path, dataset_name and args, "
        msg += "each with a save_path in its args"
        raise ValueError(msg)
    return list(configs)


def _table(configs: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A row for each configuration, with the decisive scores of runs that have ended."""
    import pandas as pd

    from gears.evaluation.metrics._registry import DECISIVE

    rows = []
    for number, config in enumerate(configs):
        save_path = str(config["args"]["save_path"])
        file = user_path(save_path) / SCORES
        scores = read_json(file) if file.is_file() else {}
        row = {"number": number, "save_path": save_path, "ended": file.is_file()}
        rows.append(row | {name: scores[name] for name in DECISIVE if name in scores})
    return pd.DataFrame(rows)
