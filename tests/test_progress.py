"""Bars are hidden away from a terminal and tell the time left where there is one; commands print lines instead."""

import re
import time

import pytest

from offpolicy.progress import command_progress, progress, time_left


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


def test_a_command_without_a_terminal_prints_lines_with_the_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offpolicy.progress.FIRST", 0.02)
    monkeypatch.setattr("offpolicy.progress.EVERY", 0.02)
    with command_progress(), progress("fitting", 4) as advance:
        advance("error 0.5")
        time.sleep(0.3)
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert all(re.fullmatch(r"\[0:00:00\] fitting: 1 of 4, 0:00:0\d left, error 0.5", line) for line in lines)


def test_a_quiet_command_prints_no_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offpolicy.progress.FIRST", 0.01)
    with command_progress(quiet=True), progress("fitting", 4, show=True) as advance:
        advance("")
        time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_lines_tell_of_the_innermost_work_and_end_with_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offpolicy.progress.FIRST", 0.02)
    monkeypatch.setattr("offpolicy.progress.EVERY", 0.02)
    with command_progress(), progress("outer", 3), progress("inner", None):
        time.sleep(0.2)
    assert set(capsys.readouterr().err.splitlines()) == {"[0:00:00] inner"}
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_a_line_that_says_nothing_new_comes_less_and_less_often(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offpolicy.progress.FIRST", 0.02)
    monkeypatch.setattr("offpolicy.progress.EVERY", 0.02)
    with command_progress(), progress("fitting", None):
        time.sleep(0.6)  # at 0.02, 0.04, 0.08, 0.16, 0.32 and 0.64 at the earliest
    assert 1 <= len(capsys.readouterr().err.splitlines()) <= 6
