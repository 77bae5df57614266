"""Charts from plain numbers, drawn by plotly (the extra `plots`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from offpolicy.errors import MissingExtraError, ParameterError

PANELS = (("logging_prob", "mean β̂(a|x) of logged rows"), ("uncertainty", "mean U(x, a) of logged rows"))


def _plotly() -> tuple[Any, Any]:
    try:
        from plotly import graph_objects, subplots
    except ImportError:
        raise MissingExtraError(
            "Charts need plotly, which is not installed. Install it with: pip install 'offpolicy[plots]'"
        ) from None
    return graph_objects, subplots


def frequency_figure(buckets: Sequence[Mapping[str, Any]], title: str = "β̂ and U by action frequency") -> Any:
    """Figure 1 of the UIPS paper as a plotly figure: two panels over ln n, n the times an action was logged.

    `buckets` are those of `uncertainty.frequency_profile`, each `to_json()`.
    """
    if not buckets:
        raise ParameterError("There are no frequency buckets to draw. Compute them from a log with rows.")
    graph_objects, subplots = _plotly()
    figure = subplots.make_subplots(rows=1, cols=2, subplot_titles=[label for _, label in PANELS])
    x = [b["log_frequency"] for b in buckets]
    said = [f"{b['rows']:,} rows, {b['actions']:,} actions" for b in buckets]
    for column, (key, label) in enumerate(PANELS, start=1):
        bars = graph_objects.Bar(x=x, y=[b[key] for b in buckets], text=said, textposition="none", name=label)
        figure.add_trace(bars, row=1, col=column)
        figure.update_xaxes(title_text="ln(times the action was logged)", row=1, col=column)
        figure.update_yaxes(rangemode="tozero", row=1, col=column)
    figure.update_layout(title_text=title, showlegend=False, template="plotly_white", bargap=0.1)
    return figure


def write_chart(figure: Any, path: str | Path) -> Path:
    """Write a plotly figure as one HTML file that needs no network; returns its path."""
    path = Path(path)
    path.write_text(figure.to_html(include_plotlyjs=True, full_html=True), encoding="utf-8")
    return path
