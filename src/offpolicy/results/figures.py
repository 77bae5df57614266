"""The charts of the report: each from one part of the results, with the numbers it shows as a table beside it."""

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from offpolicy.atomic import write_atomic
from offpolicy.drawing import (
    Panel,
    Point,
    Strip,
    chart_style,
    decade_ticks,
    decimals,
    extent,
    fixed,
    label,
    panel,
    percent,
    plain,
)
from offpolicy.errors import ParameterError
from offpolicy.results.evaluation import Evaluation, Quality
from offpolicy.results.policy import Interval, Sensitivity
from offpolicy.results.schema import Frequency, Weights

MOST_POINTS = 150
MOST_CURVES = 8
MOST_METRICS = 6
HATCH = Markup(
    '<defs><pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect class="hatch-back" width="5" height="5"/><line class="hatch-line" x1="0" x2="0" y1="0" y2="5"/>'
    "</pattern></defs>"
)
"""What fills the part of an interval that estimated propensities add."""
SERIES = tuple(f"s{i}" for i in range(MOST_CURVES))


@dataclass(frozen=True)
class Chart:
    """A drawing, what it says, its legend of (class, word), and its numbers."""

    title: str
    svg: Markup
    caption: str
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    legend: tuple[tuple[str, str], ...] = ()

    def standalone(self) -> str:
        """The drawing as an SVG file that brings its own style."""
        opening = Markup('<svg xmlns="http://www.w3.org/2000/svg" ')
        drawn = opening + self.svg.removeprefix(Markup("<svg "))
        return str(drawn.replace(Markup(">"), Markup("><style>{}</style>").format(Markup(chart_style())), 1)) + "\n"

    def save(self, path: str | Path) -> Path:
        """Write the drawing as an SVG file."""
        write_atomic(Path(path), self.standalone())
        return Path(path)

    def _repr_html_(self) -> str:
        """For notebooks: a picture, so that its style stays its own, with title and caption."""
        picture = base64.b64encode(self.standalone().encode()).decode()
        return str(
            Markup(
                '<figure style="margin:0"><b>{}</b><br><img alt="{}" style="max-width:100%" '
                'src="data:image/svg+xml;base64,{}"><figcaption>{}</figcaption></figure>'
            ).format(self.title, self.title, picture, self.caption)
        )


ROW = 34
"""Height of a policy's row in the chart of values."""


def values_chart(evaluation: Evaluation) -> Chart:
    """Every policy's value with its interval, over one axis; the dashed line is the logging policy."""
    logging = evaluation.logging
    rows: list[tuple[str, float, Interval | None]] = [
        (label(name, 24), one.value, one.interval) for name, one in evaluation.policies.items()
    ]
    rows.append(("logging policy", logging.value, logging.interval))
    known = [v for _, value, ends in rows for v in (value, *(() if ends is None else (ends.low, ends.high)))]
    strip = Strip.over(known, logging.value, 300)
    halves = [(ends.high - ends.low) / 2 for _, _, ends in rows if ends is not None and ends.high > ends.low]
    places = decimals(min(halves, default=None))
    drawn, numbers = [], []
    for place, (name, value, ends) in enumerate(rows):
        low, high = (None, None) if ends is None else (ends.low, ends.high)
        sampling, kind = getattr(ends, "sampling", None), "grey" if ends is logging.interval else ""
        bar = strip.draw(name, value, (low, high), sampling, kind)
        shown = [fixed(one, places) for one in (value, low, high)]
        said = shown[0] if ends is None else f"{shown[0]} ({shown[1]} to {shown[2]})"
        drawn.append(
            Markup(
                '<text class="note" x="0" y="{}">{}</text><g transform="translate(170 {})">{}</g><text class="note" '
                'x="480" y="{}">{}</text>'
            ).format(place * ROW + 21, name, place * ROW, bar, place * ROW + 21, said)
        )
        numbers.append((name, *shown))
    height = len(rows) * ROW
    svg = Markup(
        '<svg class="values-chart" viewBox="0 0 640 {h}" width="640" height="{h}" role="img" aria-label="Values">'
        '{defs}{rows}<g transform="translate(170 {y})">{scale}</g></svg>'
    ).format(h=height + 22, y=height, defs=HATCH, rows=Markup("").join(drawn), scale=strip.scale())
    caption = f"Estimated values with {percent(evaluation.level)} intervals; the dashed line is the logging policy."
    return Chart("Values", svg, caption, ("policy", "value", "low", "high"), tuple(numbers))


def plotted(evaluation: Evaluation, what: str, policy: str) -> Chart:
    """A chart by name: values, sensitivity, balance or calibration."""
    if policy not in evaluation.policies:
        raise ParameterError(f"There is no policy {policy!r}. Known: {', '.join(evaluation.policies)}.")
    one, quality = evaluation.policies[policy], evaluation.logging.quality
    charts: dict[str, Callable[[], Chart | None]] = {
        "values": lambda: values_chart(evaluation),
        "sensitivity": lambda: sensitivity_chart(one.sensitivity, evaluation.logging.value, policy),
        "balance": lambda: balance_chart(one.preflight.balance, policy),
        "calibration": lambda: None if quality is None else calibration_chart(quality),
    }
    if what not in charts:
        raise ParameterError(f"There is no chart {what!r}. Known: {', '.join(charts)}.")
    chart = charts[what]()
    if chart is None:
        raise ParameterError(f"This evaluation has nothing to draw for {what!r}.")
    return chart


def weights_chart(weights: Weights, policy: str) -> Chart | None:
    """Weights before and after reweighting, on logarithmic axes because the few large ones matter."""
    cells = [
        (low, high, max(before or 0, 0), max(after or 0, 0))
        for low, high, before, after in zip(
            weights.edges, weights.edges[1:], weights.before, weights.after, strict=False
        )
        if low is not None and high is not None and high > low and max(abs(low), abs(high)) < 300
    ]
    if not cells:
        return None
    top = max(1.0, *(math.log10(1 + max(b, a)) for _, _, b, a in cells)) * 1.04
    across = (cells[0][0], cells[-1][1])
    ticks = [(math.log10(1 + 10.0**i) if i else math.log10(2), plain(10.0**i)) for i in range(math.floor(top) + 1)]
    drawn = panel(
        f"Weights of {policy} before and after reweighting",
        across,
        (0.0, top),
        ("weight of a row (logarithmic)", "rows (logarithmic)"),
        (decade_ticks(*across), ticks),
    )
    if across[0] < 0 < across[1]:
        drawn.rule(x=0.0, kind="rule faint")
    for low, high, before, after in cells:
        drawn.bar(low, high, math.log10(1 + before), "before")
        drawn.bar(low, high, math.log10(1 + after), "after")
    rows = []
    for low, high, before, after in cells:
        span = f"{plain(10**low)} to {plain(10**high)}"
        rows.append((span, plain(before), plain(after)))
        drawn.column(low, high, f"weight {span}\nbefore: {plain(before)} rows\nafter: {plain(after)} rows")
    caption = (
        "A row with a large weight stands for many that were never seen. Reweighting shrinks the weights that rest on "
        "uncertain propensities; what is left on the right still deserves a look."
    )
    legend = (("before", "before reweighting"), ("after", "after reweighting"))
    return Chart("Weights before and after", drawn.svg(), caption, ("weight", "before", "after"), tuple(rows), legend)


def sensitivity_chart(sensitivity: Sensitivity, logging_value: float | None, policy: str) -> Chart | None:
    """The range of the value when every propensity may be wrong by a factor Γ."""
    curve = [
        (math.log10(g), low, high)
        for g, low, high in zip(sensitivity.gammas, sensitivity.low, sensitivity.high, strict=False)
        if g is not None and g >= 1 and low is not None and high is not None
    ]
    if len(curve) < 2:
        return None
    reference = [] if logging_value is None else [logging_value]
    across = (0.0, curve[-1][0])
    ticks = [
        (math.log10(g), f"{plain(g)} ×")
        for g in (1, 1.5, 2, 3, 5, 10, 20, 50, 100)
        if math.log10(g) <= across[1] + 1e-9
    ]
    y = extent([v for _, low, high in curve for v in (low, high)], include=reference)
    drawn = panel(
        f"Range of the value of {policy} by the factor by which propensities may be wrong",
        across,
        y,
        ("every propensity wrong by up to this factor", "value"),
        (ticks, None),
    )
    drawn.band([(x, low) for x, low, _ in curve], [(x, high) for x, _, high in curve], "band")
    for side, kind in ((1, "s0"), (2, "s0")):
        drawn.line([(row[0], row[side]) for row in curve], kind)
    if logging_value is not None:
        drawn.rule(y=logging_value, text="logging policy", kind="rule today")
    flips = sensitivity.flips_at
    if flips is not None and 1 < flips <= 10 ** across[1]:
        drawn.rule(x=math.log10(flips), text=f"flips at {flips:.2f} ×", kind="rule bad")
    places = decimals((y[1] - y[0]) / 10)
    for x, low, high in curve:
        tip = f"wrong by up to {plain(10**x)} ×\nvalue between {fixed(low, places)} and {fixed(high, places)}"
        drawn.dot(x, low, "s0", tip, 2.5)
        drawn.dot(x, high, "s0", tip, 2.5)
    caption = (
        "If the true probability of showing an action differs from the estimate by up to a factor in every row, in the "
        "worst direction, the value lies within the band. Where the band crosses the dashed line, the conclusion flips."
    )
    rows = tuple((f"{plain(10**x)} ×", fixed(low, places), fixed(high, places)) for x, low, high in curve)
    return Chart(
        "How wrong may the propensities be?", drawn.svg(), caption, ("wrong by up to", "lowest", "highest"), rows
    )


def calibration_chart(quality: Quality) -> Chart | None:
    """How often actions were taken against the probability β̂ gave them, on rows β̂ did not see."""
    rows = quality.rows
    bins = [
        (b.predicted * rows / b.pairs, b.observed * rows, b.pairs)
        for b in quality.bins
        if b.predicted and b.predicted > 0 and b.observed is not None and b.pairs and b.pairs > 0 and rows > 0
    ]
    # A bin that expects less than a twentieth of a row can only be observed as zero: it says nothing.
    bins = [(p, max(k, 0.0), n) for p, k, n in bins if p * n >= 0.05 or k > 0]
    if not bins:
        return None
    known = [math.log10(v) for p, k, n in bins for v in (p, k / n) if v > 0]
    low, high = min(known) - 0.25, max(*known, -0.3) + 0.15
    drawn = panel(
        "Observed frequency by estimated probability",
        (low, high),
        (low, high),
        ("estimated probability β̂", "how often it was taken"),
        (decade_ticks(low, high), decade_ticks(low, high)),
    )
    drawn.line([(low, low), (high, high)], "ideal")
    table = []
    for p, k, n in bins:
        spread = 1.96 * math.sqrt(max(k, 1.0))
        ends = (max(k - spread, 0) / n, max(k + spread, 1e-300) / n)
        x = math.log10(p)
        drawn.span(x, math.log10(ends[0]) if ends[0] > 0 else low, math.log10(ends[1]), "whisker")
        tip = f"estimated {percent(p)}\ntaken {percent(k / n)} ({plain(k)} of {plain(n)})"
        drawn.dot(x, math.log10(k / n) if k > 0 else low, "s0" if k > 0 else "s0 hollow", tip, 4)
        table.append((percent(p), percent(k / n), plain(k), plain(n)))
    error = (
        "" if quality.calibration_error is None else f" {percent(quality.calibration_error)} of the mass is misplaced."
    )
    caption = (
        "On rows the model did not see: points on the diagonal mean that an action said to be shown in 10 % of cases "
        f"was shown in 10 % of cases. Whiskers are 95 % ranges; a hollow point was never seen.{error}"
    )
    head = ("estimated", "taken", "times taken", "opportunities")
    return Chart("Calibration of the estimated propensities", drawn.svg(), caption, head, tuple(table))


def frequency_charts(buckets: Sequence[Frequency]) -> list[Chart]:
    """β̂ and U by how often an action was logged: Figure 1 of the UIPS paper."""
    placed = sorted((b.log_frequency, i) for i, b in enumerate(buckets))
    if not placed:
        return []
    across = (placed[0][0] - 0.5, placed[-1][0] + 0.5)
    shift = math.log10(math.e)
    decades = decade_ticks(across[0] * shift, across[1] * shift)
    ticks = [(v / shift, text) for v, text in decades]
    out = []
    for key, title, short, kind in (
        ("logging_prob", "Estimated propensity β̂ by action frequency", "β̂", "s0"),
        ("uncertainty", "Uncertainty U of β̂ by action frequency", "U", "s1"),
    ):
        values = [getattr(buckets[i], key) for _, i in placed]
        top = max((v for v in values if v is not None), default=0.0) * 1.08 or 1.0
        labels = ("times the action was logged (logarithmic)", f"mean {short} of logged rows")
        drawn = panel(title, across, (0.0, top), labels, (ticks, None))
        rows = []
        for (x, i), value in zip(placed, values, strict=True):
            bucket = buckets[i]
            about = plain(math.exp(x), 2)
            if value is not None:
                drawn.bar(x - 0.25, x + 0.25, value, kind)
            tip = (
                f"logged about {about} times\n{short} {plain(value)}\n{bucket.rows:,} rows, {bucket.actions:,} actions"
            )
            drawn.column(x - 0.25, x + 0.25, tip)
            rows.append((about, plain(value), f"{bucket.rows:,}", f"{bucket.actions:,}"))
        out.append(Chart(title, drawn.svg(), "", ("times logged", short, "rows", "actions"), tuple(rows)))
    return out


def balance_chart(balance: Sequence[tuple[str, float | None, float | None]], policy: str) -> Chart | None:
    """Shift of each feature's mean by the weights, in standard deviations."""
    known = [(label(name, 60), before or 0.0, after) for name, before, after in balance if after is not None]
    if not known:
        return None
    reach = max(0.15, *(max(abs(b), abs(a)) for _, b, a in known)) * 1.1
    n = len(known)
    names = [(n - i - 0.5, name if len(name) <= 20 else name[:19] + "…") for i, (name, _, _) in enumerate(known)]
    drawn = panel(
        f"Shift of feature means under the weights of {policy}",
        (-reach, reach),
        (0.0, float(n)),
        ("shift of the mean, in standard deviations", ""),
        (None, names),
    )
    inside = min(0.1, reach)
    drawn.band([(-inside, 0.0), (inside, 0.0)], [(-inside, float(n)), (inside, float(n))], "calm")
    drawn.rule(x=0.0, kind="rule faint")
    for (y, _), (name, before, after) in zip(names, known, strict=True):
        drawn.line([(before, y), (after, y)], "thin")
        drawn.dot(before, y, "s2 hollow")
        once, weighted = fixed(before, 3, sign=True), fixed(after, 3, sign=True)
        tip = f"{name}\nafter weighting: {weighted} sd\nevery context once: {once} sd"
        drawn.dot(after, y, "s0" if abs(after) <= 0.1 else "bad", tip, 4.5)
    caption = (
        "The right weights leave the features of the contexts where they were: filled points within the shaded band of "
        "±0.1 standard deviations are fine. Hollow points count every context once."
    )
    rows = tuple((name, fixed(b, 3, sign=True), fixed(a, 3, sign=True)) for name, b, a in known)
    return Chart("Covariate balance", drawn.svg(), caption, ("feature", "contexts once", "weighted"), rows)


def learning_charts(learning: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Chart]:
    """One panel for each number that was followed, one line for each method."""
    curves: dict[str, dict[str, list[Point]]] = {}
    for method, epochs in list(learning.items())[:MOST_CURVES]:
        for place, row in enumerate(epochs):
            x = _number(row.get("epoch"))
            for name, value in row.items():
                y = _number(value)
                if name != "epoch" and y is not None:
                    curves.setdefault(name, {}).setdefault(method, []).append((place if x is None else x, y))
    return [_learning_chart(name, methods, list(learning)) for name, methods in list(curves.items())[:MOST_METRICS]]


def _learning_chart(name: str, methods: Mapping[str, list[Point]], order: Sequence[str]) -> Chart:
    shown = label(name, 40).replace("_", " ")
    xs = [x for points in methods.values() for x, _ in points]
    across = (min(xs), max(xs)) if max(xs) > min(xs) else (min(xs) - 1, max(xs) + 1)
    y = extent([v for points in methods.values() for _, v in points])
    drawn: Panel = panel(f"{shown} by epoch", across, y, ("epoch", ""))
    places = decimals((y[1] - y[0]) / 20)
    rows = []
    for method, points in methods.items():
        kind = SERIES[order.index(method)]
        thinned = points[:: max(1, math.ceil(len(points) / MOST_POINTS))]
        drawn.line(thinned, kind)
        for x, v in thinned:
            drawn.dot(x, v, kind, f"{label(method, 40)}\nepoch {plain(x)}\n{shown} {fixed(v, places)}", 2.5)
        last = points[-1]
        rows.append((label(method, 40), fixed(points[0][1], places), fixed(last[1], places), plain(last[0])))
    legend = tuple((SERIES[order.index(m)], label(m, 40)) for m in methods)
    return Chart(shown, drawn.svg(), "", ("method", "first", "last", "epochs"), tuple(rows), legend)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e100 or not math.isfinite(value):
        return None
    return float(value)
