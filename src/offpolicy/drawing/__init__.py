"""Charts as inline SVG, and numbers as people read them; knows nothing of what it draws."""

from functools import cache
from importlib.resources import files

from offpolicy.drawing.numbers import (
    UNKNOWN,
    chance,
    decimals,
    duration,
    factor,
    facts_html,
    fixed,
    label,
    moment,
    p_value,
    percent,
    plain,
)
from offpolicy.drawing.svg import Axis, Panel, Point, Strip, decade_ticks, extent, panel, round_ticks

__all__ = [
    "UNKNOWN",
    "Axis",
    "Panel",
    "Point",
    "Strip",
    "chance",
    "chart_style",
    "decade_ticks",
    "decimals",
    "duration",
    "extent",
    "factor",
    "facts_html",
    "fixed",
    "label",
    "moment",
    "p_value",
    "panel",
    "percent",
    "plain",
    "round_ticks",
]


@cache
def chart_style() -> str:
    """The style sheet of all charts: colours, light and dark, by class."""
    return files("offpolicy.drawing").joinpath("charts.css").read_text(encoding="utf-8")
