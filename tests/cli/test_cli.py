import json
import os
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from offpolicy.workflows.demo import run_demo
from small_log import run

COMMAND = str(Path(sys.executable).with_name("offpolicy"))


def cpu_seconds(*command: str) -> float:
    """CPU of a child process, start-up included; the best of three, because other work disturbs it."""
    best = float("inf")
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True, env=os.environ)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return best


def test_importing_the_package_or_asking_for_help_does_not_load_torch() -> None:
    for line in ("import offpolicy", "from offpolicy.cli import app"):
        code = f"import sys; {line}; print([m for m in ('torch', 'polars', 'scipy', 'pydantic') if m in sys.modules])"
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        assert done.stdout.strip() == "[]", line


def test_start_up_stays_a_small_multiple_of_bare_python() -> None:
    bare = cpu_seconds(sys.executable, "-c", "pass")
    assert cpu_seconds(sys.executable, "-c", "import offpolicy") < 5 * bare + 0.1
    assert cpu_seconds(COMMAND, "--help") < 20 * bare + 0.2


def test_public_names_are_complete_and_load() -> None:
    import offpolicy

    assert set(offpolicy.__all__) == {*offpolicy._HOME, "__version__"}
    for name in offpolicy.__all__:
        assert getattr(offpolicy, name) is not None
    assert set(offpolicy.__all__) == set(dir(offpolicy))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = offpolicy.nonsense


def test_demo_goes_from_a_file_to_a_report_and_shows_the_truth(tmp_path: Path) -> None:
    from offpolicy.estimators import ESTIMATORS

    done = subprocess.run(
        [COMMAND, "--quiet", "demo", "--n-contexts", "500", "--n-actions", "10", "--all"],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert "Truth" in done.stdout
    for name in ESTIMATORS:
        assert f" {name} " in done.stdout
    for method in ("DM, chosen", "CE", "UIPS"):
        assert f" {method} " in done.stdout
    assert "verdict" in done.stdout
    for shown in ("log-likelihood", "calibration error", "mean weight", "mean U", "bands that hold the true β*"):
        assert f"  {shown}: " in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    report = tmp_path / done.stdout.splitlines()[-1].removeprefix("  report: ")
    assert "uips_dr" in report.read_text()
    assert done.stderr == ""
    log = pl.read_parquet(tmp_path / "offpolicy-demo" / "impressions.parquet")
    assert {name: log[name].dtype for name in ("user", "item")} == {"user": pl.String, "item": pl.String}


def test_the_commands_that_the_demo_prints_find_what_it_found(tmp_path: Path) -> None:
    result = run_demo(tmp_path / "demo", seed=3, n_contexts=300, n_actions=5)
    found = json.loads((result.evaluated / "results.json").read_text())["evaluation"]
    for command in result.commands:
        assert run(*shlex.split(command)[1:]).code == 0
    again = json.loads((result.evaluated / "results.json").read_text())["evaluation"]
    assert again == found
    for one in result.learned:
        assert abs(one.truth - one.found.value) < 0.3


def test_the_demo_estimates_propensities_nearly_as_good_as_the_truth(tmp_path: Path) -> None:
    result = run_demo(tmp_path, n_contexts=1_000, n_actions=10)
    found, quality = result.propensities, result.propensities.quality
    assert quality.uniform_log_likelihood < quality.popularity_log_likelihood < quality.log_likelihood
    assert abs(quality.log_likelihood - found.true_log_likelihood) < 0.1
    assert found.calibration.level == 0.95
    assert 0.8 < found.coverage < 1
    error = {row.name: (abs(row.fitted - result.truth), abs(row.known - result.truth)) for row in result.estimates}
    assert error["ips_gt"][0] == error["ips_gt"][1]
    assert error["snips"][0] < abs(result.logging - result.truth) / 2


def test_a_users_error_is_one_paragraph_without_a_traceback(monkeypatch: pytest.MonkeyPatch, capsys) -> None:  # type: ignore[no-untyped-def]
    import offpolicy.workflows
    from offpolicy.cli import main
    from offpolicy.errors import LogError

    def fail(*_: object) -> None:
        raise LogError("Column 'reward' holds NaN in row 3. Drop that row.")

    monkeypatch.setattr(offpolicy.workflows, "run_demo", fail)
    monkeypatch.setattr(sys, "argv", ["offpolicy", "demo"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 1
    assert capsys.readouterr().err == "offpolicy: Column 'reward' holds NaN in row 3. Drop that row.\n"
