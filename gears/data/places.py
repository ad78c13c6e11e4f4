"""Where screens lie: names of prepared folders, and the h5ad file behind a path."""

from __future__ import annotations

import logging
from pathlib import Path

from gears.data.manifest import H5AD, MANIFEST, is_prepared
from gears.messages import shorten

logger = logging.getLogger(__name__)

PUBLISHED_SCREENS = ("norman", "adamson", "dixit", "replogle_k562_essential", "replogle_rpe1_essential")


def folder_name(name: str) -> str:
    """A dataset name as a folder name: lower case as published, and nothing but a name.

    Raises
    ------
    ValueError
        If it is empty, hidden or holds a path.

    Examples
    --------
    >>> folder_name("Norman_2019")
    'norman_2019'
    """
    plain = str(name).strip().lower()
    if not plain or plain.startswith(".") or any(sign in plain for sign in '/\\\0:*?"<>|'):
        msg = f"dataset name {name!r} cannot name a folder; use letters, digits, '-' and '_'"
        raise ValueError(msg)
    return plain


def find_screen(data_path: Path, name: str) -> Path:
    """A prepared folder, a published folder or an h5ad file of that name in `data_path`.

    Raises
    ------
    FileNotFoundError
        If there is none; what is there is listed.
    """
    for place in (data_path / name, data_path / name.lower(), data_path / f"{name}.h5ad"):
        if place.is_file() or (place.is_dir() and (is_prepared(place) or (place / H5AD).is_file())):
            return place
    there = sorted(place.name for place in data_path.iterdir() if not place.name.startswith("."))
    hint = (
        "; nothing is downloaded: obtain the h5ad file and put it there" if name in PUBLISHED_SCREENS else ""
    )
    msg = (
        f"{data_path} has neither a prepared screen {name!r} nor a file {name}.h5ad "
        f"(it has {shorten(there) or 'nothing'}){hint}"
    )
    raise FileNotFoundError(msg)


def warn_if_older(folder: Path, file: Path) -> None:
    """Warn where a file of the same name was changed after the folder was prepared from it."""
    if file.is_file() and file.stat().st_mtime > (folder / MANIFEST).stat().st_mtime:
        logger.warning(
            "%s was changed after the prepared screen %s was made, which is what is used; "
            "load(data_path=%r) prepares it anew",
            file.name,
            folder.name,
            str(file),
        )


def h5ad_behind(place: Path, data_path: Path) -> tuple[Path, str]:
    """The h5ad file that a path means, and the name of the folder in `data_path` to prepare it into.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    """
    if place.is_dir():
        file = place / H5AD
        if not file.is_file():
            msg = f"{place} is neither a prepared screen nor a folder with {H5AD}; give the h5ad file itself"
            raise FileNotFoundError(msg)
        name = folder_name(place.resolve().name)
        # A folder of the published package is somebody's data: prepared beside it, not over it.
        taken = (data_path / name).exists() and not is_prepared(data_path / name)
        return file, f"{name}-prepared" if taken else name
    if not place.is_file():
        msg = f"there is no file or folder {place}"
        raise FileNotFoundError(msg)
    return place, folder_name(place.stem)
