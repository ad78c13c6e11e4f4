"""Where screens lie: names of prepared folders, and the h5ad file behind a path."""

from __future__ import annotations

import logging
from pathlib import Path

from gears.data.manifest import H5AD, MANIFEST, is_prepared
from gears.files import user_path
from gears.messages import nearest, shorten

logger = logging.getLogger(__name__)

PUBLISHED_SCREENS = ("norman", "adamson", "dixit", "replogle_k562_essential", "replogle_rpe1_essential")


SUFFIXES = (".h5ad", ".zarr", ".h5")


def _is_source(place: Path) -> bool:
    """Whether a folder holds a screen to prepare."""
    from gears.data.opening import kind_of

    try:
        return bool(kind_of(place))
    except ValueError:
        return False


def make_data_path(data_path: str | Path) -> Path:
    """The folder of prepared screens, made when it is missing.

    Raises
    ------
    NotADirectoryError
        If a file is there.
    """
    path = user_path(data_path)
    if path.exists() and not path.is_dir():
        msg = (
            f"data_path {path} is a file; it is the folder that prepared screens go into. To read the file: "
            f"PertData('gears_data').load(data_path={str(path)!r}), or PertData.from_adata"
        )
        raise NotADirectoryError(msg)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        msg = f"data_path {path} cannot be made: a part of the path is a file; choose another folder"
        raise NotADirectoryError(msg) from error
    return path


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
    """A prepared folder, a published folder or a file of that name in `data_path`; a published screen is fetched.

    Raises
    ------
    FileNotFoundError
        If there is none; what is there is listed.
    """
    folders = (data_path / name, data_path / name.lower())
    for place in folders:
        if place.is_dir() and (is_prepared(place) or (place / H5AD).is_file()):
            return place
    for place in (*folders, *(data_path / f"{name}{suffix}" for suffix in SUFFIXES)):
        if place.is_file() or (place.is_dir() and _is_source(place)):
            return place
    if name.lower() in PUBLISHED_SCREENS:
        from gears.data.downloads import published_screen

        return published_screen(data_path, name.lower())
    there = sorted(place.name for place in data_path.iterdir() if not place.name.startswith("."))
    near = nearest(name, [*there, *PUBLISHED_SCREENS], 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    msg = (
        f"{data_path} has neither a prepared screen {name!r} nor a file {name}.h5ad "
        f"(it has {shorten(there) or 'nothing'}), and no published screen has that name "
        f"({', '.join(PUBLISHED_SCREENS)}){hint}"
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
