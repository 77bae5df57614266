"""The Decider: the policy's own probabilities without torch, draws that match them, and odd requests."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats

from offpolicy.artifacts import export_onnx, save_policy
from offpolicy.artifacts import load_policy as load_with_torch
from offpolicy.errors import ArtifactError, ParameterError
from offpolicy.log import Missing, read_log
from offpolicy.models import linear_scorer, logging_two_tower, network_scorer, two_tower_scorer
from offpolicy.policies import ScorerPolicy
from offpolicy.serving import Decider, load_policy
from offpolicy.serving.decider import softmax, uniform, with_floor
from policy_worlds import a_linear, a_log, a_two_tower, frame, jolted

LOG = a_log()


def scorer_of(kind: str) -> Any:
    if kind == "linear":
        return a_linear(LOG, 16)
    if kind == "quadratic":
        return jolted(linear_scorer(LOG, 5, quadratic=True))
    if kind == "network":
        return jolted(network_scorer(LOG))
    if kind == "logging":
        return jolted(logging_two_tower(a_two_tower(LOG), LOG, id_dim=4, feature_dim=3))
    if kind == "plain":
        user = {"columns": {"user": 4, "segment": 4, "history": 4}, "plain": True}
        return jolted(two_tower_scorer(LOG, dim=16, user=user))
    if kind == "linear layers":
        return jolted(two_tower_scorer(LOG, dim=6, user={"linear": {"history": 5, "taste": 3}}))
    return a_two_tower(LOG)


def probabilities(decider: Decider, context: dict[str, Any]) -> dict[Any, float]:
    return dict(zip(decider.catalogue, softmax(decider.policy.scores(context, decider._whole, [])), strict=True))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_policy(a_linear(LOG, 16), LOG, tmp_path_factory.mktemp("served") / "policy")


@pytest.mark.parametrize("kind", ["linear", "quadratic", "network", "two_tower", "logging", "plain", "linear layers"])
@pytest.mark.parametrize("precision", ["single", "double"])
def test_probabilities_are_the_policys_own(kind: str, precision: str, tmp_path: Path) -> None:
    scorer = scorer_of(kind)
    path = save_policy(scorer.double() if precision == "double" else scorer, LOG, tmp_path / "policy")
    contexts = frame(100, 7, strangers=True)
    expected = load_with_torch(path).recommend(contexts, LOG.n_actions)
    decider = Decider.load(path)
    own = [dict(zip(part["action"], part["probability"], strict=True)) for part in expected.partition_by("row")]
    for context, theirs in zip(contexts.to_dicts(), own, strict=True):
        found = probabilities(decider, context)
        assert max(abs(found[action] - theirs[action]) for action in theirs) < (1e-6 if precision == "double" else 1e-5)
        assert abs(sum(found.values()) - 1) < 1e-12


def test_an_exported_graph_decides_as_its_folder(served: Path, tmp_path: Path) -> None:
    export_onnx(load_with_torch(served), tmp_path / "policy.onnx")
    graph, folder = Decider.load(tmp_path / "policy.onnx"), Decider.load(served)
    assert graph.policy.columns == folder.policy.columns
    for context in [*frame(60, 3, strangers=True).to_dicts(), {}, {"age": "old", "taste": [1], "history": None}]:
        ours, theirs = probabilities(folder, context), probabilities(graph, context)
        assert max(abs(ours[action] - theirs[action]) for action in ours) < 1e-5


def test_no_torch_is_loaded(served: Path) -> None:
    code = (
        "import sys; from offpolicy.serving import Decider; "
        f"d = Decider.load({str(served)!r}).decide('r1', {{}}); print(d.probability, 'torch' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert 0 < float(said[0]) <= 1
    assert said[1] == "False"


@pytest.mark.parametrize("ids", ["sequential", "random", "prefixed"])
def test_a_million_draws_match_the_recorded_probabilities(ids: str) -> None:
    n, k = 1_000_000 if ids == "sequential" else 100_000, 20
    prob = with_floor(softmax(np.random.default_rng(0).normal(size=k) * 2), 0.1)
    key = b"k" * 32
    names = {
        "sequential": map(str, range(n)),
        "random": map(str, np.random.default_rng(1).integers(0, 2**62, n).tolist()),
        "prefixed": (f"user-7/2026-01-01/{i:09d}" for i in range(n)),
    }[ids]
    u = np.fromiter((uniform(key, name, "draw 0") for name in names), float, n)
    drawn = np.bincount(prob.cumsum().searchsorted(u * prob.sum(), side="right"), minlength=k)
    assert stats.chisquare(drawn, prob * n / prob.sum()).pvalue > 0.001
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 4 / np.sqrt(n)


def test_whole_decisions_match_what_they_record(served: Path) -> None:
    decider, context = Decider.load(served, epsilon=0.3), frame(1, 5).to_dicts()[0]
    made = [decider.decide(f"r{i}", context) for i in range(6_000)]
    recorded = {one.action: one.probability or 0.0 for one in made}
    counts = {action: sum(one.action == action for one in made) for action in recorded}
    assert sum(recorded.values()) == pytest.approx(1)  # with this floor, each was drawn at least once
    expected = [recorded[action] * len(made) for action in recorded]
    assert stats.chisquare([counts[a] for a in recorded], expected).pvalue > 0.001
    assert min(recorded.values()) == pytest.approx(0.3 / 23)
    best = max(recorded, key=lambda action: recorded[action])
    assert all(one.explored == (one.action != best) for one in made)


def test_draws_of_policies_are_independent_given_the_requests(tmp_path: Path) -> None:
    uniform_policy = linear_scorer(LOG)
    first = Decider.load(save_policy(uniform_policy, LOG, tmp_path / "a", metadata={"seed": 1}))
    second = Decider.load(save_policy(uniform_policy, LOG, tmp_path / "b", metadata={"seed": 2}))
    assert first.policy.digest != second.policy.digest
    n = 5_000
    same = sum(first.decide(str(i)).action == second.decide(str(i)).action for i in range(n))
    k = LOG.n_actions
    assert abs(same / n - 1 / k) < 4 * np.sqrt(1 / k / n)
    salted = Decider(first.policy, salt="another")
    again = sum(first.decide(str(i)).action == salted.decide(str(i)).action for i in range(n))
    assert abs(again / n - 1 / k) < 4 * np.sqrt(1 / k / n)
    copied = Decider.load(tmp_path / "a")
    assert all(copied.decide(str(i)) == first.decide(str(i)) for i in range(100))


def test_the_floor_is_a_projection() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        n = int(random.integers(1, 30))
        prob = softmax(random.normal(size=n) * 5)
        epsilon = float(random.random())
        floored = with_floor(prob, epsilon)
        assert floored.sum() == pytest.approx(1)
        assert floored.min() >= epsilon / n * (1 - 1e-12)
        above = floored > epsilon / n * (1 + 1e-9)
        if above.any():
            factor = floored[above] / prob[above]
            np.testing.assert_allclose(factor, factor[0])  # one factor, which bounds the weight π/p
            assert factor[0] >= 1 - epsilon - 1e-12
    assert with_floor(np.array([0.9, 0.1]), 0.0).tolist() == [0.9, 0.1]
    np.testing.assert_allclose(with_floor(softmax(random.normal(size=9)), 1.0), 1 / 9)


def test_candidates_are_renormalised(served: Path) -> None:
    decider, context = Decider.load(served), frame(1, 5).to_dicts()[0]
    own = probabilities(decider, context)
    some = decider.catalogue[3:9]
    total = sum(own[action] for action in some)
    for i in range(50):
        found = decider.decide(f"c{i}", context, some)
        assert found.action in some
        assert found.probability == pytest.approx(own[found.action] / total, rel=1e-9)
    repeated = decider.decide("c1", context, [*some, some[0], *some])
    assert repeated.probability == decider.decide("c1", context, some).probability
    assert repeated.candidates_digest != decider.decide("c1", context, some).candidates_digest


def test_several_actions_are_drawn_without_replacement(served: Path) -> None:
    decider, context = Decider.load(served, epsilon=0.2), frame(1, 5).to_dicts()[0]
    floored = with_floor(np.array([*probabilities(decider, context).values()]), 0.2)
    prob = dict(zip(decider.catalogue, floored, strict=True))
    for i in range(50):
        found = decider.decide(f"k{i}", context, k=5)
        assert len(set(found.actions)) == 5
        left = 1.0
        for action, probability in zip(found.actions, found.probabilities, strict=True):
            assert probability == pytest.approx(prob[action] / left, rel=1e-9)
            left -= prob[action]
        assert found.actions[0] == decider.decide(f"k{i}", context).action
    assert len(decider.decide("all", context, k=1000).actions) == LOG.n_actions


def test_modes_and_overrides(served: Path) -> None:
    context = frame(1, 5).to_dicts()[0]
    own = probabilities(Decider.load(served), context)
    greedy = Decider.load(served, mode="greedy", epsilon=0.5).decide("r", context, k=3)
    assert list(greedy.actions) == sorted(own, key=lambda action: -own[action])[:3]
    assert (greedy.probability, greedy.deterministic, greedy.explored) == (1.0, True, False)
    shadow = Decider.load(served, mode="shadow")
    shown = shadow.decide("r", context, baseline="theirs", baseline_probability=0.25)
    assert (shown.action, shown.probability, shown.source) == ("theirs", 0.25, "baseline")
    assert shown.policy_actions == Decider.load(served).decide("r", context).actions
    assert shown.policy_probability == pytest.approx(own[shown.policy_actions[0]])
    assert shadow.decide("r", context, baseline="theirs").probability is None
    nothing = shadow.decide("r", context)
    assert (nothing.action, nothing.source) == (None, "none")
    told = Decider.load(served).decide("r", context, override="campaign")
    assert (told.action, told.probability, told.source, told.deterministic) == ("campaign", 1.0, "override", True)


ODD: list[Any] = [None, [], {}, "x", 1e400, float("nan"), -(10**400), True, [None], [[1]], {"a": 1}, b"x", 3.5]


def test_nothing_in_a_request_raises(served: Path) -> None:
    decider = Decider.load(served, epsilon=0.1)
    full = frame(1, 5).to_dicts()[0]
    for name in full:
        for value in ODD:
            found = decider.decide("r", full | {name: value})
            assert 0 < (found.probability or 0) <= 1
    missing = decider.decide("r", {})
    assert missing.notes == ("missing or unknown: age, taste, segment, history",)
    odd: list[Any] = [[], [[]], [float("nan")], ["unknown"], [None], [True, 1, 1.0]]
    for candidates in odd:
        found = decider.decide("r", full, candidates)
        assert found.action is None or found.action in candidates
    assert decider.decide("r", full, []).notes == ("no candidates",)
    assert decider.decide("r", full, []).source == "none"
    strangers = decider.decide("r", full, ["new", "newer"])
    assert (strangers.probability, strangers.notes[1]) == (0.5, "no candidate is known: drawn uniformly")
    known = decider.catalogue[0]
    mixed = [decider.decide(f"m{i}", full, [known, "new"]) for i in range(2000)]
    new = [one for one in mixed if one.action == "new"]
    assert {one.probability for one in new} == {0.05}  # ε/|C|: new items are explored, never preferred
    assert stats.binomtest(len(new), len(mixed), 0.05).pvalue > 0.001


def test_a_missing_number_counts_as_the_mean(served: Path) -> None:
    decider, full = Decider.load(served), frame(1, 5).to_dicts()[0]
    mean = json.loads((next((served / "versions").iterdir()) / "policy.json").read_text())["scorer"]["design"]
    age = next(column["mean"][0] for column in mean["columns"] if column["name"] == "age")
    for odd in (None, float("nan"), float("inf"), "12"):
        ours, expected = probabilities(decider, full | {"age": odd}), probabilities(decider, full | {"age": age})
        assert max(abs(ours[action] - expected[action]) for action in ours) < 1e-9


def test_dates_and_missing_numbers_are_treated_as_in_the_log(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = 300
    data = pl.DataFrame(
        {
            "signup": [f"2024-0{1 + i % 9}-1{i % 7}T0{i % 8}:30:00" for i in range(rows)],
            "price": [None if i % 5 == 0 else float(i % 11) for i in range(rows)],
            "item": [f"i{i % 4}" for i in range(rows)],
            "clicked": random.integers(0, 2, rows),
        }
    )
    how: dict[str, Missing] = {"price": "indicator"}
    log = read_log(data, context=["signup", "price"], action="item", reward="clicked", missing=how)
    path = save_policy(jolted(linear_scorer(log)), log, tmp_path / "policy", metadata={"roles": {"missing": how}})
    decider = Decider.load(path)
    assert {"signup:weekday", "price:missing"} <= {one["name"] for one in decider.policy.columns}
    asked = data.head(40).with_columns(price=pl.col("price") * 1.5)
    expected = load_with_torch(path).recommend(asked, 4)
    own = [dict(zip(part["action"], part["probability"], strict=True)) for part in expected.partition_by("row")]
    for context, theirs in zip(asked.select("signup", "price").to_dicts(), own, strict=True):
        found = probabilities(decider, context)
        assert max(abs(found[action] - theirs[action]) for action in theirs) < 1e-5
    strange: list[Any] = [None, 7, "noon", [], {"a": 1}]
    for odd in strange:
        assert decider.decide("r", {"signup": odd, "price": odd}).probability


def test_excluded_actions_are_never_shown(tmp_path: Path) -> None:
    import torch

    mask = torch.zeros(LOG.n_actions, dtype=torch.bool)
    mask[[1, 4]] = True
    path = save_policy(ScorerPolicy(a_linear(LOG), LOG.actions, mask), LOG, tmp_path / "policy")
    decider = Decider.load(path, epsilon=1.0)
    ids = LOG.actions.vocabulary.to_list()
    shown = {decider.decide(str(i)).action for i in range(2000)}
    assert shown == set(ids) - {ids[1], ids[4]}
    assert decider.decide("r", {}, [ids[1], ids[4]]).action is None


def test_keeping_a_share_is_a_matter_of_the_request(served: Path) -> None:
    decider = Decider.load(served, keep=0.2)
    kept = [decider.kept(str(i)) for i in range(20_000)]
    assert stats.binomtest(sum(kept), len(kept), 0.2).pvalue > 0.001
    another = Decider.load(served, mode="greedy", keep=0.2)
    assert kept == [another.kept(str(i)) for i in range(20_000)]


def test_what_cannot_be_served(served: Path, tmp_path: Path) -> None:
    for options in ({"mode": "bold"}, {"epsilon": 1.5}, {"keep": 0.0}):
        with pytest.raises(ParameterError):
            Decider.load(served, **options)
    with pytest.raises(ArtifactError, match="does not exist"):
        load_policy(tmp_path / "nowhere")
    with pytest.raises(ArtifactError, match="cannot be served"):
        load_policy(_written(tmp_path / "broken.onnx", b"no graph"))


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path
