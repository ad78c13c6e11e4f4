"""Reports of an evaluation: CSV, JSON, figures, and one self-contained HTML page."""

from gears.report._figures import Profiles
from gears.report.of_model import write_report

__all__ = ["Profiles", "write_report"]
