"""`gears convert`: convert a model or a folder of screens of cell-gears to this package's format."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gears.cli._parser import CommandParser, show
from gears.files._paths import user_path

EPILOG = """examples:
  gears convert data gears_data --dataset norman                         (a screen: data/norman/perturb_processed.h5ad)
  gears convert data gears_data --dataset norman --split simulation --seed 1
  gears convert models/norman models/norman-new --data data --dataset norman
  gears convert models/norman models/norman-new --names names.json

The source is not changed, and no code in its pickles is run. A model of cell-gears holds no gene names: they
come from the screen that it was trained on, or from a file.
"""
NAMES = ("gene_names", "pert_names", "control_mean")


def convert_parser() -> CommandParser:
    parser = CommandParser(
        "convert", "SOURCE OUTPUT", "Convert cell-gears data: a folder of screens, or a saved model.", EPILOG
    )
    parser.add("source", "the data folder of cell-gears, or a model (config.pkl, model.pt)")
    parser.add("output", "folder for the prepared screen or the model")
    parser.add("--dataset", "name of the screen in the data folder")
    parser.add("--data", "for a model: the data folder of cell-gears with its screen DATASET")
    parser.add("--names", f"for a model: a JSON file of {', '.join(NAMES)}, instead of --data")
    parser.add("--split", "for a screen: a split of cell-gears to write beside it")
    parser.add("--seed", "seed of that split", type=int, default=1)
    parser.add("--train-gene-set-size", "train_gene_set_size of that split", type=float, default=0.75)
    parser.add("--overwrite", "replace an existing model or file of the split", action="store_true")
    return parser


def run_convert(options: Any) -> None:
    from gears.cell_gears._folders import is_published

    if not user_path(options.source).is_dir():
        msg = f"there is no folder {options.source}"
        raise FileNotFoundError(msg)
    value, text = _model(options) if is_published(options.source) else _screen(options)
    show(options, value, text)


def _screen(options: Any) -> tuple[dict[str, Any], str]:
    """Prepare a screen of the source in the output folder, with its split as JSON beside it."""
    from gears.published import load_cell_gears_folder

    if options.dataset is None:
        files = user_path(options.source).glob("*/perturb_processed.h5ad")
        available = sorted(path.parent.name for path in files)
        msg = f"name the screen in {options.source} with --dataset (there are: {', '.join(available) or 'none'})"
        raise ValueError(msg)
    split_arguments = {name: options[name] for name in ("split", "seed", "train_gene_set_size")}
    data = load_cell_gears_folder(options.source, options.dataset, output=options.output, **split_arguments)
    value: dict[str, Any] = {"folder": str(data.dataset_path), "split": None}
    if data.split is not None:
        path = user_path(options.output) / f"{data.dataset_name}-{options.split}-{options.seed}.json"
        value["split"] = str(data.split.save(path, overwrite=options.overwrite))
    n_perturbed = len(data.screen.conditions) - 1
    value |= {"n_cells": data.screen.n_cells, "n_conditions": n_perturbed, "n_nodes": len(data.pert_names)}
    lines = [f"screen  {value['folder']}: {value['n_cells']} cells, {n_perturbed} perturbed conditions"]
    if value["split"]:
        lines.append(f"split   {value['split']} (gears train ... --split custom --split-dict-path {value['split']})")
    return value, "\n".join(lines)


def _model(options: Any) -> tuple[dict[str, Any], str]:
    """Write the model of the source to the output folder, with the names of its screen."""
    from gears.model._folder import is_model
    from gears.published import load_cell_gears_folder, load_cell_gears_model

    if (options.data is None) == (options.names is None):
        msg = "a model of cell-gears holds no gene names; give --data and --dataset (its screen), or --names"
        raise ValueError(msg)
    if is_model(user_path(options.output)) and not options.overwrite:
        msg = f"{options.output} holds a model already: give another folder, or --overwrite to replace it"
        raise FileExistsError(msg)
    if options.names is not None:
        model = load_cell_gears_model(options.source, device="cpu", **_names(user_path(options.names)))
        model.save_model(options.output)
    elif options.dataset is None:
        msg = f"name the screen of the model in {options.data} with --dataset"
        raise ValueError(msg)
    else:
        with TemporaryDirectory() as folder:
            screen = load_cell_gears_folder(options.data, options.dataset, output=folder)
            model = load_cell_gears_model(options.source, screen, device="cpu")
            model.save_model(options.output)
    value = {"model": options.output, "n_genes": model.num_genes, "n_perts": model.num_perts}
    text = f"model  {options.output}: {value['n_genes']} genes, {value['n_perts']} that can be perturbed"
    return value, text


def _names(path: Path) -> dict[str, Any]:
    from gears.files.formats import read_json

    names = read_json(path)
    if not isinstance(names, dict) or set(names) != set(NAMES):
        msg = f"{path} is no file of names: expected a JSON object with {', '.join(NAMES)}"
        raise ValueError(msg)
    return names
