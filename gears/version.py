"""The version under its path in cell-gears; new code uses ``gears.__version__``."""

from gears.core._installation import __version__

__all__ = ["__version__"]
