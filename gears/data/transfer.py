"""One file from a web server, whole or not at all: status, length and kind checked, resumed where it broke off."""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gears.files import read_json, write_json

logger = logging.getLogger(__name__)

BLOCK = 1 << 20
RETRIED = (408, 425, 429, 500, 502, 503, 504)


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
