"""Paths that users pass: expand ``~``, and check that a file exists or that a folder can be written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def user_path(path: str | os.PathLike[str]) -> Path:
    """A user's path, with ``~`` replaced by the home folder.

    Raises
    ------
    TypeError
        The value is no path.
    ValueError
        There is no such user (``~name``), or no home folder is known.
    """
    if not isinstance(path, str | os.PathLike):
        msg = f"expected a path, as text or pathlib.Path; found {path!r}"
        raise TypeError(msg)
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        msg = f"{path}: the home folder for ~ is unknown; write the path in full"
        raise ValueError(msg) from error


def need_file(path: str | os.PathLike[str], what: str) -> Path:
    """A user's path, which must exist.

    Raises
    ------
    FileNotFoundError
        The path does not exist.
    """
    user_file = user_path(path)
    if not user_file.exists():
        msg = f"{what}: there is no file or folder {user_file}"
        raise FileNotFoundError(msg)
    return user_file


def check_output(path: str | os.PathLike[str], overwrite: bool = False) -> Path:
    """The path of a file to write, which must be free unless `overwrite`.

    Raises
    ------
    FileExistsError
        Something is there, and `overwrite` is False.
    """
    output = user_path(path)
    if output.exists() and not overwrite:
        msg = f"{output} exists already; choose another name, or replace it with overwrite=True"
        raise FileExistsError(msg)
    return output


def check_folder(path: str | os.PathLike[str], what: str) -> Path:
    """Check that a folder for results can be written, before any work is done; creates nothing.

    Parameters
    ----------
    path
        Need not exist.
    what
        The argument's name, for messages.

    Raises
    ------
    FileExistsError, NotADirectoryError
        The folder, or a part of its path, is a file.
    OSError
        The folder cannot be written to; of the system's class (``PermissionError``, ...).
    """
    folder = user_path(path)
    try:
        above = next(parent for parent in folder.absolute().parents if parent.exists())
        if not above.is_dir():
            msg = f"{what} {folder} cannot be made: {above} is a file; choose another {what}"
            raise NotADirectoryError(msg)
        if folder.exists() and not folder.is_dir():
            msg = f"{what} {folder} is a file; choose another {what}"
            raise FileExistsError(msg)
        beside = f".{folder.name}-" if above == folder.absolute().parent else None
        with tempfile.TemporaryDirectory(prefix=beside, suffix=".tmp", dir=above):
            pass
        if folder.exists():
            with tempfile.TemporaryFile(dir=folder):
                pass
    except OSError as error:
        if error.errno is None:
            raise
        msg = f"{what} {folder} cannot be written to ({error.strerror}); choose another {what}"
        raise OSError(error.errno, msg) from error
    return folder
