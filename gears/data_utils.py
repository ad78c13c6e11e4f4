"""Functions of cell-gears' ``gears.data_utils``; :class:`gears.PertData` does their work."""

from gears.cell_gears._moved import ELSEWHERE, GONE
from gears.core._lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, ELSEWHERE[__name__], GONE[__name__])
