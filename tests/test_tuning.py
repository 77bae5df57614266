"""Tuning: spaces follow signatures, studies survive being killed, and a better setting is found where there is one."""

import math
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offpolicy.checks import PAPER_GRID
from offpolicy.datasets.synthetic import LinearSoftmaxWorld
from offpolicy.engine import make_engine
from offpolicy.errors import MissingExtraError, OffPolicyError, ParameterError
from offpolicy.estimators.uncertainty_aware import uips
from offpolicy.learning import METHODS, LearnerConfig, learn_policy
from offpolicy.log import write_store
from offpolicy.policies import UniformPolicy, logged_log_prob, tensor
from offpolicy.propensity import fit_logging_policy
from offpolicy.tuning import Dimension, HeldOutValue, Report, Tuned, search, search_space, tune
from offpolicy.tuning.spaces import setting
from offpolicy.tuning.study import STARTUP

SPACE = search_space("uips")
QUICK = LearnerConfig(epochs=3, batch_contexts=64, held_out=0.3, show_progress=False)


def hill(settings: Mapping[str, float], report: Report) -> float:
    """Best at lam = 10, gamma = 2, learning rate .01; reported in five steps."""
    target = {"lam": 10.0, "gamma": 2.0, "learning_rate": 0.01}
    top = -sum(math.log(settings[name] / value) ** 2 for name, value in target.items())
    for step in range(5):
        report(step, top - 5 + step)
    return top


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("preset", ["effective", "paper"])
def test_every_setting_of_every_space_is_allowed(method: str, preset: str) -> None:
    space = search_space(method, preset, n_actions=20)
    assert space[0].name == "learning_rate"
    for point in range(30):
        values = setting(space, point, seed=1)
        rate = values.pop("learning_rate")
        METHODS[method].check_hyper(values)
        LearnerConfig(learning_rate=rate)


def test_the_paper_space_is_the_papers_grid() -> None:
    space = {dimension.name: dimension.choices for dimension in search_space("uips", "paper")}
    assert all(list(space[name]) == list(PAPER_GRID) for name in ("lam", "gamma", "eta1"))
    assert list(space["eta2"]) == [1, 10, 100, 1000]
    assert math.prod(map(len, space.values())) == 27_648  # the count that makes it no search at all
    assert {dimension.name: dimension.choices for dimension in search_space("shrinkage", "paper")}["lam"] == PAPER_GRID


def test_the_effective_pair_loses_nothing() -> None:
    """(λ, η1, η2) and (λ/η1², 1, η2/η1) give proportional weights, and Adam does not see the factor."""
    ratio, u = torch.linspace(-3, 3, 41).double(), torch.linspace(0, 1, 41).double()
    whole = uips(ratio, u, lam=20.0, gamma=3.0, eta1=2.0, eta2=6.0)
    assert torch.allclose(whole, 2.0 * uips(ratio, u, lam=5.0, gamma=3.0, eta1=1.0, eta2=3.0))
    assert [dimension.name for dimension in SPACE] == ["learning_rate", "lam", "gamma"]


def test_all_methods_try_the_same_learning_rates_and_fill_their_range() -> None:
    rates = {m: [setting(search_space(m), n, 0)["learning_rate"] for n in range(20)] for m in METHODS}
    assert all(each == rates["ce"] for each in rates.values())
    logs = np.sort(np.log(rates["ce"]))
    assert np.diff(logs).max() < 2.5 * (math.log(0.1) - math.log(1e-3)) / 20


@pytest.mark.parametrize("seed", [0, 4, 9])
def test_thirty_settings_of_three_dials_fill_each_of_thirty_cells_once(seed: int) -> None:
    counts = np.zeros((2, 3, 5))  # the bases of the first three coordinates
    for n in range(30):
        values = setting(SPACE, n, seed)
        shares = [math.log(values[d.name] / d.low) / math.log(d.high / d.low) for d in SPACE]
        counts[tuple(int(share * cells) for share, cells in zip(shares, counts.shape, strict=True))] += 1
    assert (counts == 1).all()


def same(one: Tuned, other: Tuned) -> bool:
    return one == other and one.trials == other.trials


@pytest.mark.parametrize("warmup", [0, 2])
def test_hopeless_trials_end_after_the_warm_up(warmup: int) -> None:
    reports: list[int] = []

    def sinking(settings: Mapping[str, float], report: Report) -> float:
        reports.append(0)
        for step in range(6):
            reports[-1] += 1
            report(step, -float(len(reports)))
        return -float(len(reports))

    found = search(sinking, SPACE, trials=8, warmup=warmup)
    assert reports == [6] * STARTUP + [warmup + 1] * (8 - STARTUP)
    assert [t.state for t in found.trials] == ["complete"] * STARTUP + ["pruned"] * (8 - STARTUP)


@pytest.mark.parametrize("killed_after", [0, 7])
def test_an_interrupted_study_ends_as_an_undisturbed_one(tmp_path: Path, killed_after: int) -> None:
    undisturbed = search(hill, SPACE, name="a", trials=10)
    calls = 0

    def killed(settings: Mapping[str, float], report: Report) -> float:
        nonlocal calls
        calls += 1
        if calls > killed_after:
            report(0, 0.0)
            raise KeyboardInterrupt
        return hill(settings, report)

    store = tmp_path / "study.db"
    with pytest.raises(KeyboardInterrupt):
        search(killed, SPACE, name="a", trials=10, storage=store)
    resumed = search(hill, SPACE, name="a", trials=10, storage=store)
    assert same(resumed, undisturbed)
    assert any(t.state == "pruned" for t in resumed.trials)

    def never(settings: Mapping[str, float], report: Report) -> float:
        raise AssertionError

    assert same(search(never, SPACE, name="a", trials=10, storage=store), undisturbed)


def test_sigkill_in_the_middle_of_a_trial(tmp_path: Path) -> None:
    calls: list[float] = []
    space, parent = search_space("shrinkage"), os.getpid()

    def objective(settings: Mapping[str, float], report: Report) -> float:
        calls.append(settings["lam"])
        if len(calls) == 4 and os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return -abs(settings["lam"] - 5.0)

    child = os.fork()
    if child == 0:
        search(objective, space, name="k", trials=7, seed=3, storage=tmp_path / "kept")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    resumed = search(objective, space, name="k", trials=7, seed=3, storage=tmp_path / "kept")
    assert len(calls) == 4
    assert same(resumed, search(objective, space, name="k", trials=7, seed=3))


def test_a_trial_that_was_enqueued_and_not_begun_is_run_once(tmp_path: Path) -> None:
    """A kill between the queue and the trial leaves a waiting one; two points with equal settings are two trials."""
    optuna = pytest.importorskip("optuna")
    space = (Dimension("x", choices=(1.0, 2.0)),)
    search(lambda settings, _: settings["x"], space, trials=2, storage=tmp_path / "a.db")
    study = optuna.load_study(study_name="study", storage=f"sqlite:///{tmp_path / 'a.db'}")
    study.enqueue_trial(setting(space, 2, 0), user_attrs={"point": 2})
    found = search(lambda settings, _: settings["x"], space, trials=5, storage=tmp_path / "a.db")
    assert [trial.point for trial in found.trials] == [0, 1, 2, 3, 4]
    assert [trial.settings for trial in found.trials] == [setting(space, n, 0) for n in range(5)]
    assert len(study.get_trials()) == 5


def test_more_trials_continue_and_another_study_is_refused(tmp_path: Path) -> None:
    search(hill, SPACE, trials=3, storage=tmp_path)
    more = search(hill, SPACE, trials=6, storage=tmp_path)
    assert len(more.trials) == 6
    assert more.value == max(t.value for t in more.trials if t.state == "complete" and t.value is not None)
    assert more.table()[0]["value"] == more.value
    with pytest.raises(OffPolicyError, match="another study 'study': seed differ"):
        search(hill, SPACE, trials=6, seed=1, storage=tmp_path)
    with pytest.raises(OffPolicyError, match="space differ"):
        search(hill, search_space("shrinkage"), trials=6, storage=tmp_path)


def test_failed_trials_are_recorded_and_wrong_arguments_are_raised() -> None:
    def breaks(settings: Mapping[str, float], report: Report) -> float:
        if settings["lam"] < 10:
            raise OffPolicyError("the loss is not finite")
        return settings["lam"] if settings["lam"] < 100 else math.nan

    found = search(breaks, SPACE, trials=10)
    assert {t.state for t in found.trials} == {"complete", "fail"}
    assert 10 <= found.settings["lam"] < 100
    assert "finite" in next(t.reason for t in found.trials if t.settings["lam"] < 10)

    def always(settings: Mapping[str, float], report: Report) -> float:
        raise OffPolicyError("no rows")

    with pytest.raises(OffPolicyError, match=r"None of 2 trials.*no rows"):
        search(always, SPACE, trials=2)

    def wrong(settings: Mapping[str, float], report: Report) -> float:
        raise ParameterError("no such thing")

    with pytest.raises(ParameterError, match="no such thing"):
        search(wrong, SPACE, trials=2)
    with pytest.raises(ParameterError, match="trials"):
        search(hill, SPACE, trials=0)
    with pytest.raises(ParameterError, match="effective"):
        search_space("uips", "efective")


def test_without_optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtraError, match=r"offpolicy\[tuning\]"):
        search(hill, SPACE, trials=1)


def test_the_judge_is_the_self_normalised_estimate() -> None:
    world = LinearSoftmaxWorld.draw(0, n_actions=5)
    log = world.log(0, 200, 2)
    target, logging = world.target_policy(), UniformPolicy(5)
    base = logged_log_prob(logging, log)
    weight = (logged_log_prob(target, log) - base).exp()
    expected = float((weight * tensor(log.reward)).sum() / weight.sum())
    assert HeldOutValue(log, base, "value")(target) == pytest.approx(expected, rel=1e-12)
    assert HeldOutValue(log, base, "lower_bound")(target) < expected


@pytest.fixture(scope="module")
def world() -> LinearSoftmaxWorld:
    return LinearSoftmaxWorld.draw(1, n_actions=6, dimensions=3)


def test_tuning_beats_the_worst_setting_and_its_settings_can_be_learned_with(world: LinearSoftmaxWorld) -> None:
    log = world.log(1, 300, 2)
    space = search_space("uips", learning_rates=(0.02, 0.3))
    found = tune(log, "uips", trials=4, space=space, config=QUICK)
    assert found.trials[0].settings == {}  # the defaults, which tuning cannot do worse than
    tried = max(found.trials[1:], key=lambda t: t.value or 0.0)
    assert set(tried.settings) == {"learning_rate", "lam", "gamma", "epochs"}
    assert 1 <= tried.settings["epochs"] <= 3
    complete = [t.value for t in found.trials if t.state == "complete" and t.value is not None]
    assert found.value == max(complete) > min(complete)
    settings: dict[str, Any] = dict(found.settings)
    learned = learn_policy(log, found.method, config=QUICK, **settings)
    fresh = world.contexts(2, 2000)
    assert world.value(learned, fresh) > world.value(world.logging_policy, fresh)
    assert same(tune(log, "uips", trials=4, space=space, config=QUICK), found)


def test_tuning_by_another_log_by_a_function_and_with_given_nuisances(world: LinearSoftmaxWorld) -> None:
    log, fresh = world.log(3, 200, 2), world.contexts(4, 500)
    by_log = tune(log, "bips_cap", trials=2, validation=world.log(5, 100, 2), metric="value", config=QUICK)
    assert 0 < by_log.value < 1

    def truth(policy: Any) -> float:
        return world.value(policy, fresh)

    u = torch.full((log.n_rows,), 0.3)
    given: dict[str, Any] = {"logging_policy": world.logging_policy, "uncertainty": u, "reward_model": world}
    known = tune(log, "uips_dr", trials=2, validation=truth, config=QUICK, **given)
    settings: dict[str, Any] = dict(known.settings)
    learned = learn_policy(log, "uips_dr", config=QUICK, **given, **settings)
    assert truth(learned) == pytest.approx(known.value, abs=1e-6)
    assert tune(log, "uips", trials=1, config=QUICK, logging_policy=world.logging_policy, uncertainty=u).value > 0


def test_tuning_over_shards_is_the_same_for_any_workers_and_learns_from_all_of_them(tmp_path: Path) -> None:
    log = LinearSoftmaxWorld.draw(6, n_actions=4, dimensions=3).log(7, 400, 2).sharded(6)
    train, valid = log.split((0.7, 0.3), by=None, seed=QUICK.seed)
    asked: dict[str, Any] = {"trials": 2, "config": QUICK, "logging_policy": "linear"}
    alone = tune(log, "uips", **asked)
    with make_engine("local", 2) as engine:
        assert same(tune(log, "uips", engine=engine, **asked), alone)
        stored = write_store(train, tmp_path / "train")
        assert same(tune(stored, "uips", validation=valid, engine=engine, **asked), alone)
    trial = alone.trials[1]  # again by hand: learned over the shards of one part, judged on the other
    held, beta = valid.undivided, fit_logging_policy(train.undivided, "linear")
    score = HeldOutValue(held, logged_log_prob(fit_logging_policy(held, "linear"), held))
    settings: dict[str, Any] = dict(trial.settings)
    assert train.n_shards == 6
    learned = learn_policy(train, "uips", config=QUICK, logging_policy=beta, validation=score, **settings)
    assert score(learned) == trial.value


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are listed by Linux only")
def test_a_finished_search_leaves_no_database_open(tmp_path: Path) -> None:
    search(hill, SPACE, name="a", trials=1, storage=tmp_path)
    assert (tmp_path / "studies.db").exists()
    still = [file.readlink().name for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    assert not [name for name in still if name.startswith("studies.db")]
