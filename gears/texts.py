"""The one place that reads lines of text that somebody else wrote; what cannot be read is named."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from gears.files import user_path

DAMAGE = (UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error)


class WholeLines:
    """A binary file of text as scipy's reader of matrices needs it, which ends the process at anything else.

    Zero bytes are an error, and the last line ends in a line feed whether it does in the file or not.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._last = file, b"\n"

    def read(self, n: int = -1) -> bytes:
        """Some bytes.

        Raises
        ------
        ValueError
            There is a zero among them.
        """
        content = self._file.read(n)
        if b"\x00" in content:
            msg = "it holds zero bytes, which are no text"
            raise ValueError(msg)
        if not content and n and self._last != b"\n":
            content = b"\n"
        self._last = content[-1:] or self._last
        return content


def text_lines(path: str | Path) -> Iterator[str]:
    """Lines of a text file (UTF-8) with their ends; gzipped where its name ends in ``.gz``.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        It is no text, or damaged.
    """
    path, number = user_path(path), 0
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8-sig", newline="") as file:  # type: ignore[operator]
        try:
            for line in file:
                number += 1
                yield line
        except DAMAGE as error:
            msg = f"{path}, after line {number}, cannot be read as text ({error}); get it again"
            raise ValueError(msg) from error


def listed_names(path: str | Path) -> list[str]:
    """What stands on the lines of a text file that are not empty.

    Raises
    ------
    FileNotFoundError, ValueError
        As :func:`text_lines`.
    """
    return [line.strip() for line in text_lines(path) if line.strip()]
