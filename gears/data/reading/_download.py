"""Published screens: downloaded when first requested, unpacked, and checked each time."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tarfile
import zipfile
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import IO, Any

from gears.core._messages import shorten, unknown_name
from gears.core._progress import watched
from gears.data.reading._open import kind_of
from gears.data.screen._files import H5AD
from gears.files._atomic import locked
from gears.files.formats import read_json, write_json

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
HEADERS = {"User-Agent": "gears", "Accept-Encoding": "identity"}


def published_screen(
    data_path: Path, name: str, *, base_url: str | None = None, retries: int = 3, timeout: float = 60.0
) -> Path:
    """The h5ad file of a published screen, one of :data:`PUBLISHED_FILES`, from `data_path` or else from the web.

    Looked for in this order: ``downloads/<name>.h5ad`` (checked against the hash of its first download), an archive
    ``<name>.zip`` or ``.tar.gz`` that was put into `data_path` by hand, the web (`base_url`, else
    ``GEARS_DOWNLOAD_URL``, else the Harvard Dataverse). ValueError if the name is unknown or the file is not a screen
    or not that of the first download, OSError if it cannot be downloaded; the message says where to put it by hand.
    """
    if name not in PUBLISHED_FILES:
        raise ValueError(unknown_name("published screen", name, list(PUBLISHED_FILES)))
    base = base_url or os.environ.get(URL_VARIABLE) or DATAVERSE
    url = f"{base.rstrip('/')}/{PUBLISHED_FILES[name]}"
    folder = data_path / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    target, incoming = folder / f"{name}.h5ad", folder / f".{name}.incoming"
    with locked(folder / f".{name}.lock"), ExitStack() as stack:
        shutil.rmtree(incoming, ignore_errors=True)  # what a killed process left
        if not target.is_file():
            stack.callback(shutil.rmtree, incoming, ignore_errors=True)
            by_hand = (data_path / f"{name}{suffix}" for suffix in (".zip", ".tar.gz", ".tgz", ".tar"))
            archive = next(filter(is_archive, by_hand), None)
            try:
                archive = archive or download_file(url, incoming, f"{name}.download", retries, timeout)
                screen = extract_file(archive, H5AD, incoming) if is_archive(archive) else archive
                if kind_of(screen) != "h5ad":
                    msg = f"{screen.name} is neither an archive nor an h5ad file"
                    raise ValueError(msg)
                if archive.parent == incoming:
                    _check(folder / RECORDS, archive)
            except (OSError, ValueError) as error:
                msg = (
                    f"the screen {name!r} could not be fetched: {error}. To do it by hand: download {url} in a browser "
                    f"and put the file, unchanged, at {data_path / f'{name}.zip'} (or its {H5AD} at {target}), then "
                    f"load({name!r}) again"
                )
                raise (OSError if isinstance(error, OSError) else ValueError)(msg) from error
            os.replace(screen, target)
        _check(folder / RECORDS, target)
    return target


def download_file(url: str, folder: Path, name: str, retries: int = 3, timeout: float = 60.0) -> Path:
    """Download a file whole, as `name` in `folder`; a web page in its place is an error."""
    import pooch

    logger.info("downloading %s (once)", url)
    pooch.get_logger().setLevel(logging.WARNING)
    with ExitStack() as stack:

        def close_later(response: Any, **_: Any) -> None:  # pooch leaves responses open
            stack.callback(response.close)

        options = {"chunk_size": 1 << 20, "timeout": timeout, "headers": HEADERS, "progressbar": watched()}
        downloader = pooch.HTTPDownloader(**options, hooks={"response": close_later})
        urls, hashes = {name: url}, {name: None}
        source = pooch.create(folder, base_url="", urls=urls, registry=hashes, retry_if_failed=retries)
        path = Path(source.fetch(name, downloader=downloader))
    with open(path, "rb") as file:
        start = file.read(512).lstrip().lower()
    if not start or start.startswith((b"<!doctype", b"<html", b"<?xml")):
        msg = f"{url} sent {'a web page instead of the file' if start else 'an empty file'}"
        raise ValueError(msg)
    return path


def _check(records: Path, path: Path) -> None:
    """Record the hash of a file the first time; later it must be the same."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with locked(records.with_name(f".{records.name}.lock")):
        known = read_json(records) if records.is_file() else {}
        before = known.get(path.name, {}).get("sha256")
        if before is None:
            when = datetime.now(UTC).isoformat(timespec="seconds")
            entry = {"sha256": digest, "bytes": path.stat().st_size, "first_seen": when}
            write_json(records, known | {path.name: entry})
    if before not in (None, digest):
        msg = (
            f"{path} is not the file of the first download (SHA-256 {digest[:12]}..., then {before[:12]}...): it was "
            f"changed, or another one is published now. To accept it, remove its entry from {records}; to download "
            f"the old one again, remove {path}"
        )
        raise ValueError(msg)


def is_archive(path: Path) -> bool:
    """Whether a file is a zip or tar archive, by its content."""
    return path.is_file() and (zipfile.is_zipfile(path) or tarfile.is_tarfile(path))


def extract_file(archive: Path, name: str, folder: Path) -> Path:
    """Copy the one file called `name`, in whatever folder of the archive, into `folder`, and nothing else.

    ValueError if the archive is damaged, lacks the file or has it twice.
    """
    target = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with ExitStack() as stack:
            file: IO[bytes] | None
            if zipfile.is_zipfile(archive):
                zipped = stack.enter_context(zipfile.ZipFile(archive))
                file = zipped.open(_only(archive, name, zipped.namelist()))
            else:
                tar = stack.enter_context(tarfile.open(archive))
                file = tar.extractfile(_only(archive, name, [entry.name for entry in tar if entry.isfile()]))
            assert file is not None  # a regular file
            with file, open(target, "wb") as copy:
                shutil.copyfileobj(file, copy)
        return target
    except Exception as error:  # whatever zipfile, tarfile and what they unpack with raise for damaged files
        if str(archive) in str(error):
            raise
        msg = f"{archive} is damaged, or not a zip or tar archive ({error}). Download or copy it again"
        raise ValueError(msg) from error


def _only(archive: Path, name: str, names: list[str]) -> str:
    matching = [entry for entry in names if PurePosixPath(entry).name == name and "__MACOSX" not in entry]
    if len(matching) != 1:
        what = "several files" if matching else "no file"
        msg = f"{archive} has {what} {name!r} (it has {shorten(names) or 'nothing'})"
        raise ValueError(msg)
    return matching[0]
