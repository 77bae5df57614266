"""Results as pages that open offline; never needs torch."""

from offpolicy.report.html import is_report, render_report, write_report
from offpolicy.report.reproduction import grid_charts, profile_charts, reproduction_page

__all__ = [
    "grid_charts",
    "is_report",
    "profile_charts",
    "render_report",
    "reproduction_page",
    "write_report",
]
