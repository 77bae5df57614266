"""Charts hold the numbers they were given, in a file that needs no network."""

import subprocess
import sys
from pathlib import Path

import pytest

from offpolicy.errors import MissingExtraError, ParameterError
from offpolicy.report.charts import frequency_figure, write_chart

BUCKETS = [
    {"log_frequency": 0.5, "logging_prob": 0.01, "uncertainty": 0.9, "rows": 12, "actions": 10},
    {"log_frequency": 3.0, "logging_prob": 0.07, "uncertainty": 0.2, "rows": 4_000, "actions": 160},
]


def test_the_two_panels_show_the_numbers() -> None:
    prob, uncertainty = frequency_figure(BUCKETS).data
    assert list(prob.x) == list(uncertainty.x) == [0.5, 3.0]
    assert list(prob.y) == [0.01, 0.07]
    assert list(uncertainty.y) == [0.9, 0.2]
    assert prob.xaxis != uncertainty.xaxis
    assert prob.text[1] == "4,000 rows, 160 actions"


def test_the_file_is_self_contained(tmp_path: Path) -> None:
    page = write_chart(frequency_figure(BUCKETS, "a title"), tmp_path / "figure.html").read_text(encoding="utf-8")
    assert "a title" in page
    assert "<script src=" not in page
    assert "Plotly.newPlot" in page


def test_nothing_to_draw_and_no_plotly_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ParameterError, match="no frequency buckets"):
        frequency_figure([])
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(MissingExtraError, match=r"offpolicy\[plots\]"):
        frequency_figure(BUCKETS)


def test_charts_do_not_load_torch() -> None:
    code = "import sys, offpolicy.report.charts; print('torch' in sys.modules, 'plotly' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.split() == ["False", "False"]
