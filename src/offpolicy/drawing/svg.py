"""A small way to draw: axes on a panel, marks that tell their numbers when pointed at, as inline SVG.

Colours and fonts come from the page's style sheet by class, so that a chart follows light, dark and print.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from offpolicy.drawing.numbers import plain

Point = tuple[float, float]


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high` along pixels from `start` to `end`; ticks are values with their labels."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[tuple[float, str], ...] = ()

    def at(self, value: float) -> float:
        """The pixel of a value; values outside stay on the edge."""
        share = (min(max(value, self.low), self.high) - self.low) / ((self.high - self.low) or 1.0)
        return round(self.start + share * (self.end - self.start), 2)


def extent(values: Iterable[float | None], pad: float = 0.06, include: Sequence[float] = ()) -> tuple[float, float]:
    """The range of the known values with some padding, never empty."""
    known = [v for v in values if v is not None] + list(include)
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    air = (high - low) * pad or abs(high) * 0.1 or 0.5
    return low - air, high + air


def round_ticks(low: float, high: float, most: int = 5) -> tuple[tuple[float, str], ...]:
    """Round values inside a range."""
    rough = (high - low) / max(most, 1)
    if rough <= 0 or not math.isfinite(rough):
        return ((low, plain(low)),)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    values = [i * step for i in range(first, first + most + 2) if i * step <= high + step * 1e-9]
    return tuple((v, plain(v, 4)) for v in values)


def decade_ticks(low: float, high: float, most: int = 6) -> tuple[tuple[float, str], ...]:
    """Powers of ten inside a range of log10."""
    first, last = math.ceil(low - 1e-9), math.floor(high + 1e-9)
    every = max(1, math.ceil((last - first + 1) / most))
    return tuple((float(i), plain(10.0**i)) for i in range(first, last + 1, every))


@dataclass
class Panel:
    """A chart being drawn."""

    title: str
    x: Axis
    y: Axis
    width: int = 460
    height: int = 260
    x_label: str = ""
    y_label: str = ""
    parts: list[Markup] = field(default_factory=list)

    def rule(self, x: float | None = None, y: float | None = None, text: str = "", kind: str = "rule") -> None:
        """A line across at one value, with a word at its end."""
        x1, x2 = (self.x.start, self.x.end) if x is None else (self.x.at(x),) * 2
        y1, y2 = (self.y.start, self.y.end) if y is None else (self.y.at(y),) * 2
        self._add('<line class="{}" x1="{}" x2="{}" y1="{}" y2="{}"/>', kind, x1, x2, y1, y2)
        if text and y is not None:
            self._add('<text class="note" x="{}" y="{}" text-anchor="end">{}</text>', self.x.end, y2 - 5, text)
        elif text:
            after = x2 < (self.x.start + self.x.end) / 2
            self._add(
                '<text class="note" x="{}" y="{}" text-anchor="{}">{}</text>',
                x2 + (6 if after else -6),
                self.y.end + 10,
                "start" if after else "end",
                text,
            )

    def line(self, points: Sequence[Point], kind: str) -> None:
        """Points joined."""
        if len(points) > 1:
            self._add('<path class="line {}" d="{}"/>', kind, self._path(points))

    def band(self, low: Sequence[Point], high: Sequence[Point], kind: str) -> None:
        """The area between two lines."""
        if low and high:
            self._add('<path class="{}" d="{}Z"/>', kind, self._path([*low, *reversed(high)]))

    def bar(self, left: float, right: float, height: float, kind: str, base: float | None = None) -> None:
        """A bar from the base to a height."""
        x1, x2 = self.x.at(left), self.x.at(right)
        y1, y2 = self.y.at(height), self.y.start if base is None else self.y.at(base)
        self._add(
            '<rect class="bar {}" x="{}" y="{}" width="{}" height="{}" rx="1.5"/>',
            kind,
            round(x1 + 0.75, 2),
            min(y1, y2),
            max(round(x2 - x1 - 1.5, 2), 0.5),
            round(abs(y2 - y1), 2),
        )

    def tile(self, x: tuple[float, float], y: tuple[float, float], strength: float, tip: str) -> None:
        """A rectangle whose colour is as strong as its number, between 0 and 1."""
        (left, right), (top, bottom) = map(self.x.at, x), map(self.y.at, reversed(y))
        self._add(
            '<g class="mark" data-tip="{}"><title>{}</title><rect class="bar" x="{}" y="{}" width="{}" height="{}" '
            'fill-opacity="{}"/></g>',
            tip,
            tip,
            left,
            top,
            round(right - left, 2),
            round(bottom - top, 2),
            round(0.05 + 0.95 * strength, 3),
        )

    def dot(self, x: float, y: float, kind: str, tip: str = "", radius: float = 3.5) -> None:
        """A point; with a tip it can be pointed at."""
        mark = Markup('<circle class="dot {}" cx="{}" cy="{}" r="{}"/>').format(
            kind, self.x.at(x), self.y.at(y), radius
        )
        if not tip:
            self.parts.append(mark)
            return
        hit = Markup('<circle class="hit" cx="{}" cy="{}" r="11"/>').format(self.x.at(x), self.y.at(y))
        self._add('<g class="mark" data-tip="{}">{}{}</g>', tip, mark, hit)

    def span(self, x: float, low: float, high: float, kind: str) -> None:
        """A vertical whisker."""
        at = self.x.at(x)
        self._add('<line class="{}" x1="{}" x2="{}" y1="{}" y2="{}"/>', kind, at, at, self.y.at(low), self.y.at(high))

    def column(self, left: float, right: float, tip: str) -> None:
        """An invisible column over the whole height that tells its numbers."""
        x1, x2 = self.x.at(left), self.x.at(right)
        self._add(
            '<g class="mark" data-tip="{}"><rect class="hit" x="{}" y="{}" width="{}" height="{}"/></g>',
            tip,
            x1,
            self.y.end,
            max(round(x2 - x1, 2), 1),
            round(self.y.start - self.y.end, 2),
        )

    def svg(self) -> Markup:
        """The finished chart."""
        return Markup(
            '<svg class="chart" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" aria-label="{title}" '
            'tabindex="0">{frame}{parts}</svg>'
        ).format(w=self.width, h=self.height, title=self.title, frame=self._frame(), parts=Markup("").join(self.parts))

    def _frame(self) -> Markup:
        out = []
        for value, text in self.y.ticks:
            y = self.y.at(value)
            out.append(
                Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(self.x.start, self.x.end, y, y)
            )
            out.append(
                Markup('<text class="tick" x="{}" y="{}" text-anchor="end">{}</text>').format(
                    self.x.start - 8, y + 4, text
                )
            )
        for value, text in self.x.ticks:
            x = self.x.at(value)
            out.append(
                Markup('<line class="axis" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(
                    x, x, self.y.start, self.y.start + 4
                )
            )
            out.append(
                Markup('<text class="tick" x="{}" y="{}" text-anchor="middle">{}</text>').format(
                    x, self.y.start + 17, text
                )
            )
        base = self.y.start
        out.append(
            Markup('<line class="axis" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(self.x.start, self.x.end, base, base)
        )
        middle = (self.x.start + self.x.end) / 2
        out.append(
            Markup('<text class="axis-label" x="{}" y="{}" text-anchor="middle">{}</text>').format(
                middle, self.height - 4, self.x_label
            )
        )
        out.append(Markup('<text class="axis-label" x="0" y="12">{}</text>').format(self.y_label))
        return Markup("").join(out)

    def _path(self, points: Sequence[Point]) -> str:
        return "M" + "L".join(f"{self.x.at(x)} {self.y.at(y)}" for x, y in points)

    def _add(self, template: str, *values: object) -> None:
        self.parts.append(Markup(template).format(*values))


def panel(
    title: str,
    x: tuple[float, float],
    y: tuple[float, float],
    labels: tuple[str, str],
    ticks: tuple[Sequence[tuple[float, str]] | None, Sequence[tuple[float, str]] | None] = (None, None),
) -> Panel:
    """A panel of the usual size over two ranges; round ticks unless others are given."""
    x_ticks = round_ticks(*x) if ticks[0] is None else ticks[0]
    y_ticks = round_ticks(*y) if ticks[1] is None else ticks[1]
    left = 16 + 7.2 * max((len(text) for _, text in y_ticks), default=2)
    across = Axis(*x, start=left, end=438, ticks=tuple(x_ticks))
    return Panel(title, across, Axis(*y, start=214, end=26, ticks=tuple(y_ticks)), x_label=labels[0], y_label=labels[1])


@dataclass(frozen=True)
class Strip:
    """The common axis of intervals drawn one per row of a table."""

    axis: Axis
    reference: float | None = None

    @classmethod
    def over(cls, values: Iterable[float | None], reference: float | None = None, width: int = 380) -> "Strip":
        """An axis that holds all these values."""
        low, high = extent(values, include=[] if reference is None else [reference])
        return cls(Axis(low, high, 8, width - 8, round_ticks(low, high, 5)), reference)

    def draw(
        self,
        tip: str,
        value: float | None,
        ends: tuple[float | None, float | None],
        sampling: float | None = None,
        kind: str = "",
    ) -> Markup:
        """One interval: the sampling part solid, what β̂ adds hatched; all solid where the parts are not known."""
        low, high = ends
        parts = [self._reference()]
        if low is not None and high is not None:
            centre = (low + high) / 2
            inner = (low, high) if sampling is None else (max(low, centre - sampling), min(high, centre + sampling))
            parts += [self._box(low, high, "outer"), self._box(*inner, "inner")]
        if value is not None:
            parts.append(Markup('<circle class="value" cx="{}" cy="17" r="5"/>').format(self.axis.at(value)))
        width = self.axis.end + 8
        return Markup(
            '<svg class="strip {}" viewBox="0 0 {} 34" width="{}" height="34" role="img" aria-label="{}">'
            '<g class="mark" data-tip="{}"><rect class="hit" width="{}" height="34"/>{}</g></svg>'
        ).format(kind, width, width, tip, tip, width, Markup("").join(parts))

    def scale(self) -> Markup:
        """The axis itself."""
        width = self.axis.end + 8
        ticks = Markup("").join(
            Markup('<text class="tick" x="{}" y="14" text-anchor="middle">{}</text>').format(self.axis.at(v), text)
            for v, text in self.axis.ticks
            if 14 < self.axis.at(v) < width - 14
        )
        return Markup(
            '<svg class="strip" viewBox="0 0 {} 20" width="{}" height="20" aria-hidden="true">{}</svg>'
        ).format(width, width, ticks)

    def _reference(self) -> Markup:
        if self.reference is None:
            return Markup("")
        x = self.axis.at(self.reference)
        return Markup('<line class="today" x1="{}" x2="{}" y1="0" y2="34"/>').format(x, x)

    def _box(self, low: float, high: float, kind: str) -> Markup:
        x1, x2 = self.axis.at(low), self.axis.at(high)
        return Markup('<rect class="{}" x="{}" y="11" width="{}" height="12" rx="2"/>').format(
            kind, x1, max(round(x2 - x1, 2), 1)
        )
