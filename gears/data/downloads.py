"""Published screens: fetched when they are first asked for, never twice, and checked each time."""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock

from gears.data.archives import extract_file, is_archive
from gears.data.manifest import H5AD
from gears.data.opening import kind_of
from gears.data.transfer import TransferError, TransferOptions, fetch, file_hash
from gears.files import read_json, write_json
from gears.messages import unknown_name
from gears.workplace import clean_leftovers

logger = logging.getLogger(__name__)

DATAVERSE = "https://dataverse.harvard.edu/api/access/datafile"
URL_VARIABLE = "GEARS_DOWNLOAD_URL"
"""Environment variable with another address of the same files (a mirror)."""
PUBLISHED_FILES = {
    "norman": 6154020,
    "adamson": 6154417,
    "dixit": 6154416,
    "replogle_k562_essential": 7458695,
    "replogle_rpe1_essential": 7458694,
}
"""Names of the published package, and the numbers of the files in the Harvard Dataverse."""
PUBLISHED_OPTIONS = {"unique_genes": True, "min_cells": 2}
"""How the published screens are prepared, unless the caller says otherwise: they were never checked."""
FOLDER = "downloads"
RECORDS = "hashes.json"


def published_screen(
    data_path: Path, name: str, *, base_url: str | None = None, options: TransferOptions | None = None
) -> Path:
    """The h5ad file of a published screen, from `data_path` or else from the web.

    Looked for in this order: ``downloads/<name>.h5ad`` (checked against the
    hash of its first download), an archive ``<name>.zip`` or ``.tar.gz`` that was put
    into `data_path` by hand, the web.

    Parameters
    ----------
    data_path
        Folder of prepared screens.
    name
        One of :data:`PUBLISHED_FILES`.
    base_url
        Address before the file number; else ``GEARS_DOWNLOAD_URL``, else the Harvard Dataverse.

    Raises
    ------
    ValueError
        If the name is unknown, or the file is not the one of the first download.
    TransferError
        If it cannot be fetched; the message says where to put it by hand.
    """
    if name not in PUBLISHED_FILES:
        raise ValueError(unknown_name("published screen", name, list(PUBLISHED_FILES)))
    base = base_url or os.environ.get(URL_VARIABLE) or DATAVERSE
    url = f"{base.rstrip('/')}/{PUBLISHED_FILES[name]}"
    folder = data_path / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}.h5ad"
    with FileLock(folder / f".{name}.lock"):
        clean_leftovers(folder, target.name, alone=True)
        if target.is_file():
            _check(folder, target, file_hash(target))
            return target
        by_hand = next((place for place in _archives(data_path, name) if is_archive(place)), None)
        archive = by_hand or _download(url, folder / f"{name}.download", data_path, name, options)
        try:
            _place(archive, target)
        except ValueError as error:
            if by_hand is None:
                archive.unlink(missing_ok=True)
            msg = f"{error}. {how_by_hand(data_path, name, url)}"
            raise ValueError(msg) from error
        if by_hand is None:
            archive.unlink(missing_ok=True)
        _check(folder, target, file_hash(target))
    return target


def how_by_hand(data_path: Path, name: str, url: str) -> str:
    """Where to put a file that could not be fetched."""
    return (
        f"To do it by hand: fetch {url} in a browser and put it, as it is, at {data_path / f'{name}.zip'} "
        f"(or its {H5AD} at {data_path / FOLDER / f'{name}.h5ad'}), then load({name!r}) again"
    )


def _archives(data_path: Path, name: str) -> list[Path]:
    return [data_path / f"{name}{suffix}" for suffix in (".zip", ".tar.gz", ".tgz", ".tar")]


def _download(url: str, target: Path, data_path: Path, name: str, options: TransferOptions | None) -> Path:
    logger.info("fetching %s from %s (once; kept in %s)", name, url, target.parent)
    try:
        digest = fetch(url, target, options)
    except TransferError as error:
        msg = f"the screen {name!r} could not be fetched: {error}. {how_by_hand(data_path, name, url)}"
        raise TransferError(msg) from error
    try:
        _check(target.parent, target, digest)
    except ValueError:
        target.unlink()
        raise
    return target


def _place(archive: Path, target: Path) -> None:
    """The h5ad file out of the archive, or the file itself where it is one already."""
    if is_archive(archive):
        extract_file(archive, H5AD, target)
    else:
        if kind_of(archive) != "h5ad":
            msg = f"{archive} is neither an archive nor an h5ad file"
            raise ValueError(msg)
        os.replace(archive, target)


def _check(folder: Path, path: Path, digest: str) -> None:
    """Record the hash of a file the first time; later it must be the same."""
    records = folder / RECORDS
    known = read_json(records) if records.is_file() else {}
    before = known.get(path.name, {}).get("sha256")
    if before is None:
        with FileLock(folder / f".{RECORDS}.lock"):
            known = read_json(records) if records.is_file() else {}
            when = datetime.now(UTC).isoformat(timespec="seconds")
            size = path.stat().st_size
            write_json(records, known | {path.name: {"sha256": digest, "bytes": size, "first_seen": when}})
        return
    if before != digest:
        msg = (
            f"{path} is not the file of the first download (SHA-256 {digest[:12]}..., then {before[:12]}...): it was "
            f"changed, or another one is published now; to take it, remove its entry from {records}, to get the "
            f"old one back, remove {path}"
        )
        raise ValueError(msg)
