"""Read and write JSON, npz, tensors, text and manifests of folders; detect damage by checksums (no signature)."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.core._messages import shorten
from gears.files._atomic import error_of_next_write, write_atomically
from gears.files._mapped import pieces
from gears.files._paths import existing_file, reading, user_path

if TYPE_CHECKING:
    import torch
    from anndata import AnnData

LARGEST_CHECKED = 512 << 20
"""Larger files are checked by their length only, unless the caller asks for all."""
MANIFEST = "manifest.json"
SEAL = "checksum"


def write_text(path: str | Path, text: str) -> Path:
    """Write text (UTF-8) atomically."""
    return write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: str | Path, value: Any) -> Path:
    """Write a value as JSON (UTF-8, indented), numpy scalars and arrays as numbers and lists."""
    text = json.dumps(value, indent=1, ensure_ascii=False, default=_plain)
    return write_text(path, text + "\n")


def read_json(path: str | Path) -> Any:
    """Read JSON; the error for an unreadable file names it."""
    path = user_path(path)
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError, MemoryError) as error:
        msg = f"{path} is not valid JSON ({shorten([error])}); if damaged, restore it or write it again"
        raise ValueError(msg) from error


def write_npz(path: str | Path, arrays: dict[str, np.ndarray], *, compress: bool = True) -> Path:
    """Write arrays (no objects) to an npz file atomically."""

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as file:
            (np.savez_compressed if compress else np.savez)(file, **arrays)  # type: ignore[arg-type]

    return write_atomically(path, write)


def plain_adata(obs: pd.DataFrame, var: pd.DataFrame, **more: Any) -> AnnData:
    """An AnnData with these annotations and `more` fields that every version of anndata can write."""
    from anndata import AnnData

    # strings are Python objects, also where pandas infers another type
    with pd.option_context("future.infer_string", False):
        return AnnData(obs=_with_object_strings(obs), var=_with_object_strings(var), **more)


def _with_object_strings(frame: pd.DataFrame) -> pd.DataFrame:
    plain = frame.set_axis(frame.index.astype(object)).set_axis(frame.columns.astype(object), axis=1)
    for name, dtype in plain.dtypes.items():
        if isinstance(dtype, pd.StringDtype):
            plain[name] = plain[name].astype(object)
        elif isinstance(dtype, pd.CategoricalDtype) and isinstance(dtype.categories.dtype, pd.StringDtype):
            plain[name] = plain[name].cat.rename_categories(dtype.categories.astype(object).tolist())
    return plain


def read_delimited(path: str | Path, *, sep: str | None = None, header: bool = True, **options: Any) -> pd.DataFrame:
    """A table of text, whichever of tab, comma, semicolon and blank separates its columns.

    Parameters
    ----------
    path
        CSV, TSV or text, compressed or not. Lines before the header that begin with "#" are skipped.
    sep
        Sign to prefer where the first lines hold several; by default a comma in ``.csv`` files, else a tab.
    header
        Whether the first line holds names of columns. It may begin with "#" itself ("#node1").
    **options
        Of :func:`pandas.read_csv`.
    """
    signs = dict.fromkeys((sep or ("," if ".csv" in Path(path).suffixes else "\t"), "\t", ",", ";", " "))
    lines = _first_lines(path)
    start = next((number for number, line in enumerate(lines) if not _is_comment(line)), 0)
    first, second = (*lines[start:], "", "")[:2]
    if start and lines[start - 1][1:2].strip(" #"):  # "#node1" begins a header, "# made by ..." does not
        above = lines[start - 1]
        if any(sign in first and above.count(sign) == first.count(sign) for sign in signs):
            first, second, start = above, first, start - 1
    present = [sign for sign in signs if sign in first]
    alike = [sign for sign in present if first.count(sign) == second.count(sign)]
    sign = next(iter(alike or present or signs))
    where: dict[str, Any] = {"sep": r"\s+" if sign == " " else sign, "skiprows": start}
    table = pd.read_csv(path, header=0 if header else None, **where, **options)
    if header and table.shape[1] == 1 and "|" in str(table.columns[0]):
        msg = f"{path} is separated by |, expected tab, comma or semicolon"
        raise ValueError(msg)
    if sign == ";" and "dtype" not in options:  # spreadsheets that write semicolons write decimal commas
        for name in table.select_dtypes(object):
            if table[name].astype(str).str.fullmatch(r"-?\d*,\d+(?:[eE][-+]?\d+)?").all():
                table[name] = table[name].str.replace(",", ".").astype(np.float64)
    return table


def _first_lines(path: str | Path) -> list[str]:
    """Lines of a file of text up to the second that is no comment."""
    from pandas.io.common import get_handle

    lines: list[str] = []
    with get_handle(path, "r", compression="infer", encoding="utf-8-sig") as handles:
        for line in handles.handle:
            lines.append(str(line).rstrip("\r\n"))
            if len(lines) > 1 and not _is_comment(lines[-2]):
                break
    return lines


def _is_comment(line: str) -> bool:
    """Whether a line before a table is none of its rows: empty, "# ..." or a spreadsheet's "sep=;"."""
    return not line.strip() or line.startswith(("#", "sep="))


def read_npz(path: str | Path) -> dict[str, np.ndarray]:
    """Read every array of an npz file; pickled objects are an error."""
    path = user_path(path)
    with reading(path, "an npz file", "if damaged, restore it or write it again"):
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
        not_arrays = [key for key, value in arrays.items() if not isinstance(value, np.ndarray)]
        if not_arrays:
            msg = f"it holds files that are no arrays: {shorten(not_arrays)}"
            raise ValueError(msg)
        return arrays


def write_tensors(path: str | Path, value: Any) -> None:
    """Write tensors and plain types atomically with ``torch.save``."""
    import torch

    def write(temporary: Path) -> None:
        try:
            torch.save(value, temporary)
        except RuntimeError as error:  # torch does not say why a write failed
            reason = OSError(errno.EIO, str(error).partition("\n")[0])
            raise error_of_next_write(temporary.parent) or reason from error

    write_atomically(path, write)


def read_tensors(path: str | Path, device: str | torch.device = "cpu") -> Any:
    """Read tensors and plain types; content that could run code, or damage, is an error."""
    import torch

    path = existing_file(path)
    with reading(path, "a file of tensors", "it may be damaged"):
        if zipfile.is_zipfile(path):  # compares checksums, which `torch.load` does not
            with zipfile.ZipFile(path) as archive:
                broken = archive.testzip()
            if broken is not None:
                msg = f"its entry {broken} does not match its checksum"
                raise ValueError(msg)
        return torch.load(path, map_location=device, weights_only=True)


def content_hash(*values: Any) -> str:
    """SHA-256 (hex) of arrays (with dtype and shape), bytes and JSON-like values, in order."""
    digest = hashlib.sha256()
    for value in values:
        if isinstance(value, np.ndarray) and value.dtype.kind not in "OUT":
            digest.update(f"{value.dtype.str}{value.shape}".encode())
            for piece in pieces(np.ascontiguousarray(value).reshape(-1)):
                digest.update(piece.data)
        elif isinstance(value, bytes):
            digest.update(value)
        else:
            digest.update(json.dumps(value, sort_keys=True, default=_plain).encode())
        digest.update(b"\x00")
    return digest.hexdigest()


def plain_values(value: Any) -> Any:
    """A value as JSON and YAML have it: undefined numbers as None, what is no number, text or container as text."""
    if isinstance(value, Mapping):
        return {str(key): plain_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(item) for item in value]
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    msg = f"cannot write {type(value).__name__} as JSON"
    raise TypeError(msg)


def _file_checksum(path: Path) -> str:
    """CRC-32 of a file, in hexadecimal."""
    value = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return f"{value:08x}"


def check_file(folder: Path, name: str, checksums: Mapping[str, str], *, whole: bool = False) -> None:
    """Compare a file with its recorded checksum, if it has one; `whole`: also one above :data:`LARGEST_CHECKED`."""
    path, expected = folder / name, checksums.get(name)
    if expected is None or (not whole and path.stat().st_size > LARGEST_CHECKED):
        return
    checksum = _file_checksum(path)
    if checksum != expected:
        msg = f"{path} was changed or damaged (checksum {checksum}, was {expected}); restore it or write it again"
        raise ValueError(msg)


def checksums_of(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Checksum of each file, by name relative to the folder."""
    return {name: _file_checksum(folder / name) for name in sorted(names)}


def need_types(path: Path, plain: Any, expected: Mapping[str, type | tuple[type, ...]]) -> None:
    """Raise ValueError for a file of plain values, with the entries that are missing or of another type."""
    if not isinstance(plain, dict):
        msg = f"{path} holds {type(plain).__name__}, expected an object with {', '.join(expected)}"
        raise ValueError(msg)
    wrong = [
        f"{name} ({type(plain[name]).__name__})" if name in plain else f"{name} (missing)"
        for name, types in expected.items()
        if not isinstance(plain.get(name), types)
    ]
    if wrong:
        msg = f"{path} has entries of the wrong type: {shorten(wrong)}; if damaged, restore it or write it again"
        raise ValueError(msg)


@dataclass(frozen=True)
class FolderFormat:
    """A kind of folder, and how its manifest is written and checked."""

    kind: str  # the manifest's entry "kind"
    version: int  # format version that is written, and the only one that is read
    name: str  # what messages call it, such as "prepared screen"
    # if_missing, if_outdated: remedy where a folder is not of this kind, or has another format version
    if_missing: str
    if_outdated: str

    def marks(self, folder: str | Path) -> bool:
        """Whether a folder's manifest has this kind (with any format version)."""
        try:
            manifest = read_json(user_path(folder) / MANIFEST)
        except (OSError, ValueError):
            return False
        return isinstance(manifest, dict) and manifest.get("kind") == self.kind

    def write(self, folder: Path, plain: Mapping[str, Any]) -> None:
        """Write the manifest, with a checksum of itself, into a folder."""
        manifest = {"kind": self.kind, "format_version": self.version, **plain}
        write_json(folder / MANIFEST, {**manifest, SEAL: _seal(manifest)})

    def read(self, folder: Path, expected: Mapping[str, type | tuple[type, ...]]) -> dict[str, Any]:
        """The manifest of a folder, with the `expected` entries, of these types; an error for any other or none."""
        path = folder / MANIFEST
        if not path.is_file():
            what = f"is no {self.name} (it has no {MANIFEST})"
            missing = f"{folder} is a file" if folder.is_file() else f"there is no folder {folder}"
            what_is_there = f"{folder} {what}" if folder.is_dir() else missing
            msg = f"{what_is_there}; {self.if_missing}"
            raise FileNotFoundError(msg)
        manifest = read_json(path)
        if not isinstance(manifest, dict) or manifest.get("kind") != self.kind:
            msg = f"{path} does not describe a {self.name}; choose another folder"
            raise ValueError(msg)
        if manifest.get("format_version") != self.version:
            msg = (
                f"{folder} has format version {manifest.get('format_version')}, this release reads {self.version}; "
                f"{self.if_outdated}"
            )
            raise ValueError(msg)
        if SEAL in manifest and manifest[SEAL] != _seal(manifest):
            msg = f"{path} was changed after it was written (its checksum does not fit); restore it or write it again"
            raise ValueError(msg)
        need_types(path, manifest, expected)
        return manifest


def _seal(plain: Mapping[str, Any]) -> str:
    # a manifest is compared after reading: keys become strings, tuples lists
    as_read = json.loads(json.dumps({key: value for key, value in plain.items() if key != SEAL}, default=str))
    return content_hash(as_read)[:16]
