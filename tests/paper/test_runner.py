"""Runs are complete, chosen on validation, resumable after a kill at any moment, and refuse another run's results."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offpolicy.engine.workers import Job, next_job
from offpolicy.errors import OffPolicyError
from offpolicy.paper.json_lines import read_rows
from offpolicy.paper.output import RESULTS
from offpolicy.paper.plan import Plan
from offpolicy.paper.runner import TIMINGS, alone, run
from offpolicy.paper.tables import make_table
from toy_study import CALLS, RECIPE, plan

TESTS = Path(__file__).parents[1]
KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from offpolicy.paper.runner import run
from toy_study import plan
run({Path(sys.argv[2]): plan(pause=0.02)}, workers=2)
"""


def rows_of(folder: Path, stage: str) -> list[dict[str, Any]]:
    return [row for row in read_rows(folder / RESULTS) if row["stage"] == stage]


def test_every_line_is_tuned_compared_and_measured(tmp_path: Path) -> None:
    run({tmp_path: plan()}, workers=0)
    assert len(rows_of(tmp_path, "tune")) == 2 * 4
    assert len(rows_of(tmp_path, "validate")) == 2 * 3 * 2 * 2  # parts, lines with settings, settings, draws
    measured = rows_of(tmp_path, "measure")
    assert {(row["part"], row["line"], row["seed"]) for row in measured} == {
        (part, line, seed) for part in ("low", "high") for line in RECIPE.lines for seed in range(3)
    }
    assert all(row["settings"] == ({} if row["line"] == "fixed" else {"x": 1.0}) for row in measured)
    row = measured[0]
    assert row["config"] == {
        "study": "toy",
        "arguments": {"lift": 1.0},
        "trials": 4,
        "validations": 2,
        "redraw": "all",
    }
    assert "torch" in row["versions"]
    seeds = {stage: {row["seed"] for row in rows_of(tmp_path, stage)} for stage in ("tune", "validate", "measure")}
    assert not seeds["tune"] & seeds["validate"] | seeds["measure"] & (seeds["tune"] | seeds["validate"])
    assert sorted(path.name for path in tmp_path.iterdir()) == [RESULTS, TIMINGS]  # the searches are done with


def test_workers_and_one_process_write_the_same_file(tmp_path: Path) -> None:
    run({tmp_path / "here": plan()}, workers=0)
    run({tmp_path / "pool": plan()}, workers=2)
    assert (tmp_path / "here" / RESULTS).read_bytes() == (tmp_path / "pool" / RESULTS).read_bytes()


def test_a_file_cut_anywhere_is_completed_and_nothing_is_done_twice(tmp_path: Path) -> None:
    run({tmp_path / "whole": plan()}, workers=0)
    whole = (tmp_path / "whole" / RESULTS).read_bytes()
    chance = random.Random(0)
    for attempt in range(5):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        lines = whole.splitlines(keepends=True)
        chance.shuffle(lines)
        # A line's later stages may not precede its earlier ones: they never do in a real file.
        lines.sort(key=lambda line: ("tune", "validate", "measure").index(json.loads(line)["stage"]))
        cut = chance.randrange(len(whole))
        (folder / RESULTS).write_bytes(b"".join(lines)[:cut])
        kept = len(b"".join(lines)[:cut].split(b"\n")) - 1
        run({folder: plan()}, workers=0)
        assert (folder / RESULTS).read_bytes() == whole
        assert len(read_rows(folder / "timings.jsonl")) == len(lines) - kept


def test_more_seeds_go_on_from_fewer(tmp_path: Path) -> None:
    run({tmp_path / "three": plan(3, calls=str(tmp_path))}, workers=0)
    done = len((tmp_path / CALLS).read_text().splitlines())
    run({tmp_path / "three": plan(5, calls=str(tmp_path))}, workers=0)
    assert len((tmp_path / CALLS).read_text().splitlines()) == done + 2 * 4 * 2
    run({tmp_path / "five": plan(5, calls=str(tmp_path))}, workers=0)
    assert (tmp_path / "three" / RESULTS).read_bytes() == (tmp_path / "five" / RESULTS).read_bytes()


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (plan(trials=5), "trials = 4, not 5"),
        (plan(lift=2.0), "arguments"),
        (replace(plan(), redraw="policy"), "redraw = 'all', not 'policy'"),
        (replace(plan(), recipe=replace(RECIPE, name="other")), "'toy', not 'other'"),
        (replace(plan(), recipe=replace(RECIPE, parts={"low": {}})), "the part 'high'"),
    ],
)
def test_results_of_another_run_are_refused(tmp_path: Path, other: Plan, said: str) -> None:
    run({tmp_path: plan()}, workers=0)
    before = (tmp_path / RESULTS).read_bytes()
    with pytest.raises(OffPolicyError, match=said):
        run({tmp_path: other}, workers=0)
    assert (tmp_path / RESULTS).read_bytes() == before


def test_an_error_of_the_study_stops_the_run_and_keeps_what_is_done(tmp_path: Path) -> None:
    with pytest.raises(OffPolicyError, match="data of this line are missing"):
        run({tmp_path: plan(fails="fixed")}, workers=2)
    assert rows_of(tmp_path, "tune")


def test_a_training_that_diverges_is_a_result_without_a_metric(tmp_path: Path) -> None:
    asked = plan(diverges="plain")
    run({tmp_path: asked}, workers=0)
    measured = [row for row in rows_of(tmp_path, "measure") if row["line"] == "plain"]
    assert all(row["settings"] == {"x": 2.0} for row in measured)  # the best setting is no choice: it diverges
    assert [row["seed"] for row in measured if row["found"] == [{"diverged": "The loss is not finite."}]] == [1, 1]
    table = make_table(asked.recipe, read_rows(tmp_path / RESULTS))
    assert any("diverged" in note and "Plain" in note for note in table.notes)


def test_a_free_worker_stays_with_its_group_within_the_lowest_rank() -> None:
    a, b, c, later = (Job(print, (), group=(g, 0), rank=r) for g, r in (("a", 0), ("b", 0), ("c", 0), ("a", 1)))
    assert next_job([a, b, c], ("b", 0), {("a", 0)}) is b
    assert next_job([a, b, c], None, {("a", 0)}) is b
    assert next_job([a, b, c], ("x", 0), {("a", 0), ("b", 0), ("c", 0)}) is a
    assert next_job([later, c], ("a", 0), set()) is c


def test_a_free_worker_goes_on_with_kin_that_nobody_holds() -> None:
    jobs = [Job(print, (), group=("seed", seed, part)) for seed in (0, 1) for part in ("x", "y")]
    assert next_job(jobs[1:], None, {("seed", 0, "x")}) is jobs[2]
    assert next_job(jobs[1:], ("seed", 0, "x"), set()) is jobs[1]
    assert next_job(jobs[2:], ("seed", 0, "y"), {("seed", 1, "x")}) is jobs[3]


def test_a_group_is_joined_for_much_work_only() -> None:
    much, little, later = (
        Job(print, (), group=(g, 0), rank=r, cost=c) for g, r, c in (("a", 0, 20), ("a", 0, 1), ("b", 1, 1))
    )
    held: set[Any] = {("a", 0)}
    assert next_job([little, later], None, held) is later
    assert next_job([little, much, later], None, held) is little
    assert next_job([little], None, held) is little


def start(folder: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", KILLED, str(TESTS), str(folder)]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})


def test_a_killed_run_goes_on_to_the_same_file(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    run({whole: plan(pause=0.02)}, workers=0)
    total = len(read_rows(whole / RESULTS))
    folder, chance = tmp_path / "killed", random.Random(1)
    started = start(folder)
    wanted = chance.randrange(3, total // 2)
    deadline = time.monotonic() + 60
    while len(read_rows(folder / RESULTS)) < wanted and time.monotonic() < deadline:
        time.sleep(0.01)
    children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
    started.send_signal(signal.SIGKILL)
    started.wait()
    assert wanted <= len(read_rows(folder / RESULTS)) < total
    assert children
    while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [child for child in children if Path(f"/proc/{child}").exists()], "workers outlive the parent"
    run({folder: plan(pause=0.02)}, workers=0)
    assert (folder / RESULTS).read_bytes() == (whole / RESULTS).read_bytes()


def test_a_second_run_into_the_same_folder_is_refused(tmp_path: Path) -> None:
    with alone([tmp_path]), pytest.raises(OffPolicyError, match="Another run"):
        run({tmp_path: plan()}, workers=0)
    assert not (tmp_path / RESULTS).exists()
    run({tmp_path: plan()}, workers=0)
