"""Every reader as a function of bytes: one file among those that it reads is made of them."""

from __future__ import annotations

import contextlib
import shutil
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from readers import READERS, files

from gears.conditions import Condition
from gears.files.formats import read_json, write_json
from gears.files.tensors import read_tensors
from gears.files.untrusted import check_config_files
from gears.model.config import ModelConfig
from gears.model.folder import load_parts
from gears.training.options import TrainOptions

if TYPE_CHECKING:
    from anndata import AnnData

ALLOWED = (ValueError, OSError)
LEFT_OUT = ("h5ad", "ten_x", "cache")
"""HDF5's own library is not ours to fuzz; a cache that cannot be read is built again, whatever is in it."""
ONE_BY_ONE = ("gene_sets", "annotations", "edges", "embeddings", "split_dicts", "archives", "ontology")
"""Readers that take the files of a folder one after the other: each has a folder of its own here."""
LABEL, SETTINGS = "GX00+ctrl", '{"hidden_size": 64, "epochs": 3, "objective": "cells", "lr": 0.001}'


@dataclass
class Target:
    """A reader that takes bytes: they become one file among those it reads."""

    name: str
    place: Path
    file: Path
    read: Callable[[Path], Any]

    def seed(self) -> bytes:
        return self.file.read_bytes()

    def finding(self, content: bytes) -> tuple[str, str] | None:
        """What is wrong with how these bytes are read: its kind and place, and in words; None if nothing is."""
        self.file.write_bytes(content)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.read(self.place)
        except ALLOWED as error:
            text = str(error)
            if self.file.name in text or str(self.place) in text:
                return None
            return f"no name, {_where(error)}", text[:200]
        except BaseException as error:
            return f"{type(error).__name__}, {_where(error)}", str(error)[:200]
        return None


def _where(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


def _read_model(place: Path) -> None:
    load_parts(place)
    read_tensors(place / "model.pt")


def _read_label(place: Path) -> None:
    label = (place / "label.txt").read_bytes().decode("utf-8", "replace")
    with contextlib.suppress(ValueError):  # words of labels name the label, not a file
        assert Condition.parse(Condition.parse(label).name) == Condition.parse(label)


def _read_settings(place: Path) -> None:
    """Settings as a saved model or a file of options gives them."""
    check_config_files(["--config", str(place / "settings.txt")])
    values = read_json(place / "settings.txt")
    if isinstance(values, dict):
        known = {key: value for key, value in values.items() if key in TrainOptions.__dataclass_fields__}
        for make in (lambda: ModelConfig.from_dict(values), lambda: TrainOptions(**known)):
            with contextlib.suppress(ValueError, TypeError):  # words of settings name the setting, not a file
                make()


def unsealed(place: Path) -> None:
    """Take seals and checksums out, as a forger would: what they hide must be read with care too."""
    for path in place.rglob("*.json"):
        plain = read_json(path)
        if isinstance(plain, dict):
            write_json(path, {k: v for k, v in plain.items() if k not in ("checksum", "checksums", "hash")})


def targets(folder: Path, adata: AnnData, only: str = "") -> dict[str, Target]:
    """One for each file of each reader (of all, or of one); a reader of any number of files gets one."""
    found: dict[str, Target] = {}
    for reader in READERS.values():
        if reader.name in LEFT_OUT or only.partition("/")[0] not in ("", reader.name):
            continue
        place = folder / reader.name
        place.mkdir(parents=True)
        reader.make(place, adata.copy())
        if reader.sealed:
            unsealed(place)
        read = _read_model if reader.name == "model" else reader.read
        for file in files(place):
            name = f"{reader.name}/{file.relative_to(place).as_posix()}"
            home = place
            if reader.name in ONE_BY_ONE:
                home = folder / f"{reader.name}-{file.name}"
                home.mkdir()
                file = Path(shutil.copy(file, home))
            if file.suffix != ".h5ad":
                found[name] = Target(name, home, file, read)
    return found | _of_text(folder)


def _of_text(folder: Path) -> dict[str, Target]:
    """Labels and settings, which have no file of their own."""
    found = {}
    for name, text, read in (("label", LABEL, _read_label), ("settings", SETTINGS, _read_settings)):
        file = folder / name / f"{name}.txt"
        file.parent.mkdir(parents=True)
        file.write_text(text)
        found[f"{name}/{file.name}"] = Target(f"{name}/{file.name}", file.parent, file, read)
    return found
