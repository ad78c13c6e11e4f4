"""Read and write torch files of tensors and plain types, with ``weights_only=True``."""

from __future__ import annotations

import errno
import io
import zipfile
from pathlib import Path
from typing import Any

import torch

from gears.files._atomic import write_atomically
from gears.files._paths import existing_file, reading


class _File(io.BufferedWriter):
    """A file that keeps the error of its first write that failed: torch raises another one, without the reason."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.error = self.error or error
            raise


def write_tensors(path: str | Path, value: Any) -> None:
    """``torch.save`` through a temporary name."""

    def write(temporary: Path) -> None:
        with _File(io.FileIO(temporary, "wb")) as file:
            try:
                torch.save(value, file)
            except RuntimeError as error:  # torch raises this when the disk is full
                if file.error is not None:
                    raise file.error from error
                reason = (str(error).splitlines() or ["no reason given"])[0]
                raise OSError(errno.EIO, reason) from error

    write_atomically(path, write)


def read_tensors(path: str | Path, device: str | torch.device = "cpu") -> Any:
    """Read tensors and plain types; content that could run code, or damage, is an error."""
    path = existing_file(path)
    with reading(path, "a file of tensors", "it may be damaged"):
        _check_zip(path)
        return torch.load(path, map_location=device, weights_only=True)


def _check_zip(path: Path) -> None:
    """Compare checksums, which ``torch.load`` does not."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
            if broken is not None:
                msg = f"its entry {broken} does not match its checksum"
                raise ValueError(msg)
