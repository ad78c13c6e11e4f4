"""Manifests of folders that the package writes: kind, format version, content, and a checksum of the manifest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gears.files._paths import user_path
from gears.files.formats import content_hash, need_types, read_json, write_json

MANIFEST = "manifest.json"
SEAL = "checksum"


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
