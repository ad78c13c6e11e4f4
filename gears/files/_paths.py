"""Paths that users pass: expand ``~``, and check that a file exists or that a folder can be written."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any


def user_path(path: str | os.PathLike[str]) -> Path:
    """A user's path, ``~`` replaced by the home folder; TypeError for no path, ValueError for an unknown ``~name``."""
    if not isinstance(path, str | os.PathLike):
        msg = f"expected a path, as text or pathlib.Path; found {path!r}"
        raise TypeError(msg)
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        msg = f"{path}: the home folder for ~ is unknown; write the path in full"
        raise ValueError(msg) from error


def link_target(path: Path) -> Path:
    """What a link points to, which need not exist yet; any other path unchanged. Writing there keeps the link.

    OSError for a link that leads back to itself.
    """
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    if target.is_symlink():
        msg = f"{path} is a link that leads back to itself; remove it, or choose another path"
        raise OSError(msg)
    return target


class FolderPath(type(Path())):  # type: ignore[misc]
    """A path that ``+`` joins to a string, as a script does whose path was a string: ``path + "/norman"``."""

    def __add__(self, text: str) -> str:
        return f"{self}{text}"


def named(path: Path) -> Path:
    """The absolute path without "." and ".."; links keep their own names."""
    return Path(os.path.abspath(path))


def need_file(path: str | os.PathLike[str], what: str) -> Path:
    """A user's path, which must exist; else FileNotFoundError."""
    user_file = user_path(path)
    if not user_file.exists():
        msg = f"{what}: there is no file or folder {user_file}"
        raise FileNotFoundError(msg)
    return user_file


def need_files(options: Any, names: Iterable[str], builtin: Collection[str] = ()) -> None:
    """Raise FileNotFoundError for paths among these options that lead nowhere; words of `builtin` are no paths."""
    for name in names:
        value = getattr(options, name)
        if isinstance(value, str | Path) and value not in builtin:
            object.__setattr__(options, name, str(need_file(value, name)))


def named_sources(given: Any, what: str) -> dict[str, Any]:
    """Sources by name, from one, a list or a mapping of names; a path must exist."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        sources = {str(name): source for name, source in given.items()}
    else:
        sources = {}
        for source in given if isinstance(given, list | tuple) else [given]:
            name = _name_of(source)
            sources[name if name not in sources else f"{name} {len(sources) + 1}"] = source
    for name, source in sources.items():
        if not name.strip():
            msg = f"{what} has an entry without a name; give each a name"
            raise ValueError(msg)
        if isinstance(source, str | Path):
            need_file(source, what)
    return sources


def _name_of(source: Any) -> str:
    if isinstance(source, str | Path):
        name = user_path(source).name
        return name.partition(".")[0] or name
    folder = getattr(source, "dataset_path", None) or getattr(source, "folder", None)
    return "another screen" if folder is None else Path(folder).name


def existing_file(path: str | os.PathLike[str], what: str = "file") -> Path:
    """A user's path of a file, which must exist; else FileNotFoundError, which calls it `what`."""
    user_file = user_path(path)
    if not user_file.is_file():
        msg = f"there is no {what} {user_file}"
        raise FileNotFoundError(msg)
    return user_file


@contextlib.contextmanager
def reading(path: Path, what: str, remedy: str = "") -> Iterator[None]:
    """Turn errors while a file is read as `what` ("an npz file") into a ValueError with the reason and the remedy.

    A missing file or package, and errors that name the file already, are raised unchanged.
    """
    try:
        yield
    except (FileNotFoundError, ImportError):
        raise
    except Exception as error:  # damaged files make readers raise anything
        if isinstance(error, ValueError) and str(path) in str(error):
            raise
        reason = next(iter(str(error).splitlines()), "no reason given")
        msg = f"{path} cannot be read as {what} ({type(error).__name__}: {reason}){remedy and f'; {remedy}'}"
        raise ValueError(msg) from error


def check_output(path: str | os.PathLike[str], overwrite: bool = False) -> Path:
    """The path of a file or zarr store to write; FileExistsError where something is there, without `overwrite`.

    Another folder than a store is never replaced.
    """
    output = user_path(path)
    if output.is_dir() and not any((output / name).exists() for name in (".zgroup", "zarr.json")):
        msg = f"{output} is a folder and not a file or zarr store that could be replaced; choose another name"
        raise FileExistsError(msg)
    if output.exists() and not overwrite:
        msg = f"{output} exists already; choose another name, or replace it with overwrite=True"
        raise FileExistsError(msg)
    return output


def check_folder(path: str | os.PathLike[str], what: str) -> Path:
    """Check that a folder for results can be written, before any work is done; creates nothing.

    It need not exist; `what` names it in messages. Raises FileExistsError or NotADirectoryError where it or a part of
    its path is a file, and an OSError of the system's class (``PermissionError``, ...) where it cannot be written to.
    """
    folder = user_path(path)
    try:
        if folder.is_symlink():
            check_folder(link_target(folder), what)
            return folder
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
