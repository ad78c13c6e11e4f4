"""The version of this package, and a check that cell-gears (same import name) is not installed over it."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

DISTRIBUTION = "gears-perturb"
__version__ = "0.1.0"


def check_for_cell_gears(distribution: str = "cell-gears", folder: Path | None = None) -> None:
    """Raise an ImportError if cell-gears was installed into this package's folder.

    Both distributions import as ``gears``: installed into one environment, the files of one overwrite those of the
    other. An installation elsewhere on the path has no effect.
    """
    folder = Path(__file__).resolve().parent if folder is None else folder
    try:
        files = metadata.distribution(distribution).files or []
    except metadata.PackageNotFoundError:
        return
    mixed = any(Path(str(file.locate())).resolve() == folder / "gears.py" for file in files)
    if mixed:
        msg = (
            f"{distribution} and {DISTRIBUTION} are both installed here and both import as 'gears': their files "
            f"overwrite each other. Run: pip uninstall -y {distribution} {DISTRIBUTION} && pip install {DISTRIBUTION} "
            f"(keep {distribution} in a separate environment)"
        )
        raise ImportError(msg)
