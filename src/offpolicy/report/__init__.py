"""Results as pages that open offline; never needs torch."""

from offpolicy.report.figures import Chart
from offpolicy.report.html import is_report, write_report
from offpolicy.report.reproduction import grid_charts, profile_charts, reproduction_page, standalone

__all__ = [
    "Chart",
    "grid_charts",
    "is_report",
    "profile_charts",
    "reproduction_page",
    "standalone",
    "write_report",
]
