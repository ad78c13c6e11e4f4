"""Published screens: downloaded when first requested, unpacked, and checked each time."""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import shutil
import stat
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import urlsplit

from filelock import FileLock

from gears.core.messages import shorten, unknown_name
from gears.data.reading.open import kind_of
from gears.data.screen.files import H5AD
from gears.files.atomic import clean_leftovers, write_atomically
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

BLOCK = 1 << 20
RETRIED = (408, 425, 429, 500, 502, 503, 504)

LARGEST = 200 * 10**9
"""No published screen comes near this many bytes."""


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


class TransferError(OSError):
    """A file could not be fetched."""


@dataclass(frozen=True)
class TransferOptions:
    """Patience with a server.

    Parameters
    ----------
    timeout
        Seconds without a byte after which a connection counts as lost.
    attempts
        How often a broken transfer is taken up again.
    pause
        Seconds before the second attempt; doubled each time.
    """

    timeout: float = 60.0
    attempts: int = 4
    pause: float = 2.0


def fetch(url: str, target: Path, options: TransferOptions | None = None) -> str:
    """Fetch a file; `target` appears only when it is complete.

    What arrived of a broken transfer stays beside `target` as ``<name>.part``
    and is continued, if the server still has the same file.

    Parameters
    ----------
    url
        http or https.
    target
        Where the file goes.

    Returns
    -------
    str
        SHA-256 of the file (hex).

    Raises
    ------
    TransferError
        With the URL, what the server said, and how much has arrived.
    """
    options = options or TransferOptions()
    if urlsplit(url).scheme not in ("http", "https"):
        msg = f"{url} is no http or https address"
        raise TransferError(msg)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = _Part(target.with_name(f"{target.name}.part"), url)
    problem = ""
    for attempt in range(options.attempts):
        if attempt:
            pause = options.pause * 2 ** (attempt - 1)
            logger.warning("%s: %s; trying again in %g s (%d bytes are here)", url, problem, pause, part.size)
            time.sleep(pause)
        try:
            _attempt(url, part, options)
        except _Hopeless as error:
            msg = f"{url}: {error}"
            raise TransferError(msg) from error
        except (OSError, http.client.HTTPException, _Broken) as error:
            problem = _words(error)
            continue
        digest = file_hash(part.path)
        os.replace(part.path, target)
        part.forget()
        return digest
    msg = f"{url}: {problem} (after {options.attempts} attempts; {part.size} bytes are kept and will be continued)"
    raise TransferError(msg)


class _Broken(Exception):
    """A transfer that may succeed when it is tried again."""


class _Hopeless(Exception):
    """A transfer that will not."""


class _Part:
    """What has arrived so far, and which version of the file it is from."""

    def __init__(self, path: Path, url: str) -> None:
        self.path, self.url = path, url
        self.notes = path.with_name(f"{path.name}.json")
        self.version: str | None = None
        try:
            kept = read_json(self.notes)
        except (OSError, ValueError):
            kept = {}
        if isinstance(kept, dict) and kept.get("url") == url and isinstance(kept.get("version"), str):
            self.version = kept["version"]
        if self.version is None:
            self.forget()  # nothing says that the rest would fit

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0

    def begin(self, version: str | None) -> None:
        """Start anew with a version of the file."""
        self.path.unlink(missing_ok=True)
        self.version = version
        if version is None:
            self.notes.unlink(missing_ok=True)
        else:
            write_json(self.notes, {"url": self.url, "version": version})

    def forget(self) -> None:
        for path in (self.path, self.notes):
            path.unlink(missing_ok=True)


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https only, and never from https to http."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        old, new = urlsplit(req.full_url).scheme, urlsplit(newurl).scheme
        if new not in ("http", "https") or (old == "https" and new == "http"):
            fp.close()
            text = f"redirected to {newurl!r}, which is not followed"
            raise _Hopeless(text)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _attempt(url: str, part: _Part, options: TransferOptions) -> None:
    """One connection: everything that is missing."""
    request = urllib.request.Request(url, headers={"User-Agent": "gears", "Accept-Encoding": "identity"})
    have = part.size if part.version else 0
    if have:
        request.add_header("Range", f"bytes={have}-")
        request.add_header("If-Range", str(part.version))
    opener = urllib.request.build_opener(_SafeRedirects)
    try:
        response = opener.open(request, timeout=options.timeout)
    except urllib.error.HTTPError as error:
        _refused(error, part)
        return
    with response:
        kind = str(response.headers.get("Content-Type", "")).lower()
        if "text/html" in kind:
            msg = f"the server sent a web page ({kind}) instead of the file"
            raise _Hopeless(msg)
        total = _start(response, part, have)
        _receive(response, part, total)
    if total is not None and part.size != total:
        msg = f"the connection ended after {part.size} of {total} bytes"
        if part.size > total:
            part.forget()
        raise _Broken(msg)
    if part.size == 0:
        msg = "the server sent nothing"
        raise _Broken(msg)


def _refused(error: urllib.error.HTTPError, part: _Part) -> None:
    """An answer that is no file."""
    with error:
        if error.code == 416:  # what is here is no part of what the server has now
            part.forget()
            msg = "the server has another file than the one begun"
            raise _Broken(msg)
        words = f"status {error.code} ({error.reason})"
        raise (_Broken if error.code in RETRIED else _Hopeless)(words)


def _start(response: Any, part: _Part, have: int) -> int | None:
    """Whether the answer continues what is here or begins anew; the size of the whole file, where known."""
    length = response.headers.get("Content-Length")
    size = int(length) if length is not None and str(length).isdigit() else None
    version = response.headers.get("ETag") or response.headers.get("Last-Modified")
    if response.status == 206:
        given = str(response.headers.get("Content-Range", ""))
        if not given.startswith(f"bytes {have}-"):
            part.forget()
            msg = f"the server continued at another place ({given!r}) than asked for ({have})"
            raise _Broken(msg)
        return None if size is None else have + size
    part.begin(None if version is None or version.startswith("W/") else version)
    return size


def _receive(response: Any, part: _Part, total: int | None) -> None:
    told = time.monotonic()
    with open(part.path, "ab") as file:
        while True:
            try:
                block = response.read(BLOCK)
            except http.client.IncompleteRead as error:
                block = error.partial
                if not block:
                    break
            if not block:
                break
            file.write(block)
            if time.monotonic() - told > 5:
                told = time.monotonic()
                share = f" of {total / 1e6:.0f} ({file.tell() / total:.0%})" if total else ""
                logger.info("%s: %.0f%s MB", part.path.name.removesuffix(".part"), file.tell() / 1e6, share)
        file.flush()
        os.fsync(file.fileno())


def _words(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason or error) or type(error).__name__


def file_hash(path: Path) -> str:
    """SHA-256 of a file (hex)."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_archive(path: Path) -> bool:
    """Whether a file is a zip or tar archive, by its content."""
    return path.is_file() and (zipfile.is_zipfile(path) or tarfile.is_tarfile(path))


def extract_file(archive: Path, name: str, target: Path, *, largest: int = LARGEST) -> Path:
    """Take the one file called `name`, in whatever folder of the archive, out to `target` (atomically).

    Nothing else is written, so that no path inside the archive is ever used as a
    place on disk; an archive with unsafe entries is refused all the same.

    Raises
    ------
    ValueError
        If the archive is damaged or unsafe, lacks the file, or has it twice.
    """
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                _from_zip(opened, archive, name, target, largest)
        else:
            with tarfile.open(archive) as tar:
                _from_tar(tar, archive, name, target, largest)
    except Exception as error:  # whatever zipfile, tarfile and what they unpack with make of damage
        if any(str(place) in str(error) for place in (archive, target)):
            raise
        msg = f"{archive} is damaged, or no zip or tar archive ({error}); get it again"
        raise ValueError(msg) from error
    return target


def _from_zip(opened: zipfile.ZipFile, archive: Path, name: str, target: Path, largest: int) -> None:
    entries = opened.infolist()
    links = [entry.filename for entry in entries if stat.S_ISLNK(entry.external_attr >> 16)]
    _refuse(archive, [entry.filename for entry in entries], links)
    chosen = _only(archive, name, [entry.filename for entry in entries if not entry.is_dir()])
    size = opened.getinfo(chosen).file_size
    with opened.open(chosen) as source:
        _write(source, target, size, largest, archive)


def _from_tar(tar: tarfile.TarFile, archive: Path, name: str, target: Path, largest: int) -> None:
    members = tar.getmembers()
    odd = [member.name for member in members if not (member.isfile() or member.isdir())]
    _refuse(archive, [member.name for member in members], odd)
    chosen = _only(archive, name, [member.name for member in members if member.isfile()])
    member = tar.getmember(chosen)
    source = tar.extractfile(member)
    assert source is not None
    with source:
        _write(source, target, member.size, largest, archive)


def _refuse(archive: Path, names: list[str], odd: list[str]) -> None:
    unsafe = [*_outside(names), *odd]
    if unsafe:
        msg = f"{archive} has entries that point outside of it or are no files ({shorten(unsafe, 3)}); it is not opened"
        raise ValueError(msg)


def _outside(names: list[str]) -> Iterator[str]:
    for name in names:
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or ":" in name:
            yield name


def _only(archive: Path, name: str, names: list[str]) -> str:
    found = [entry for entry in names if PurePosixPath(entry).name == name and "__MACOSX" not in entry]
    if len(found) != 1:
        what = "several files" if found else "no file"
        msg = f"{archive} has {what} {name!r} (it has {shorten(names) or 'nothing'})"
        raise ValueError(msg)
    return found[0]


def _write(source: IO[bytes], target: Path, size: int, largest: int, archive: Path) -> None:
    """The file, never longer than the archive says (checked by zip and tar through CRC and size too)."""
    if size > largest:
        msg = f"{archive} says that it holds {size} bytes, more than the {largest} allowed"
        raise ValueError(msg)

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)

    write_atomically(target, write)
