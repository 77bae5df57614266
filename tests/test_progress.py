"""Bars are hidden away from a terminal and tell the time left where there is one."""

import pytest

from offpolicy.progress import progress, time_left


def test_time_left_follows_the_mean_pace() -> None:
    assert time_left(0, 10, 5.0) == "-:--:--"
    assert time_left(5, 10, 61.0) == "0:01:01"
    assert time_left(1, 101, 72.0) == "2:00:00"
    assert time_left(12, 10, 5.0) == "0:00:00"


def test_a_bar_is_silent_away_from_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("Working", 2) as advance:
        advance("one")
    assert capsys.readouterr().err == ""


def test_a_bar_on_a_terminal_tells_what_and_how_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    with progress("Working", 2, show=True) as advance:
        advance("half way")
        advance("done")
    shown = capsys.readouterr().err
    assert "Working" in shown
    assert "done" in shown
    assert "0:00:00" in shown
