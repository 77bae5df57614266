"""The Decider among candidates: torch's own probabilities, features of candidates in the order of the request."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from offpolicy.artifacts import export_onnx, save_policy
from offpolicy.artifacts import load_policy as load_with_torch
from offpolicy.log import LoggedData, read_log
from offpolicy.models import linear_scorer, network_scorer, with_candidate_features
from offpolicy.policies import ScorerPolicy, choice_log_probs
from offpolicy.serving import Decider, EventStore, Join, collect, replay
from offpolicy.serving.decider import Request
from offpolicy.serving.records import decision_row, policy_facts

FEATURES = ("price", "badge", "rank")


def shop(n: int = 150) -> pl.DataFrame:
    """Requests whose lists are in no particular order, with numbers and ids of each candidate beside them."""
    random = np.random.default_rng(3)
    rows = []
    for _ in range(n):
        names = [f"i{o}" for o in random.choice(9, int(random.integers(1, 8)), replace=False)]
        price, rank = random.random(len(names)).tolist(), random.permutation(len(names)).astype(float).tolist()
        badge = [["new", "old", "sale"][int(random.integers(3))] for _ in names]
        place = int(random.integers(len(names)))
        city, age = ["Rome", "Oslo"][int(random.integers(2))], float(random.normal())
        rows.append((age, city, names[place], float(random.integers(2)), names, price, badge, rank))
    columns = ["age", "city", "item", "buy", "offered", "price", "badge", "rank"]
    return pl.DataFrame(rows, schema=columns, orient="row")


FRAME = shop()


def shop_log(features: tuple[str, ...]) -> LoggedData:
    roles: dict[str, Any] = {"context": ["city", "age"], "action": "item", "reward": "buy", "candidates": "offered"}
    return read_log(FRAME, **roles, candidate_features=features)


def saved_in(folder: Path, log: LoggedData, kind: str, *, double: bool = True) -> Path:
    scorer: Any = with_candidate_features(linear_scorer(log, 4) if kind == "linear" else network_scorer(log), log)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for part in scorer.parameters():
            part.copy_(torch.randn(part.shape, generator=generator))
    return save_policy(ScorerPolicy(scorer.double() if double else scorer, log.actions), log, folder)


def served(decider: Decider, row: dict[str, Any]) -> dict[Any, float]:
    """The probability of every candidate of a request."""
    notes: list[str] = []
    offered, _, prob, _ = decider._offer(Request("r", row, row["offered"]), notes)
    assert not [note for note in notes if "missing" in note]
    return dict(zip(offered, prob.tolist(), strict=True))


@pytest.mark.parametrize("kind", ["linear", "network"])
@pytest.mark.parametrize("features", [(), ("price",), FEATURES])
def test_probabilities_among_candidates_are_torchs(tmp_path: Path, kind: str, features: tuple[str, ...]) -> None:
    log = shop_log(features)
    path = saved_in(tmp_path / "policy", log, kind)
    decider = Decider.load(path)
    expected = choice_log_probs(load_with_torch(path), log.contexts).double().exp().numpy()
    assert log.candidates is not None
    codes, ids = log.candidates.padded(), log.actions.vocabulary.to_list()
    for row, values in enumerate(FRAME.to_dicts()):
        context = log.context_index[row]
        found = served(decider, values)
        theirs = {ids[code]: float(p) for code, p in zip(codes[context], expected[context], strict=True) if code >= 0}
        assert found.keys() == theirs.keys()
        assert max(abs(found[name] - theirs[name]) for name in found) < 1e-10


def test_features_follow_their_candidates_whatever_the_order(tmp_path: Path) -> None:
    decider = Decider.load(saved_in(tmp_path / "policy", shop_log(FEATURES), "linear"))
    random = np.random.default_rng(0)
    for values in FRAME.head(40).to_dicts():
        order = random.permutation(len(values["offered"]))
        turned = values | {name: [values[name][i] for i in order] for name in ("offered", *FEATURES)}
        found, again = served(decider, values), served(decider, turned)
        assert max(abs(found[name] - again[name]) for name in found) < 1e-12
        double = values | {name: [*values[name], *values[name]] for name in ("offered", *FEATURES)}
        assert served(decider, double) == found
        odd = values | {name: [1.5 if name == "offered" else None, *values[name]] for name in ("offered", *FEATURES)}
        assert served(decider, odd) == found


def test_lists_that_do_not_fit_are_missing_and_noted(tmp_path: Path) -> None:
    decider = Decider.load(saved_in(tmp_path / "policy", shop_log(FEATURES), "linear"))
    context = {"age": 0.1, "city": "Rome", "price": [1.0], "badge": ["new", "new"], "rank": [0.0, 1.0]}
    found = decider.decide("a", context, ["i1", "i2"])
    assert any("price" in note for note in found.notes)
    assert not any("badge" in note for note in found.notes)
    nothing = decider.decide("a", {"age": 0.1, "city": "Rome"})
    assert nothing.action is not None
    assert all(any(name in note for note in nothing.notes) for name in FEATURES)


@pytest.mark.parametrize("features", [(), FEATURES])
def test_an_exported_graph_chooses_as_its_folder(tmp_path: Path, features: tuple[str, ...]) -> None:
    pytest.importorskip("onnxruntime")
    path = saved_in(tmp_path / "policy", shop_log(features), "linear", double=False)
    export_onnx(load_with_torch(path), tmp_path / "policy.onnx", candidates=True)
    folder, graph = Decider.load(path), Decider.load(tmp_path / "policy.onnx")
    for values in FRAME.head(40).to_dicts():
        ours, theirs = served(folder, values), served(graph, values)
        assert ours.keys() == theirs.keys()
        assert max(abs(ours[name] - theirs[name]) for name in ours) < 1e-5
    assert graph.decide("a", {"age": 0.1, "city": "Rome"}).action is not None


def test_what_was_served_is_a_log_with_the_same_sets_and_features(tmp_path: Path) -> None:
    log = shop_log(FEATURES)
    events = EventStore(f"sqlite:///{tmp_path / 'events.db'}")
    decider = Decider.load(saved_in(tmp_path / "policy", log, "linear"), salt=events.salt, epsilon=0.1)
    assert decider.policy.means.keys() == {"age"}  # a missing list of prices is no number to fill in
    asked = [(f"r{i}", values) for i, values in enumerate(FRAME.drop("item", "buy").to_dicts())]
    decided = {
        name: decider.decide(name, {one: v for one, v in values.items() if one != "offered"}, values["offered"])
        for name, values in asked
    }
    events.append({"decisions": [decision_row(one, i, 1.0) for i, one in enumerate(decided.values())]})
    events.remember(decider.policy.digest, policy_facts(decider))
    collect(events, tmp_path / "log.parquet", join=Join(0.0), at=10**12)
    assert replay(events, [decider.policy]).confirmed == len(asked)
    events.close()
    written = pl.read_parquet(tmp_path / "log.parquet")
    again = read_log(
        written,
        context=["city", "age"],
        action="action",
        reward="reward",
        propensity="propensity",
        request="request_id",
        candidates="candidates",
        candidate_features=FEATURES,
    )
    assert again.n_rows == log.n_rows
    assert again.logging_prob is not None
    assert again.candidates is not None
    ids, codes = again.actions.vocabulary.to_list(), again.candidates.padded()
    for row, name in enumerate(written["request_id"].to_list()):
        assert ids[again.action[row]] == decided[name].action
        assert again.logging_prob[row] == decided[name].probability
        offered = {ids[code] for code in codes[again.context_index[row]] if code >= 0}
        assert offered == set(dict(asked)[name]["offered"])
