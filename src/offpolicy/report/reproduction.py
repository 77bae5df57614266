"""The figures of the paper and the page of a reproduced table, from plain rows, without torch."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from offpolicy.drawing import chart_style, panel, plain
from offpolicy.results import Chart, Frequency, frequency_charts

STYLE = """
body { max-width: none; margin: 2rem; }
.wide { overflow-x: auto; }
table.numbers { border-collapse: collapse; font-size: 0.85rem; }
table.numbers th, table.numbers td { padding: 0.15rem 0.6rem; text-align: left; white-space: nowrap; }
table.numbers thead { border-top: 2px solid; border-bottom: 1px solid; }
table.numbers tbody { border-bottom: 1px solid; }
.paper { opacity: 0.65; }
figure { margin: 1rem 1rem 1rem 0; vertical-align: top; width: 480px; }
body figure:nth-child(n):nth-child(n) { display: inline-block; } /* the report lays an odd last figure out in columns */
"""


def grid_charts(rows: Sequence[Mapping[str, Any]], metrics: Sequence[str], label: str) -> list[Chart]:
    """A map for each metric: γ across, λ upwards, the darker the better; the best point is named below."""
    gammas, lams = (sorted({row[name] for row in rows}) for name in ("gamma", "lam"))
    charts = []
    for metric in metrics:
        points: dict[tuple[float, float], list[float]] = {}
        for row in rows:
            if row.get(metric) is not None:
                points.setdefault((row["gamma"], row["lam"]), []).append(row[metric])
        means = {point: sum(values) / len(values) for point, values in points.items()}
        if means:
            charts.append(_grid_chart(metric, f"{label}: {metric} by γ and λ", means, (gammas, lams)))
    return charts


def _grid_chart(
    metric: str,
    title: str,
    means: Mapping[tuple[float, float], float],
    axes: tuple[Sequence[float], Sequence[float]],
) -> Chart:
    gammas, lams = axes
    low, high = min(means.values()), max(means.values())
    ticks = [[(place + 0.5, plain(value)) for place, value in enumerate(axis)] for axis in axes]
    drawn = panel(
        title, (0.0, float(len(gammas))), (0.0, float(len(lams))), ("γ", "λ"), (tuple(ticks[0]), tuple(ticks[1]))
    )
    for (gamma, lam), value in means.items():
        x, y = gammas.index(gamma), lams.index(lam)
        strength = (value - low) / ((high - low) or 1.0)
        drawn.tile((x, x + 1), (y, y + 1), strength, f"γ = {plain(gamma)}, λ = {plain(lam)}\n{metric} {value:.4f}")
    best = max(means, key=lambda point: means[point])
    caption = (
        f"From {low:.4f} (palest) to {high:.4f} (darkest), the highest at γ = {plain(best[0])}, λ = {plain(best[1])}."
    )
    rows = tuple((plain(gamma), plain(lam), f"{value:.4f}") for (gamma, lam), value in sorted(means.items()))
    return Chart(title, drawn.svg(), caption, ("γ", "λ", metric), rows)


def profile_charts(rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Figure 1 of the paper: β̂ and U by how often an item was logged, the mean over seeds in each bucket."""
    buckets: dict[float, list[Mapping[str, Any]]] = {}
    for row in rows:
        buckets.setdefault(row["log_frequency"], []).append(row)
    names = ("logging_prob", "uncertainty")
    shown = []
    for bucket, members in sorted(buckets.items()):
        means = {name: sum(row[name] for row in members) / len(members) for name in names}
        counts = {name: round(sum(row[name] for row in members) / len(members)) for name in ("rows", "actions")}
        shown.append(Frequency(log_frequency=bucket, **means, **counts))
    return frequency_charts(shown)


def reproduction_page(title: str, sections: Sequence[Markup], charts: Sequence[Chart]) -> str:
    """A page that opens offline."""
    style = _style() + STYLE
    figures = Markup("").join(
        Markup("<figure>{}<figcaption><b>{}.</b> {}</figcaption></figure>").format(
            chart.svg, chart.title, chart.caption
        )
        for chart in charts
    )
    return str(
        Markup(
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>'
            "<style>{style}</style></head><body>{heading}{sections}{figures}</body></html>\n"
        ).format(
            title=title,
            heading="" if sections else Markup("<h1>{}</h1>").format(title),
            style=Markup(style),
            sections=Markup("").join(sections),
            figures=figures,
        )
    )


def _style() -> str:
    return chart_style() + files("offpolicy.report").joinpath("page.css").read_text(encoding="utf-8")
