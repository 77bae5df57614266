"""A policy comes back from its folder as it went in, and nothing else comes back at all."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from offpolicy import policy_files
from offpolicy.artifacts import ArtifactError, load_policy, save_policy
from offpolicy.atomic import current_version
from offpolicy.errors import OffPolicyError, ParameterError
from offpolicy.learning import LearnerConfig, learn_policy
from offpolicy.log import LoggedData, Vocabulary
from offpolicy.models.scorer import Scorer
from offpolicy.models.scorers import linear_scorer, logging_two_tower, two_tower_scorer
from offpolicy.policies import Policy, RowPolicy, ScorerPolicy, UniformPolicy
from offpolicy.policy_files import FILES
from policy_worlds import a_linear, a_log, a_two_tower, jolted


def every_scorer(log: LoggedData) -> dict[str, Any]:
    two_tower = a_two_tower(log)
    return {
        "linear": a_linear(log),
        "quadratic": jolted(linear_scorer(log, 4, quadratic=True)),
        "two_tower": two_tower,
        "plain": jolted(two_tower_scorer(log, dim=11, items={"id_dim": 4, "feature_dim": 2, "plain": True})),
        "logging": jolted(logging_two_tower(two_tower, log, id_dim=5, feature_dim=3)),
        "double": jolted(two_tower_scorer(log, dim=4, id_dim=4, feature_dim=2)).double(),
    }


@pytest.mark.parametrize("kind", ["linear", "quadratic", "two_tower", "plain", "logging", "double"])
def test_round_trip(tmp_path: Path, kind: str) -> None:
    log = a_log()
    scorer = every_scorer(log)[kind]
    metadata = {
        "method": "uips",
        "hyper": {"lam": float("inf"), "gamma": np.float64(0.5)},
        "config": {"layers": (1, 2), "out": tmp_path},
        "metrics": {"value": float("nan"), "curve": np.array([0.25, 0.5]), "last": torch.tensor(2.0)},
        "seed": 7,
        "note": "mine",
    }
    assert save_policy(scorer, log, tmp_path / "policy", metadata=metadata) == tmp_path / "policy"
    assert sorted(path.name for path in (tmp_path / "policy").iterdir()) == ["CURRENT", "versions"]
    assert sorted(path.name for path in current_version(tmp_path / "policy").iterdir()) == sorted(FILES)
    saved = load_policy(tmp_path / "policy")
    expected = ScorerPolicy(scorer, log.actions)
    assert torch.equal(saved.log_probs(log.contexts), expected.log_probs(log.contexts))
    assert torch.equal(saved.logged_log_prob(log), expected.logged_log_prob(log))
    assert saved.actions == log.actions
    assert saved.reward_range == (-1.0, 3.0)
    assert [(c.name, c.kind) for c in saved.context] == [(n, c.kind) for n, c in log.contexts.items()]
    kept = saved.metadata.model_dump()
    assert kept["method"] == "uips"
    assert kept["hyper"] == {"lam": None, "gamma": 0.5}
    assert kept["config"] == {"layers": [1, 2], "out": str(tmp_path)}
    assert kept["metrics"] == {"value": None, "curve": [0.25, 0.5], "last": 2.0}
    assert (kept["seed"], kept["note"]) == (7, "mine")
    assert saved.document.versions["torch"] == torch.__version__
    protocols: tuple[type, ...] = (Policy, RowPolicy)
    assert all(isinstance(saved, protocol) for protocol in protocols)


def test_the_same_policy_gives_the_same_bytes(tmp_path: Path) -> None:
    log = a_log()
    for name in ("one", "two"):
        save_policy(a_two_tower(log), log, tmp_path / name)
    for name in FILES:
        one, two = (current_version(tmp_path / policy) / name for policy in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("ids", [[3, 1, 2**40], ["é", "b\n", ""], [True, False], [2**63 + 5, 1], [None, 4]])
def test_ids_of_every_type(tmp_path: Path, ids: list[Any]) -> None:
    log = LoggedData.from_arrays({"who": ids * 4}, np.zeros(len(ids) * 4, int), np.ones(len(ids) * 4), actions=2)
    save_policy(a_two_tower_of(log), log, tmp_path / "policy")
    saved = load_policy(tmp_path / "policy")
    assert torch.equal(
        saved.log_probs(log.contexts), ScorerPolicy(a_two_tower_of(log), log.actions).log_probs(log.contexts)
    )
    assert not saved.recommend({"who": ids}, 1)["unknown"].any()


def a_two_tower_of(log: LoggedData) -> Any:
    return jolted(two_tower_scorer(log, dim=3, id_dim=2, feature_dim=2))


def test_excluded_actions_stay_excluded(tmp_path: Path) -> None:
    log = a_log()
    mask = torch.zeros(log.n_actions, dtype=torch.bool)
    mask[[0, 5]] = True
    policy = ScorerPolicy(a_linear(log), log.actions, mask)
    save_policy(policy, log, tmp_path / "policy")
    saved = load_policy(tmp_path / "policy")
    assert torch.equal(saved.log_probs(log.contexts), policy.log_probs(log.contexts))
    everything = saved.recommend(log.contexts, 100)
    assert len(everything) == log.n_contexts * (log.n_actions - 2)
    assert not everything["action"].is_in(["item-0", "item-5"]).any()
    save_policy(saved, log, tmp_path / "again")
    assert torch.equal(load_policy(tmp_path / "again").policy.bias, policy.bias)


def test_actions_are_matched_by_their_ids(tmp_path: Path) -> None:
    log = a_log()
    scorer = a_two_tower(log)
    save_policy(scorer, log, tmp_path / "policy")
    saved = load_policy(tmp_path / "policy")
    ids = log.actions.vocabulary.to_list()
    logged = log.actions.vocabulary.decode(log.action)
    order = ids[::-1]
    other = LoggedData.from_arrays(
        log.contexts, logged, log.reward, context_index=log.context_index, actions=Vocabulary(order)
    )
    own = ScorerPolicy(scorer, log.actions).logged_log_prob(log)
    assert torch.allclose(saved.logged_log_prob(other), own, atol=1e-6)
    aligned = saved.aligned(other.actions)
    expected = saved.log_probs(log.contexts).flip(1)
    assert torch.allclose(aligned.log_probs(log.contexts), expected, atol=1e-6)
    assert torch.allclose(aligned.logged_log_prob(other), saved.logged_log_prob(other), atol=1e-6)
    assert (
        aligned.recommend(log.contexts, 3)["action"].to_list() == saved.recommend(log.contexts, 3)["action"].to_list()
    )
    strange = [f"new {name}" if name == logged[4] else name for name in logged]
    foreign = LoggedData.from_arrays(log.contexts, strange, log.reward, context_index=log.context_index)
    with pytest.raises(ParameterError, match="also chooses actions that are not in the log's table"):
        saved.logged_log_prob(foreign)  # the policy's mass on the actions that are gone would be lost
    more = LoggedData.from_arrays(
        log.contexts, strange, log.reward, context_index=log.context_index, actions=[*ids, f"new {logged[4]}"]
    )
    known = np.array(strange) == np.array(logged)
    assert torch.allclose(saved.logged_log_prob(more)[known], saved.logged_log_prob(log)[known], atol=1e-6)
    assert bool(torch.isneginf(saved.logged_log_prob(more)[~known]).all())  # never chosen: probability 0
    fewer = LoggedData.from_arrays(log.contexts, logged, log.reward, context_index=log.context_index, actions=order)
    with pytest.raises(ParameterError, match="also chooses actions that are not in the log's table: 'item-0'"):
        saved.aligned(type(fewer.actions)(Vocabulary(order[:-1])))


def test_saving_again_replaces_a_policy_but_nothing_else(tmp_path: Path) -> None:
    log = a_log()
    save_policy(a_linear(log), log, tmp_path / "policy", metadata={"seed": 1})
    save_policy(a_linear(log), log, tmp_path / "policy", metadata={"seed": 2})
    assert load_policy(tmp_path / "policy").metadata.seed == 2
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]
    policy = tmp_path / "policy"
    for place in (policy, policy / "versions", current_version(policy)):
        (place / "thesis.txt").write_text("years of work")
        with pytest.raises(ArtifactError, match=r"holds 'thesis.txt'.*not replaced"):
            save_policy(a_linear(log), log, policy)
        (place / "thesis.txt").unlink()  # it was left alone
    assert load_policy(policy).metadata.seed == 2


def test_a_folder_of_the_older_layout_is_read_and_replaced(tmp_path: Path) -> None:
    log = a_log()
    flat = tmp_path / "policy"
    current_version(save_policy(a_linear(log), log, tmp_path / "new", metadata={"seed": 1})).rename(flat)
    assert sorted(path.name for path in flat.iterdir()) == sorted(FILES)
    assert load_policy(flat).metadata.seed == 1
    save_policy(a_linear(log), log, flat, metadata={"seed": 2})
    assert load_policy(flat).metadata.seed == 2
    assert set(FILES) < {path.name for path in flat.iterdir()}  # who began to read them can finish
    save_policy(a_linear(log), log, flat, metadata={"seed": 3})
    assert load_policy(flat).metadata.seed == 3
    assert sorted(path.name for path in flat.iterdir()) == ["CURRENT", "versions"]


def test_a_reader_whose_version_is_removed_takes_the_newer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = a_log()
    target = save_policy(a_linear(log), log, tmp_path / "policy", metadata={"seed": 1})
    resolve, seeds = current_version, iter([2, 3])

    def slow(path: Path) -> Path:
        found = resolve(path)
        for seed in seeds:
            save_policy(a_linear(log), log, target, metadata={"seed": seed})
        return found

    monkeypatch.setattr(policy_files, "current_version", slow)
    assert load_policy(target).metadata.seed == 3


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    log = a_log()
    broken = a_linear(log)
    with torch.no_grad():
        broken.bias[0] = torch.nan
    with pytest.raises(ParameterError, match="NaN or infinity"):
        save_policy(broken, log, tmp_path / "policy")
    with pytest.raises(ParameterError, match="not UniformPolicy"):
        save_policy(UniformPolicy(3), log, tmp_path / "policy")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=r"metadata\['config'\]\['f'\] must hold .* but it is function"):
        save_policy(a_linear(log), log, tmp_path / "policy", metadata={"config": {"f": a_log}})
    with pytest.raises(ParameterError, match="cannot be written as JSON"):
        save_policy(a_linear(log), log, tmp_path / "policy", metadata={"note": "\ud800"})
    with pytest.raises(ArtifactError, match=r"metadata.seed"):
        save_policy(a_linear(log), log, tmp_path / "policy", metadata={"seed": "three"})
    small = LoggedData.from_arrays({"x": [0.0, 1.0]}, [0, 1], [0, 1], actions=2)
    with pytest.raises(ParameterError, match="23 actions, but the log has 2"):
        save_policy(a_linear(log), small, tmp_path / "policy")
    other = LoggedData.from_arrays({"x": [0.0, 1.0]}, [0, 1], [0, 1], actions=23)
    with pytest.raises(ParameterError, match="reads the categorical column 'user'"):
        save_policy(a_linear(log), other, tmp_path / "policy")
    trained = a_linear(log)
    policy = ScorerPolicy(trained, log.actions)
    with torch.no_grad():
        trained.weights.add_(1.0)
    with pytest.raises(ParameterError, match="trained further"):
        save_policy(policy, log, tmp_path / "policy")
    assert not list(tmp_path.iterdir())


class Foreign(nn.Module, Scorer):
    n_actions, dim = 23, 1
    columns = ()

    def states(self, contexts: Any) -> Any: ...
    def actions(self) -> Any: ...
    def specification(self) -> dict[str, Any]:
        return {"kind": "mine"}


def test_a_scorer_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="A scorer of kind 'mine' cannot be saved"):
        save_policy(Foreign(), a_log(), tmp_path / "policy")


def test_loading_names_file_and_remedy(tmp_path: Path) -> None:
    log = a_log()
    folder = save_policy(a_linear(log), log, tmp_path / "policy")
    with pytest.raises(ArtifactError, match="does not exist"):
        load_policy(tmp_path / "nowhere")
    with pytest.raises(ArtifactError, match="is a file"):
        load_policy(current_version(folder) / "policy.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArtifactError, match=r"policy.safetensors is missing. .* copy this one again in full"):
        load_policy(tmp_path / "empty")
    folder = current_version(folder)
    document = json.loads((folder / "policy.json").read_text())
    for change, message in (({"version": 2}, "version 2 .* Upgrade"), ({"format": "other"}, "its format is 'other'")):
        rewrite(folder, document | change)
        with pytest.raises(ArtifactError, match=message):
            load_policy(folder)
    rewrite(folder, document | {"excluded": [99]})
    with pytest.raises(ArtifactError, match=r"policy\.json does not hold .*excluded must be codes"):
        load_policy(folder)
    (folder / "policy.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"policy\.json does not match its checksum"):
        load_policy(folder)


def rewrite(folder: Path, document: Any) -> None:
    """Put another document into a folder, with the checksum that belongs to it."""
    from offpolicy.policy_files import sha256

    content = json.dumps(document).encode()
    (folder / "policy.json").write_bytes(content)
    sums = json.loads((folder / "checksums.json").read_text())
    sums["sha256"]["policy.json"] = sha256(content)
    (folder / "checksums.json").write_text(json.dumps(sums))


def test_a_learned_policy_can_be_saved_as_it_is(tmp_path: Path) -> None:
    log = LoggedData.from_arrays({"x": np.arange(40.0) % 7}, np.arange(40) % 3, np.arange(40) % 2, actions=3)
    learned = learn_policy(log, "ce", config=LearnerConfig(epochs=2))
    for name, policy in (("whole", learned), ("scorer", learned.scorer)):
        saved = load_policy(save_policy(policy, log, tmp_path / name, metadata={"config": learned.config}))
        assert torch.equal(saved.log_probs(log.contexts), learned.log_probs(log.contexts))
        assert saved.metadata.config["epochs"] == 2


def test_the_error_is_of_the_family() -> None:
    assert issubclass(ArtifactError, OffPolicyError)
