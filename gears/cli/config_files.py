"""Files of options, looked at before they are read: small, and without references, which can swell without end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gears.files import user_path

LARGEST = 1 << 20
"""Bytes: a file of options has a few thousand."""


def check_config_files(arguments: Sequence[str]) -> None:
    """Refuse the files behind ``--config`` that no run wrote.

    Raises
    ------
    ValueError
        A file is too large, nested without end, or uses anchors and aliases.
    """
    words = list(arguments)
    named = [word.partition("=")[2] for word in words if word.startswith("--config=")]
    named += [words[place + 1] for place, word in enumerate(words[:-1]) if word == "--config"]
    for name in named:
        path = user_path(name)
        if path.is_file():
            _check(path)


def _check(path: Path) -> None:
    import yaml

    if path.stat().st_size > LARGEST:
        msg = f"{path} has {path.stat().st_size} bytes; a file of options has a few thousand"
        raise ValueError(msg)
    try:
        loader = yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader
        aliases = any(
            isinstance(event, yaml.AliasEvent)
            for event in yaml.parse(path.read_text(encoding="utf-8"), Loader=loader)
        )
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        msg = f"{path} cannot be read as YAML ({' '.join(str(error).split())}); expected lines of name: value"
        raise ValueError(msg) from error
    if aliases:
        msg = f"{path} refers to parts of itself (&name, *name); write the values out"
        raise ValueError(msg)
