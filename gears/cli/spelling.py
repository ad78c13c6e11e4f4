"""Remedies in messages, from Python's spelling (``ctrl_label='NT'``) to the command line's (``--ctrl-label NT``)."""

from __future__ import annotations

import ast
import json
import re
import shlex
from dataclasses import fields

_ARGUMENT = re.compile(r"\b([a-z][a-z0-9_]*)=(True\b|False\b|'[^']*'|\"[^\"]*\"|\[[^\]]*\]|-?[\w.]*\w)?(?!=)")


def as_options(message: str, names: frozenset[str] | None = None) -> str:
    """A message with the arguments in it written as options.

    Examples
    --------
    >>> as_options("pass ctrl_label='NT', or normalize=True", frozenset({"ctrl_label", "normalize"}))
    'pass --ctrl-label NT, or --normalize'
    """
    names = option_names() if names is None else names

    def replace(match: re.Match[str]) -> str:
        name, value = match.groups()
        if name not in names:
            return match.group()
        option = name.replace("_", "-")
        if value in ("True", "False"):
            return f"--{option}" if value == "True" else f"--no-{option}"
        return f"--{option}{f' {_word(value)}' if value else ''}"

    return _ARGUMENT.sub(replace, message)


def _word(value: str) -> str:
    """A Python value as one word of a shell."""
    try:
        plain = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
    return shlex.quote(plain if isinstance(plain, str) else json.dumps(plain))


def option_names() -> frozenset[str]:
    """Every name that is an option of some command."""
    from gears.data.options import ProcessingOptions
    from gears.data.splits import SplitArguments
    from gears.model.config import ModelConfig
    from gears.training.options import TrainOptions

    names = {
        field.name
        for kind in (ProcessingOptions, SplitArguments, ModelConfig, TrainOptions)
        for field in fields(kind)
    }
    more = {
        "n_gpus",
        "gpu_ids",
        "device",
        "timeout",
        "num_workers",
        "test_batch_size",
        "drop_unmapped",
        "guides",
    }
    return frozenset(
        names
        | more
        | {
            "guide_targets",
            "gene2go",
            "obo",
            "go_graph",
            "coexpress_graph",
            "pert_embedding",
            "gene_set_path",
            "split_dict_path",
        }
        - {"split_dict"}
    )
