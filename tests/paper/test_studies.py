"""Every study keeps its promises to the runner, on documents and ratings small enough for seconds."""

import json
import pickle
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offpolicy.errors import OffPolicyError
from offpolicy.evaluation.ranking import rank_all
from offpolicy.log import ActionTable
from offpolicy.paper.studies import STUDIES, Study, document_worlds
from offpolicy.paper.studies.documents import FREQUENT, RARE, Documents
from offpolicy.paper.studies.grid import Grid
from offpolicy.paper.studies.lines import LINES
from offpolicy.paper.studies.ratings import SOURCES, Ratings
from offpolicy.paper.studies.study import best_few
from offpolicy.tuning import Trial, Tuned
from offpolicy.tuning.study import Outcome
from offpolicy.tuning.tune import Problem
from shared_data import shared_data, write

TOPICS, WORDS, LABELS = 6, 30, 12
SMALL = {"documents": {}, "frequency": {}, "grid": {"fine": False}}
SETTINGS = {"learning_rate": 0.02}


def documents(n: int, seed: int) -> str:
    """Documents whose words and labels both come from a topic, in XMC form."""
    random = np.random.default_rng(seed)
    lines = [f"{n} {WORDS} {LABELS}"]
    for _ in range(n):
        topic = int(random.integers(TOPICS))
        labels = sorted({2 * topic, 2 * topic + 1} if random.uniform() < 0.5 else {2 * topic})
        words = sorted({int(w) for w in random.integers(5, size=6) + 5 * topic} | {int(random.integers(WORDS))})
        lines.append(",".join(map(str, labels)) + "".join(f" {word}:1" for word in words))
    return "\n".join(lines) + "\n"


ROOT: list[Path] = []


@pytest.fixture(autouse=True, scope="module")
def _small_documents(tmp_path_factory: pytest.TempPathFactory) -> None:
    files = {"tiny/train.txt": documents(160, 0), "tiny/test.txt": documents(60, 1)}
    ROOT.append(write(tmp_path_factory.mktemp("documents"), files))


def folder() -> str:
    """The folder of a small set of documents."""
    return str(ROOT[-1])


def study(name: str, **arguments: Any) -> Study:
    return STUDIES[name](data=folder(), world="tiny", **SMALL[name], **arguments)  # type: ignore[call-arg]


@pytest.fixture(autouse=True)
def _few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_worlds, "ROWS_PER_CONTEXT", 20)


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_a_study_can_be_sent_to_a_worker_and_set_by_a_recipe(name: str) -> None:
    assert {"data", "redraw"} <= {field.name for field in fields(STUDIES[name])}  # type: ignore[arg-type]
    made = STUDIES[name]()
    assert pickle.loads(pickle.dumps(made)) == made
    assert all(isinstance(label, str) and label for label in made.labels().values())
    with pytest.raises(OffPolicyError, match="no line 'nobody'"):
        made.validate("nobody", {}, 0)


@pytest.mark.parametrize("name", sorted(SMALL))
def test_results_are_plain_and_repeatable(name: str) -> None:
    made = study(name)
    line = next(iter(made.labels()))
    found = made.measure(line, SETTINGS, 3)
    assert found == json.loads(json.dumps(found))
    document_worlds.document_problem.cache_clear()
    document_worlds.document_splits.cache_clear()
    assert made.measure(line, SETTINGS, 3) == found
    assert made.measure(line, SETTINGS, 4) != found


@pytest.mark.parametrize("line", [name for name in LINES if name != "ips_un_simplex"])
def test_every_line_learns_documents(line: str) -> None:
    settings: dict[str, Any] = dict(SETTINGS, **({"top_p": 4} if line == "poxm" else {}))
    row = study("documents").measure(line, settings, 0)[0]
    groups = row.pop("clusters")
    assert set(row) == set(groups) == {"P@5", "R@5", "NDCG@5"}
    sizes = np.bincount(
        np.arange(Documents(world="tiny", data=folder()).problem(0).test[0].n_rows) % len(groups["P@5"])
    )
    for name, value in row.items():
        assert 0 <= value <= 1
        assert np.average(groups[name], weights=sizes) == pytest.approx(value, abs=1e-5)


def test_learning_beats_chance_and_true_propensities_help() -> None:
    made = Documents(world="tiny", data=folder())
    uniform = rank_all(_Uniform(), *made.problem(0).test).ndcg
    for line in ("ce", "uips", "ips_gt"):
        assert made.measure(line, {"learning_rate": 0.05}, 0)[0]["NDCG@5"] > uniform + 0.3


class _Uniform:
    actions = ActionTable.numbered(LABELS)

    def log_probs(self, contexts: Any) -> torch.Tensor:
        return torch.zeros(contexts.n_rows, LABELS)


def test_tuning_returns_the_best_few_in_order() -> None:
    found = study("documents").tune("uips", 5, 7)
    scores = [candidate["validation"] for candidate in found]
    assert scores == sorted(scores, reverse=True)
    assert 1 <= len(found) <= 3
    assert set(found[0]["settings"]) == {"learning_rate", "lam", "gamma"}
    assert found == json.loads(json.dumps(found))
    assert study("documents").validate("uips", found[0]["settings"], 7) == pytest.approx(scores[0])


def test_a_thorough_search_abandons_no_trial() -> None:
    abandoned = [study("documents", thorough=thorough).tune("uips", 8, 7)[0]["pruned"] for thorough in (False, True)]
    assert abandoned[0] > 0 == abandoned[1]


def test_a_killed_search_goes_on_to_the_same_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed = study("documents").tune("uips", 6, 7)
    begun, trial = 0, Problem.trial

    def killed(*given: Any) -> Outcome:
        nonlocal begun
        begun += 1
        if begun == 4:
            raise KeyboardInterrupt
        return trial(*given)

    monkeypatch.setattr(Problem, "trial", killed)
    with pytest.raises(KeyboardInterrupt):
        study("documents").tune("uips", 6, 7, tmp_path / "trials.db")
    assert study("documents").tune("uips", 6, 7, tmp_path / "trials.db") == undisturbed
    assert begun == 3 + 1 + 3


def test_the_best_few_of_a_search() -> None:
    trials = [
        Trial(0, "complete", 0.2, {"lam": 1.0, "epochs": 3}),
        Trial(1, "pruned", 0.9, {"lam": 2.0}),
        Trial(2, "complete", 0.5, {"lam": 3.0, "epochs": 1}),
        Trial(3, "complete", 0.5, {"lam": 4.0, "epochs": 2}),
    ]
    found = best_few(Tuned("x", {}, 0.5, tuple(trials)))
    assert [candidate["settings"] for candidate in found] == [{"lam": 3.0}, {"lam": 4.0}, {"lam": 1.0}]
    assert {(candidate["trials"], candidate["pruned"]) for candidate in found} == {(4, 1)}


def test_redrawing_the_policy_alone_keeps_the_data() -> None:
    kept = Documents(world="tiny", data=folder(), redraw="policy")
    assert kept.problem(1) is kept.problem(2)
    assert kept.measure("ce", SETTINGS, 1) != kept.measure("ce", SETTINGS, 2)
    assert Documents(world="tiny", data=folder()).problem(1) is not kept.problem(1)


def test_controls_take_away_what_u_knows() -> None:
    estimates = Documents(world="tiny", data=folder()).problem(0).estimates
    own, permuted, by_count = (estimates.uncertainty(kind) for kind in ("own", "permuted", "frequency"))
    assert torch.equal(permuted.sort().values, own.sort().values)
    assert not torch.equal(permuted, own)
    counts = np.bincount(estimates.log.action, minlength=LABELS)
    np.testing.assert_allclose(by_count.numpy(), counts[estimates.log.action] ** -0.5)


def test_subsets_are_halves_and_average_to_the_whole() -> None:
    whole, rare, frequent = study("documents").measure("ce", SETTINGS, 0)
    assert (rare["subset"], frequent["subset"]) == (RARE, FREQUENT)
    drawn = Documents(world="tiny", data=folder()).problem(0)
    half = drawn.rare
    share = half.mean()
    for metric in ("P@5", "R@5", "NDCG@5"):
        assert share * rare[metric] + (1 - share) * frequent[metric] == pytest.approx(whole[metric])
    log, (_, labels) = drawn.estimates.log, drawn.test
    counts = np.maximum(np.bincount(log.action, minlength=LABELS), 1)
    means = [np.log(counts[labels.part(slice(i, i + 1)).actions]).mean() for i in range(labels.n_users)]
    assert half.tolist() == (np.array(means) < np.median(means)).tolist()
    assert drawn.test_uncertainty[half].mean() == pytest.approx(rare["U"])


def test_the_grid_holds_every_point_of_both_pairs() -> None:
    made = study("grid")
    for line in made.labels():
        rows = made.measure(line, SETTINGS, 0)
        assert len({(row["gamma"], row["lam"]) for row in rows}) == 25
    assert set(made.tune("paper", 3, 0)[0]["settings"]) == {"learning_rate"}
    assert len(Grid(fine=True).labels()) == 2


def test_evaluation_errors_of_a_small_world() -> None:
    made = STUDIES["ope"](world="synthetic")  # type: ignore[call-arg]
    for line in made.labels():
        (row,) = made.measure(line, {}, 1)
        assert row["MSE"] == pytest.approx((row["estimate"] - row["truth"]) ** 2)
    assert made.measure("zero", {}, 1)[0]["estimate"] == 0
    assert made.measure("uips", {}, 1) != made.measure("uips", {}, 2)


def test_released_settings_for_the_world_of_wiki10s_shape() -> None:
    made = Documents(tau=1.0, world="wiki10_shaped")
    (found,) = made.tune("uips", 50, 0)
    assert {name: found["settings"][name] for name in ("lam", "gamma", "eta1", "eta2")} == {
        "lam": 50.0,
        "gamma": 10.0,
        "eta1": 1.0,
        "eta2": 10_000.0,
    }
    assert set(made.tune("ce", 50, 0)[0]["settings"]) == {"learning_rate", "epochs"}
    assert made.validate("uips", found["settings"], 1) == 0  # no world is drawn to choose from one


def test_unknown_choices_are_refused() -> None:
    with pytest.raises(OffPolicyError, match="redraw"):
        Documents(redraw="nothing")
    with pytest.raises(OffPolicyError, match="dataset"):
        Ratings(dataset="netflix")
    assert set(SOURCES) == {"coat", "yahoo", "kuairec"}


@pytest.mark.parametrize("line", ["ce", "uips", "uips_permuted_u", "uips_frequency_u", "poxm", "dr", "bips"])
def test_lines_of_coat(line: str) -> None:
    made = Ratings(data=str(shared_data("coat")), epochs=2)
    (row,) = made.measure(line, {"learning_rate": 0.01}, 0)
    assert set(row) == {"P@5", "R@5", "NDCG@5"}
    assert 0.15 < row["NDCG@5"] < 0.6
