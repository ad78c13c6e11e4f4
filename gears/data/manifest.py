"""What says that a folder is a prepared screen, and whether it is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gears.files import read_json, user_path
from gears.integrity import check_seal, need_names, need_types
from gears.messages import shorten

KIND = "gears prepared screen"
FORMAT_VERSION = 2
MANIFEST = "manifest.json"
TABLES = "screen.json"
H5AD = "perturb_processed.h5ad"
STATISTICS = ("n", "mean", "m2", "m3", "m4", "nonzero", "above", "below")
"""Statistics by name, each a file of its own (an npz cannot be mapped into memory)."""


def is_prepared(folder: str | Path) -> bool:
    """Whether a folder says that it is a prepared screen (any format version)."""
    manifest = user_path(folder) / MANIFEST
    try:
        found = read_json(manifest)
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("kind") == KIND


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """The manifest of a prepared folder, after checking format version and files.

    Raises
    ------
    FileNotFoundError
        If there is no prepared screen.
    ValueError
        If it has another format version, or files are missing or cut short.
    """
    folder = user_path(folder)
    if not (folder / MANIFEST).is_file():
        msg = (
            f"{folder} is no prepared screen (it has no {MANIFEST}); "
            "prepare one with PertData.new_data_process or PertData.load(data_path='<file>.h5ad')"
        )
        raise FileNotFoundError(msg)
    manifest = read_json(folder / MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("kind") != KIND:
        msg = f"{folder / MANIFEST} does not describe a prepared screen; choose another folder"
        raise ValueError(msg)
    if manifest.get("format_version") != FORMAT_VERSION:
        msg = (
            f"{folder} has format version {manifest.get('format_version')}, this release reads "
            f"{FORMAT_VERSION}; prepare the screen again from its AnnData"
        )
        raise ValueError(msg)
    check_seal(folder / MANIFEST, manifest)
    expected = {
        "content_hash": str,
        "parameters": dict,
        "files": dict,
        "shape": dict,
        "differential_expression": bool,
    }
    need_types(folder / MANIFEST, manifest, expected)
    _check_files(folder, manifest["files"])
    return manifest


def _check_files(folder: Path, files: dict[str, int]) -> None:
    """Every file is there and as long as when it was written."""
    wrong = []
    for name, size in files.items():
        path = folder / name
        found = path.stat().st_size if path.is_file() else None
        if found != size:
            wrong.append(f"{name} ({'missing' if found is None else f'{found} bytes instead of {size}'})")
    if wrong:
        msg = f"the prepared screen {folder} is damaged: {shorten(wrong)}; prepare it anew"
        raise ValueError(msg)


def read_tables(path: Path) -> dict[str, Any]:
    """Names, labels and conditions of a prepared screen.

    Raises
    ------
    ValueError
        They do not fit together.
    """
    plain = read_json(path)
    names = ("gene_names", "gene_ids", "labels", "condition_names")
    need_types(path, plain, dict.fromkeys((*names, "label_condition", "conditions"), list))
    need_names(path, plain, *names)
    ids, conditions = plain["label_condition"], plain["conditions"]
    genes_of = [genes for genes in conditions if isinstance(genes, list)]
    whole = (
        len(plain["gene_names"]) == len(plain["gene_ids"])
        and len(plain["labels"]) == len(plain["condition_names"]) == len(ids)
        and all(type(number) is int and 0 <= number < len(conditions) for number in ids)
        and len(genes_of) == len(conditions)
        and all(isinstance(gene, str) for genes in genes_of for gene in genes)
        and [] in conditions
    )
    if not whole:
        msg = f"the tables in {path} do not fit together; the screen is damaged: prepare it anew"
        raise ValueError(msg)
    return plain
