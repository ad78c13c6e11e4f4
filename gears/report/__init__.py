"""Reports of an evaluation: CSV, JSON, figures, and one self-contained HTML page."""

from gears.report.figures import Profiles
from gears.report.write import write_report

__all__ = ["Profiles", "write_report"]
