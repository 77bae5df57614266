"""Lists, columns, functions and tables as policies: by hand, by id, and the same however the log is cut."""

from typing import Any

import numpy as np
import pytest
import torch

from offpolicy.errors import ParameterError
from offpolicy.log import ActionTable, LoggedData, Vocabulary
from offpolicy.models import linear_scorer
from offpolicy.policies import (
    CountsPolicy,
    EpsilonGreedyPolicy,
    LinearSoftmaxPolicy,
    Policy,
    PopularityPolicy,
    ScorerPolicy,
    TabularPolicy,
    aligned,
    as_policy,
    batch_log_probs,
    logged_log_prob,
)

IDS = ["tea", "coffee", "juice", "water"]


def a_log(rows: int = 40, ids: list[str] = IDS, seed: int = 0) -> LoggedData:
    """Ten contexts with a category, a vector and a bag of zero to three tags."""
    random = np.random.default_rng(seed)
    who = random.permutation(np.arange(rows) % 10)
    contexts = {
        "who": [f"u{k}" for k in who],
        "v": np.stack([who * 0.3, 1.0 - who], 1),
        "tags": [["rock", "jazz", "folk"][: k % 4] for k in who.tolist()],
    }
    action = [IDS[k] for k in random.integers(0, 4, rows)]
    return LoggedData.from_arrays(contexts, action, random.random(rows), actions=ids)


LOG = a_log()


def dense(policy: Policy, log: LoggedData) -> np.ndarray:
    """π of every context and action, by the log's own table."""
    policy = aligned(policy, log.actions)
    parts = [batch_log_probs(policy, log, batch).double() for batch in log.batches()]
    return torch.cat(parts).exp().numpy()


LISTS = [
    ["tea"],
    ["tea", "juice"],
    ["juice", "juice", "tea"],
    ["water"] * 3,
    [],
    IDS,
    ["coffee", "tea", "coffee", "tea"],
]
LISTS += [["water", "tea"]] * 3


@pytest.mark.parametrize("residual", [0.05, 0.4])
def test_an_action_listed_twice_counts_once_and_rows_agree_with_all_actions(residual: float) -> None:
    policy = as_policy({"lists": LISTS, "residual": residual}, LOG)
    found = dense(policy, LOG)
    for probs, listed in zip(found, LISTS, strict=True):
        share = (1 - residual) / len(set(listed)) if listed else 0.0
        rest = residual if listed else 1.0  # where nothing is listed, every action is alike
        assert probs == pytest.approx([rest / 4 + share * (name in listed) for name in IDS])
    rows = logged_log_prob(policy, LOG).exp().numpy()
    np.testing.assert_allclose(rows, found[LOG.context_index, LOG.action], rtol=1e-12)
    np.testing.assert_allclose(policy.log_probs(LOG.contexts).exp().numpy(), found, rtol=1e-12)


def test_lists_default_to_a_twentieth_for_all_and_belong_to_their_contexts() -> None:
    policy = as_policy({"lists": LISTS}, LOG)
    assert dense(policy, LOG)[0] == pytest.approx([0.9625, 0.0125, 0.0125, 0.0125])
    other = LOG.take(LOG.context_index < 9)
    with pytest.raises(ParameterError, match="belong to the contexts of the log"):
        policy.log_probs(other.contexts)
    with pytest.raises(ParameterError, match="belong to the contexts of the log"):
        logged_log_prob(policy, other)
    with pytest.raises(ParameterError, match="'milk' for context 2"):
        as_policy({"lists": [["tea"], ["tea"], ["tea", "milk"], *LISTS[3:]]}, LOG)
    with pytest.raises(ParameterError, match="each of the 10 contexts"):
        as_policy({"lists": LISTS[:9]}, LOG)


def test_a_column_belongs_to_the_rows_it_was_given_for() -> None:
    column = np.random.default_rng(0).random(LOG.n_rows)
    policy = as_policy(column, LOG)
    np.testing.assert_allclose(logged_log_prob(policy, LOG).exp(), column)
    np.testing.assert_allclose(logged_log_prob(policy, a_log()).exp(), column)  # the same rows, read again
    with pytest.raises(ParameterError, match="belongs to the rows"):
        logged_log_prob(policy, LOG.take(np.arange(LOG.n_rows)[::-1]))
    with pytest.raises(ParameterError, match=r"row 4 \(counted from 1\) holds"):
        as_policy(np.where(np.arange(LOG.n_rows) == 3, 1.5, column), LOG)


def scorer_policy(log: LoggedData) -> ScorerPolicy:
    scorer = linear_scorer(log)
    with torch.no_grad():
        scorer.weights.copy_(torch.randn(scorer.weights.shape, generator=torch.Generator().manual_seed(1)))
        scorer.bias.copy_(torch.tensor([0.3, -1.0, 0.0, 2.0]))
    return ScorerPolicy(scorer, log.actions)


def policies() -> dict[str, Policy]:
    weights = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.5], [0.2, 0.2]], dtype=torch.float64)
    softmax = LinearSoftmaxPolicy("v", weights, torch.zeros(4, dtype=torch.float64), table=LOG.actions)
    table = torch.rand(10, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return {
        "softmax": softmax,
        "table": TabularPolicy("who", table / table.sum(1, keepdim=True), LOG.actions),
        "scorer": scorer_policy(LOG),
        "popularity": PopularityPolicy.fit(LOG),
        "counts": CountsPolicy(LOG),
        "greedy": EpsilonGreedyPolicy(softmax, 0.2),
    }


@pytest.mark.parametrize("name", list(policies()))
def test_a_policy_follows_ids_into_another_table(name: str) -> None:
    policy = policies()[name]
    own = dense(policy, LOG)
    shuffled = LOG.with_actions(ActionTable(Vocabulary(["new", "water", "tea", "newer", "juice", "coffee"])))
    found = dense(policy, shuffled)
    np.testing.assert_allclose(found[:, [2, 5, 4, 1]], own, rtol=1e-6)
    np.testing.assert_array_equal(found[:, [0, 3]], 0.0)
    torch.testing.assert_close(logged_log_prob(policy, shuffled), logged_log_prob(policy, LOG), rtol=1e-6, atol=1e-6)
    with pytest.raises(ParameterError, match="not in the log's table: 'water'"):
        aligned(policy, ActionTable(Vocabulary(["tea", "coffee", "juice"])))


@pytest.mark.parametrize("name", [*policies(), "lists"])
def test_a_policy_answers_the_same_however_the_log_is_cut(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = as_policy({"lists": LISTS}, LOG) if name == "lists" else policies()[name]
    rows, everything = logged_log_prob(policy, LOG), dense(policy, LOG)
    np.testing.assert_allclose(rows.exp(), everything[LOG.context_index, LOG.action], rtol=1e-6)
    for contexts in (1, 3, 7):
        monkeypatch.setattr("offpolicy.log.batches.BATCH_BYTES", contexts * 4 * 8)
        np.testing.assert_allclose(dense(policy, LOG), everything, rtol=1e-6)
        torch.testing.assert_close(logged_log_prob(policy, LOG), rows, rtol=1e-6, atol=1e-6)
    if name != "lists":
        order = np.random.default_rng(2).permutation(LOG.n_rows)[:23]
        torch.testing.assert_close(logged_log_prob(policy, LOG.take(order)), rows[order], rtol=1e-6, atol=1e-6)


def test_counts_know_a_context_by_its_content_alone() -> None:
    """Contexts that differ in one tag, number or id are others; asked one by one or all at once."""
    policy = CountsPolicy(LOG, prior=2.0)
    popular = np.bincount(LOG.action, minlength=4) / LOG.n_rows
    for x in range(LOG.n_contexts):
        one = policy.log_probs(LOG.contexts.take(slice(x, x + 1))).exp().numpy()[0]
        count = np.bincount(LOG.action[LOG.context_index == x], minlength=4)
        np.testing.assert_allclose(one, (count + 2 * popular) / (count.sum() + 2), rtol=1e-12)
    near: dict[str, Any] = {"who": ["u0", "u1"], "v": np.array([[0.0, 1.0], [0.3, 0.0]]), "tags": [["rock"], ["jazz"]]}
    strangers = LoggedData.from_arrays(near, [0, 1], [0, 1], actions=4).contexts
    np.testing.assert_allclose(policy.log_probs(strangers).exp().numpy(), [popular] * 2, rtol=1e-12)


def test_a_greedy_policy_shares_epsilon_among_all() -> None:
    base = policies()["softmax"]
    favourite = dense(base, LOG).argmax(1)
    found = dense(EpsilonGreedyPolicy(base, 0.2), LOG)
    np.testing.assert_allclose(found, 0.05 + 0.8 * np.eye(4)[favourite])


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_a_function_that_counts_columns_for_contexts_is_refused_before_any_work(columns: int) -> None:
    x = {f"x{number}": np.arange(40.0) + number for number in range(columns)}
    log = LoggedData.from_arrays(x, np.arange(40) % 4, np.arange(40) % 2, actions=4)
    with pytest.raises(ParameterError, match=r"`contexts.n_rows` counts them"):
        as_policy(lambda contexts: np.full((len(contexts), 4), 0.25), log)
    assert as_policy(lambda contexts: np.full((contexts.n_rows, 4), 0.25), log) is not None


def test_a_function_answers_in_the_order_of_the_logs_actions() -> None:
    probs = np.array([0.1, 0.2, 0.3, 0.4])
    policy = as_policy(lambda contexts: np.tile(probs, (contexts.n_rows, 1)), LOG)
    np.testing.assert_allclose(logged_log_prob(policy, LOG).exp(), probs[LOG.action])
    for wrong, said in ((np.full((10, 4), 0.3), "sum to 1.2"), (np.full((10, 3), 1 / 3), r"\(2, 4\)")):
        with pytest.raises(ParameterError, match=said):
            as_policy(lambda contexts, wrong=wrong: wrong[: contexts.n_rows], LOG)
