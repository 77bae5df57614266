"""Numbers and labels as people read them."""

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from markupsafe import Markup

UNKNOWN = "–"
MINUS = "−"
LONGEST = 120


def label(value: Any, longest: int = LONGEST) -> str:
    """A user's name or id as text, cut where it is too long to read."""
    text = value if isinstance(value, str) else str(value)
    text = "".join(c if c.isprintable() else "�" for c in text)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def decimals(resolution: float | None) -> int:
    """Decimal places that show a quantity of this size with two digits."""
    if not resolution or not math.isfinite(resolution):
        return 3
    return min(max(1 - math.floor(math.log10(abs(resolution))), 0), 8)


def fixed(value: float | None, places: int = 3, sign: bool = False) -> str:
    """A number with that many decimal places and thousands apart."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if abs(value) >= 1e12:
        return plain(value)
    text = f"{abs(value):,.{places}f}"
    negative = value < 0 and any(c in "123456789" for c in text)
    return (MINUS if negative else "+" if sign and any(c in "123456789" for c in text) else "") + text


def plain(value: float | None, digits: int = 3) -> str:
    """A number with that many significant digits, never in computer notation unless tiny or huge."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    size = abs(value)
    if size == 0 or 1e-4 <= size < 1e9:
        whole = float(f"{size:.{digits}g}") if size < 1000 else round(size)
        text = f"{whole:,.{max(digits - 1 - math.floor(math.log10(whole)), 0)}f}" if whole else "0"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    else:
        mantissa, exponent = f"{size:.{digits - 1}e}".split("e")
        text = f"{mantissa.rstrip('0').rstrip('.')}×10{_superscript(int(exponent))}"
    return (MINUS if value < 0 else "") + text


def _superscript(power: int) -> str:
    return str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def percent(value: float | None, sign: bool = False) -> str:
    """A share as a percentage; small ones with a decimal."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    scaled = 100 * value
    if 0 < abs(scaled) < 0.01:
        return ("> " + MINUS if scaled < 0 else "< ") + "0.01 %"
    places = 0 if abs(scaled) >= 10 or scaled == 0 else 1 if abs(scaled) >= 1 else 2
    return fixed(scaled, places, sign) + " %"


def chance(value: float | None) -> str:
    """A probability that is never said to be certain."""
    if value is None:
        return UNKNOWN
    if value > 0.995:
        return "> 99 %"
    return "< 1 %" if value < 0.005 else f"{100 * value:.0f} %"


def p_value(p: float | None) -> str:
    """A p-value, which below a thousandth is only said to be."""
    if p is None:
        return UNKNOWN
    return "< 0.001" if p < 0.001 else fixed(p, 3)


def factor(gamma: float | None, largest: float | None = None) -> str:
    """The Γ at which the conclusion flips."""
    if gamma is None or not math.isfinite(gamma):
        return f"beyond {plain(largest)} ×" if largest else "never"
    return "at once" if gamma <= 1 else f"{gamma:.2f} ×" if gamma < 10 else f"{gamma:,.0f} ×"


def duration(seconds: float | None) -> str:
    """A time span."""
    if seconds is None:
        return UNKNOWN
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def moment(text: str) -> str:
    """An ISO date and time as a day and an hour; anything else as it is."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return label(text)
    zone = when.tzname() or ""
    return f"{when.day} {when:%B %Y, %H:%M} {zone}".strip()


def facts_html(title: str, facts: Mapping[str, Any]) -> str:
    """Names and values as a small table for notebooks."""
    rows = [
        Markup("<tr><th>{}</th><td>{}</td></tr>").format(name.replace("_", " "), _fact(value))
        for name, value in facts.items()
    ]
    return str(Markup("<table><caption>{}</caption>{}</table>").format(title, Markup("").join(rows)))


def _fact(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{label(name, 40)} {_fact(inner)}" for name, inner in value.items()) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: UNKNOWN}[value]
    if isinstance(value, int | float):
        return plain(value, 4)
    return label(" to ".join(map(_fact, value)) if isinstance(value, list | tuple) else value, 200)
