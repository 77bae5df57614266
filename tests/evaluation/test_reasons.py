"""The reasons of a verdict are plain sentences with the numbers of the checks that failed."""

import sys

import pytest

from offpolicy import evaluate
from offpolicy.datasets import LinearSoftmaxWorld

LOG = LinearSoftmaxWorld.draw(3, n_actions=6, dimensions=3).log(0, n_contexts=200, rows_per_context=2)


def test_every_failed_check_gives_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = ("MEAN_WEIGHT_SLACK", "LARGEST_SHARE", "UNSUPPORTED_MASS", "CONTRADICTION", "DETERMINISTIC", "WIDEST")
    for name in (*limits, "HEAVIEST_TAIL"):
        monkeypatch.setattr(sys.modules["offpolicy.evaluation.diagnostics"], name, -10.0)
    monkeypatch.setattr(sys.modules["offpolicy.evaluation.diagnostics"], "LEAST_EFFECTIVE", 1000.0)
    found = evaluate(LOG.without_propensities(), "uniform", "linear", estimators=("snips",))["policy"].preflight
    failed = {check.name: check.value for check in found.checks if not check.passed}
    holds = {"reward varies", "repeats"}  # whatever the limits
    assert len(failed) == len(found.verdict.reasons) == len([one for one in found.checks if one.name not in holds])
    effective = f"effective sample size is {failed['effective sample size']:.3g} clusters (1000 are needed)"
    assert effective in found.verdict.reasons
    assert any(f"carries {failed['largest weight share']:.1%} of the weight" in one for one in found.verdict.reasons)
    assert not any("{" in reason for reason in found.verdict.reasons)
