"""A log in shards: the same answer as in one piece, and the same bits whoever works on the shards."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpolicy.engine import Engine, make_engine
from offpolicy.engine.pool import OrderedPool
from offpolicy.errors import ParameterError
from offpolicy.evaluation import Asked, Evaluator, Options, evaluate
from offpolicy.log import LoggedData
from offpolicy.nuisances import Nuisances
from offpolicy.policies import logged_log_prob
from offpolicy.propensity import LoggingPolicy, fit_logging_policy
from offpolicy.results import Evaluation
from offpolicy.rewards import PooledRewardModel
from offpolicy.uncertainty import uncertainty_of
from shard_policies import WIDTH, sharp, smooth

ROWS, CONTEXTS, ACTIONS = 4_000, 700, 6
POLICIES: dict[str, Any] = {"uniform": "uniform", "sharp": sharp, "smooth": smooth}


@cache
def a_log(weighted: bool = False) -> LoggedData:
    chance = np.random.default_rng(0)
    contexts, index = chance.normal(size=(CONTEXTS, WIDTH)).astype(np.float32), chance.integers(0, CONTEXTS, ROWS)
    scores = contexts @ chance.normal(size=(WIDTH, ACTIONS))
    prob = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    price = np.where(chance.random(ROWS) < 0.05, np.nan, chance.exponential(size=ROWS))
    cost = np.where(chance.random(ROWS) < 0.5, 0.0, chance.normal(1.0, 2.0, size=ROWS))
    kept = {"device": np.where(chance.random(ROWS) < 0.3, "phone", "desk"), "price": price, "cost": cost}
    kept["visits"] = chance.integers(0, 2, ROWS)
    action = (prob[index].cumsum(1) > chance.random(ROWS)[:, None]).argmax(1)
    return LoggedData.from_arrays(
        contexts,
        action,
        (chance.random(ROWS) < 0.2 + 0.1 * action).astype(np.float64),
        context_index=index,
        actions=ACTIONS,
        timestamp=chance.permutation(ROWS),
        row_weight=chance.integers(1, 4, ROWS).astype(np.float64) if weighted else None,
        keep=kept,
    ).sharded(8)


@cache
def beta(weighted: bool = False) -> LoggingPolicy:
    return fit_logging_policy(a_log(weighted).undivided, "linear")


def nuisances(log: LoggedData) -> Nuisances:
    """β̂ of the rows as one shard, so that it is the same for all."""
    return Nuisances(log, logging_policy=beta(log.row_weight is not None))


def found(log: LoggedData, engine: Engine | None = None, **options: Any) -> Evaluation:
    asked = Options(intervals=("normal", "bootstrap", "empirical_likelihood"), **options)
    with Evaluator(nuisances(log), POLICIES, {}, asked, engine) as evaluator:
        return evaluator.evaluation


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from numbers(each, f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for place, each in enumerate(value):
            yield from numbers(each, f"{path}[{place}]")
    else:
        yield path, value


@pytest.mark.parametrize("weighted", [False, True])
def test_eight_shards_say_what_one_says(weighted: bool) -> None:
    log = a_log(weighted)
    by = ("device", "price", "time")
    one, eight = (dict(numbers(found(each, by=by).model_dump())) for each in (log.undivided, log))
    assert one.keys() == eight.keys()
    for path, value in one.items():
        if isinstance(value, float):
            assert eight[path] == pytest.approx(value, rel=1e-7, abs=1e-9), path
        else:
            assert eight[path] == value, path


@pytest.fixture(scope="module")
def workers() -> Iterator[list[Engine]]:
    with make_engine("local", 2) as two, make_engine("local", 3) as three:
        yield [two, three]


def test_ray_changes_no_bit(local_ray: Engine) -> None:
    assert found(a_log(), local_ray).model_dump_json() == found(a_log()).model_dump_json()


def test_further_rewards_and_guardrails_are_those_of_one_shard() -> None:
    given: dict[str, Any] = {"rewards": ("cost",), "guardrails": ("visits>=-5%",), "winsorise": 0.02}
    one, eight = (dict(numbers(found(each, **given).model_dump())) for each in (a_log().undivided, a_log()))
    assert one.keys() == eight.keys()
    for path, value in one.items():
        same = pytest.approx(value, rel=1e-6, abs=1e-9) if isinstance(value, float) else value
        assert eight[path] == same, path


def test_the_number_of_workers_changes_no_bit(workers: list[Engine]) -> None:
    here = found(a_log(), by=("device",)).model_dump_json()
    for engine in workers:
        assert found(a_log(), engine, by=("device",)).model_dump_json() == here


@pytest.mark.parametrize(("where", "kills"), [("local", 8), ("ray", 3)])
def test_workers_may_be_killed_at_any_moment(
    where: str, kills: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    engine: Engine = make_engine("local", 2) if where == "local" else request.getfixturevalue("local_ray")
    here, killed = found(a_log()).model_dump_json(), killing(engine, kills, monkeypatch)
    assert found(a_log(), engine).model_dump_json() == here
    assert len(killed) >= kills / 2
    if where == "local":
        engine.close()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_workers_of_ray_may_be_killed_ten_times(local_ray: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    here, killed = found(a_log()).model_dump_json(), killing(local_ray, 14, monkeypatch)
    assert found(a_log(), local_ray).model_dump_json() == here
    assert len(killed) >= 10


def killing(engine: Engine, kills: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Kill a worker in the middle of some of the maps from here on; who was killed."""
    chance, calls = np.random.default_rng(0), count()
    moments = set(chance.choice(np.arange(2, 120), kills, replace=False).tolist())
    killed: list[int] = []
    asked = OrderedPool.map

    def dangerous(pool: OrderedPool, *given: Any, **options: Any) -> Iterator[Any]:
        """A map, in the middle of which a worker may be killed."""
        moment = int(chance.integers(0, 4)) if next(calls) in moments else None
        for place, answer in enumerate(asked(pool, *given, **options)):
            if place == moment:
                with suppress(ProcessLookupError):  # one that was killed before and has not been missed
                    victim = engine.pids[int(chance.integers(len(engine.pids)))]
                    os.kill(victim, signal.SIGKILL)
                    killed.append(victim)
            yield answer

    monkeypatch.setattr(OrderedPool, "map", dangerous)
    return killed


def test_clusters_beyond_the_most_units_are_summed_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    log = a_log()
    full = found(log.undivided)
    monkeypatch.setattr(import_module("offpolicy.evaluation.evaluated"), "UNITS", 8 * 40)
    with Evaluator(nuisances(log), POLICIES) as evaluator:
        terms = evaluator.rows["smooth"].clustered_all([Asked("snips")])[0]
        grouped = evaluator.evaluation
    assert terms.clusters == 8 * 40
    for name, one in full.policies.items():
        other = grouped.policies[name]
        for exact, other_exact in zip(one.estimates, other.estimates, strict=True):
            if "lam" not in exact.hyper and "cap" not in exact.hyper:  # which are chosen by errors
                assert other_exact.value == pytest.approx(exact.value, rel=1e-9)
                assert other_exact.standard_error == pytest.approx(exact.standard_error, rel=0.25)
        for check, same in zip(one.preflight.checks, other.preflight.checks, strict=True):
            if check.name in ("effective sample size", "largest weight share", "mean weight", "tail of the weights"):
                assert same.value == pytest.approx(check.value, rel=1e-9)


def test_beta_of_a_sample_is_that_of_whole_units_and_of_models_that_did_not_see_the_row() -> None:
    log = a_log()
    part = Nuisances(log, model="auto", sample_rows=1_500)
    inside = log.of_share(part.sample_share, "nuisances")
    assert 1_200 < inside.sum() < 1_800
    assert not set(log.context_index[inside]) & set(log.context_index[~inside])
    assert part.fitted_log.n_rows == inside.sum()
    with Evaluator(part, POLICIES) as evaluator:
        rows = evaluator.rows["sharp"]
        shards = list(rows.map(_inputs))
    logging, u, imputed = (np.concatenate([one[k] for one in shards]) for k in range(3))
    fitted, q = part.logging_policy, part.reward_model
    assert isinstance(fitted, LoggingPolicy)
    assert isinstance(q, PooledRewardModel)
    assert np.array_equal(logging[inside], fitted.row_log_prob.numpy())
    assert np.array_equal(u[inside], part.uncertainty().numpy())
    assert np.array_equal(imputed[inside], q.imputed.numpy())
    outside = log.take(~inside).undivided
    uncertainty = part.uncertainty_of(outside)
    assert uncertainty is not None
    assert logging[~inside] == pytest.approx(fitted.logged_log_prob(outside).numpy(), rel=1e-5)
    assert u[~inside] == pytest.approx(uncertainty.numpy(), rel=1e-5)
    assert imputed[~inside] == pytest.approx(q.row_rewards(outside).numpy(), rel=1e-6)


def _inputs(rows: Any) -> list[Any]:
    return [rows.inputs[name].numpy().copy() for name in ("log_logging", "uncertainty", "imputed")]


def test_a_linear_beta_is_fitted_to_all_shards_and_each_row_is_left_out_of_its_own_uncertainty() -> None:
    log = a_log()
    part = Nuisances(log, model="linear", sample_rows=1_500)
    with Evaluator(part, POLICIES) as evaluator:
        shards = list(evaluator.rows["sharp"].map(_inputs))
    logging, u = (np.concatenate([one[k] for one in shards]) for k in range(2))
    fitted = part.logging_policy
    assert isinstance(fitted, LoggingPolicy)
    assert fitted.log is log
    assert logging == pytest.approx(logged_log_prob(fitted.whole.policy, log.undivided).numpy(), rel=1e-5)
    whole = uncertainty_of(fitted.whole, log.undivided, log.undivided, "per_action")
    assert u == pytest.approx(whole.numpy(), rel=1e-4)


def test_a_linear_beta_of_all_shards_is_kept_for_the_next_run(tmp_path: Path) -> None:
    log = a_log()
    part = Nuisances(log, model="linear", sample_rows=1_500)
    with Evaluator(part, POLICIES) as evaluator:
        here = evaluator.evaluation
    assert part.save(tmp_path) is not None
    again = Nuisances.load(tmp_path, log, "linear", sample_rows=1_500)
    assert again is not None
    assert isinstance(again._logging, LoggingPolicy)
    with Evaluator(again, POLICIES) as evaluator:
        assert evaluator.evaluation.model_dump_json() == here.model_dump_json()
    assert Nuisances.load(tmp_path, log.undivided, "linear") is None


def test_other_models_of_beta_are_asked_shard_by_shard() -> None:
    found = []
    for log in (a_log().undivided, a_log()):
        part = Nuisances(log, logging_policy=fit_logging_policy(a_log().undivided, "auto"))
        with Evaluator(part, POLICIES) as evaluator:
            found.append({one.model: one for one in evaluator.propensity_models()})
    assert found[0].keys() == found[1].keys()
    for model, one in found[0].items():
        for name in ("value", "low", "high", "mean_weight"):
            assert getattr(found[1][model], name) == pytest.approx(getattr(one, name), rel=1e-6), model


def test_quantiles_over_shards_are_exact() -> None:
    with Evaluator(nuisances(a_log()), POLICIES) as evaluator:
        rows = evaluator.rows["sharp"]
        ratio = np.concatenate(list(rows.map(_ratios)))
        shares = [0.0, 0.013, 0.5, 0.99, 1.0]
        assert np.array_equal(rows.quantiles(_ratios, shares), np.quantile(ratio, shares))
        assert np.array_equal(rows.quantiles(_signed, shares), np.quantile(np.log(ratio), shares))


def _ratios(rows: Any) -> Any:
    return rows.ratio.double().numpy()


def _signed(rows: Any) -> Any:
    return np.log(rows.ratio.double().numpy())


def test_a_column_of_probabilities_is_divided_as_the_log_is() -> None:
    log = a_log()
    column = np.random.default_rng(1).uniform(0.05, 0.9, log.n_rows)
    for name in ("value", "lam"):
        one, eight = (evaluate(each, {"it": column}, beta()).policies["it"] for each in (log.undivided, log))
        assert getattr(eight, name) == pytest.approx(getattr(one, name), rel=1e-9)


@pytest.mark.parametrize("given", [{"refits": 2}, {"sensitivity_columns": True}])
def test_what_needs_all_rows_at_once_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match="read shard by shard"):
        evaluate(a_log(), POLICIES, **given)


def test_estimators_of_the_whole_log_are_left_out_with_the_reason() -> None:
    left_out = evaluate(a_log(), POLICIES, "linear", estimators=["ips", "prune"]).policies["sharp"].left_out
    assert left_out == {"prune": "its weights depend on all rows at once, but this log is read shard by shard"}


def test_lists_cannot_be_divided_and_functions_need_a_name() -> None:
    with pytest.raises(ParameterError, match="cannot be divided"):
        evaluate(a_log(), {"lists": [[0]] * CONTEXTS}, "linear")
    with pytest.raises(ParameterError, match="by a name that can be imported"):
        evaluate(a_log(), lambda contexts: np.full((contexts.n_rows, ACTIONS), 1 / ACTIONS), "linear")
