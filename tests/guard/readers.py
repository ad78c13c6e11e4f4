"""Everything that the package reads from disk, each kind under its name in :data:`READERS`."""

from __future__ import annotations

import user_files  # noqa: F401 (its readers note themselves)
from own_files import make_run
from registry import GENES, READERS, Reader, digest, files

__all__ = ["GENES", "READERS", "Reader", "digest", "files", "make_run"]
