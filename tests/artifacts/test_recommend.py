"""Recommendations against brute force over all actions, from every kind of source, in any batches."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from offpolicy.artifacts import SavedPolicy, load_policy, save_policy, saved_policy
from offpolicy.errors import LogError, OffPolicyError, ParameterError
from offpolicy.log import LoggedData, read_log
from offpolicy.models.scorers import linear_scorer
from policy_worlds import COLUMNS, a_linear, a_log, a_two_tower, frame, jolted

LOG = a_log()


@pytest.fixture(scope="module", params=["linear", "two_tower"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SavedPolicy:
    scorer = a_linear(LOG, 64) if request.param == "linear" else a_two_tower(LOG)
    return load_policy(save_policy(scorer, LOG, tmp_path_factory.mktemp("saved") / "policy"))


def of_arrays(tmp_path: Path, contexts: dict[str, Any], actions: Any = 3) -> SavedPolicy:
    n = len(next(iter(contexts.values())))
    log = LoggedData.from_arrays(contexts, [0 if actions == 3 else actions[0]] * n, np.ones(n), actions=actions)
    return load_policy(save_policy(jolted(linear_scorer(log)), log, tmp_path / "policy"))


READERS: dict[str, Callable[[Path], pl.DataFrame]] = {
    "o.parquet": pl.read_parquet,
    "o.csv": pl.read_csv,
    "o.ndjson": pl.read_ndjson,
}


def agree(found: pl.DataFrame, expected: pl.DataFrame) -> None:
    """Equal but for the last digits of the probabilities, which products over other batches round otherwise."""
    assert found.drop("probability").equals(expected.drop("probability"))
    np.testing.assert_allclose(found["probability"].to_numpy(), expected["probability"].to_numpy(), rtol=1e-5)


def as_text(contexts: pl.DataFrame) -> pl.DataFrame:
    vectors = pl.col("taste").arr.to_list().list.eval(pl.element().cast(pl.String)).list.join(" ")
    return contexts.with_columns(pl.col("history").list.join("|"), vectors)


def without_empty_tags(contexts: pl.DataFrame) -> pl.DataFrame:
    return contexts.with_columns(pl.col("history").list.eval(pl.element().filter(pl.element() != "")))


def test_greedy_is_the_sorted_softmax(saved: SavedPolicy) -> None:
    contexts = frame(200, 1)
    # The way of a log: the same rows read with an action and a reward.
    logged = contexts.with_columns(item=pl.Series(["item-0", "item-1"] * 100), reward=0.0)
    log = read_log(logged, context=COLUMNS, action="item", reward="reward")
    prob = saved.log_probs(log.contexts).exp().double().numpy()[log.context_index]
    found = saved.recommend(contexts, 4)
    assert found.columns == ["row", "rank", "action", "probability", "unknown", "note"]
    assert found["row"].to_list() == [row for row in range(200) for _ in range(4)]
    assert found["rank"].to_list() == [1, 2, 3, 4] * 200
    order = np.argsort(-prob, axis=1, kind="stable")[:, :4]
    assert found["action"].to_list() == LOG.actions.vocabulary.decode(order.ravel())
    expected = np.take_along_axis(prob, order, 1).ravel()
    np.testing.assert_allclose(found["probability"].to_numpy(), expected, rtol=1e-5)


def test_unknown_ids_are_marked(saved: SavedPolicy) -> None:
    contexts = frame(300, 2, strangers=True)
    seen = frame(300, 0)
    met = {"user": set(seen["user"]), "segment": set(seen["segment"]), "history": set(seen["history"].explode())}
    notes: list[str | None] = []
    for user, segment, history in contexts.select("user", "segment", "history").iter_rows():
        names = [name for name, value in (("user", user), ("segment", segment)) if value not in met[name]]
        names += ["history"] if set(history) - met["history"] else []
        notes.append(f"unknown id in {', '.join(names)}" if names else None)
    found = saved.recommend(contexts, 1)
    assert found["note"].to_list() == notes
    assert found["unknown"].to_list() == [note is not None for note in notes]
    assert 0 < found["unknown"].sum() < 300


def test_an_unknown_id_is_every_unknown_id(saved: SavedPolicy) -> None:
    known = frame(1, 1).with_columns(user=pl.lit("u5"))
    strange = [saved.recommend(known.with_columns(user=pl.lit(name)), 5) for name in ("stranger", "", "u999")]
    assert strange[0].equals(strange[1])
    assert strange[0].equals(strange[2])
    assert not strange[0].equals(saved.recommend(known, 5))


def test_every_source_gives_the_same(saved: SavedPolicy, tmp_path: Path) -> None:
    contexts = without_empty_tags(frame(120, 3, strangers=True))
    expected = saved.recommend(contexts, 5)
    contexts.write_parquet(tmp_path / "c.parquet")
    contexts.write_ndjson(tmp_path / "c.ndjson")
    as_text(contexts).write_csv(tmp_path / "c.csv")
    as_text(contexts).write_csv(tmp_path / "c.tsv", separator="\t")
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress((tmp_path / "c.csv").read_bytes()))
    (tmp_path / "blank.csv").write_bytes((tmp_path / "c.csv").read_bytes() + b"\n\n")
    for name in ("c.parquet", "c.ndjson", "c.csv", "c.tsv", "c.csv.gz", "blank.csv"):
        assert saved.recommend(tmp_path / name, 5).equals(expected), name
    contexts.head(70).write_parquet(tmp_path / "part-1.parquet")
    contexts.tail(50).write_parquet(tmp_path / "part-2.parquet")
    agree(saved.recommend(str(tmp_path / "part-*.parquet"), 5), expected)
    columns = contexts.to_dict(as_series=False)
    assert saved.recommend(columns, 5).equals(expected)
    assert saved.recommend(columns | {"taste": contexts["taste"].to_numpy()}, 5).equals(expected)
    assert saved.recommend(pd.DataFrame(columns), 5).equals(expected)
    assert saved.recommend(contexts.lazy(), 5).equals(expected)
    one = saved.recommend(
        {name: values[0] for name, values in columns.items() if name not in ("taste", "history")}
        | {"taste": [columns["taste"][0]], "history": [columns["history"][0]]},
        5,
    )
    assert one["action"].to_list() == expected["action"].head(5).to_list()


def test_a_feature_table_gives_the_same(saved: SavedPolicy) -> None:
    contexts = frame(50, 3, strangers=True)
    logged = contexts.with_columns(item=pl.Series(["item-0", "item-1"] * 25), reward=0.0)
    table = read_log(logged, context=COLUMNS, action="item", reward="reward").contexts
    assert saved.recommend(table, 5).equals(saved.recommend(contexts, 5))
    assert saved.recommend(dict(table), 5).equals(saved.recommend(contexts, 5))


@pytest.mark.parametrize("mode", ["greedy", "sample"])
def test_batches_do_not_change_anything(
    saved: SavedPolicy, tmp_path: Path, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts = without_empty_tags(frame(150, 4, strangers=True))
    as_text(contexts).write_csv(tmp_path / "c.csv")
    contexts.write_parquet(tmp_path / "c.parquet")
    expected = saved.recommend(contexts, 3, mode=mode, seed=5, keep=["user"])
    monkeypatch.setattr(saved_policy, "BATCH_ROWS", 7)
    for source in (contexts, tmp_path / "c.csv", tmp_path / "c.parquet"):
        found = saved.recommend(source, 3, mode=mode, seed=5, keep=["user"])
        agree(found, expected)
    for name in ("o.parquet", "o.csv", "o.ndjson"):
        done: list[int] = []
        target = tmp_path / name
        count = saved.recommend_to_file(
            tmp_path / "c.csv", target, 3, mode=mode, seed=5, keep=["user"], report=done.append
        )
        assert (count, done[0], done[-1]) == (150, 7, 150)
        agree(READERS[name](target), expected)


def test_draws_follow_the_policy(tmp_path: Path) -> None:
    policy = of_arrays(tmp_path, {"x": [0.0, 1.0]}, actions=["a", "b", "c", "d"])
    n = 40_000
    contexts = {"x": np.full(n, 0.7)}
    full = policy.recommend({"x": [0.7]}, 4)
    pi = dict(zip(full["action"], full["probability"], strict=True))
    drawn = policy.recommend(contexts, 2, mode="sample", seed=3)
    first, second = (drawn.filter(pl.col("rank") == rank)["action"] for rank in (1, 2))
    assert (first != second).all()
    for a, p in pi.items():
        assert abs(float((first == a).to_numpy().mean()) - p) < 5 * (p * (1 - p) / n) ** 0.5
        np.testing.assert_allclose(drawn.filter(pl.col("action") == a)["probability"].to_numpy(), p, rtol=1e-5)
        for b, q in pi.items():
            if a != b:
                expected = p * q / (1 - p)  # without replacement
                share = float(((first == a) & (second == b)).to_numpy().mean())
                assert abs(share - expected) < 5 * (expected / n) ** 0.5
    assert policy.recommend(contexts, 2, mode="sample", seed=3).equals(drawn)
    assert not policy.recommend(contexts, 2, mode="sample", seed=4).equals(drawn)
    fresh = [policy.recommend(contexts, 1, mode="sample")["action"].to_list() for _ in range(2)]
    assert fresh[0] != fresh[1]


def test_text_is_matched_by_spelling(tmp_path: Path) -> None:
    numbers = of_arrays(tmp_path, {"who": [1, 2, 30]})
    (tmp_path / "c.csv").write_text("who\n1\nnobody\n30\n007\n")
    assert numbers.recommend(tmp_path / "c.csv", 1)["unknown"].to_list() == [False, True, False, True]
    names = of_arrays(tmp_path, {"who": ["1", "2", "x"]})
    (tmp_path / "c.csv").write_text("who\n1\n2\n3\n")
    assert names.recommend(tmp_path / "c.csv", 1)["unknown"].to_list() == [False, False, True]
    flags = of_arrays(tmp_path, {"who": [True, False, True]})
    (tmp_path / "c.csv").write_text("who\ntrue\nperhaps\n\nFalse\n")
    assert flags.recommend(tmp_path / "c.csv", 1)["unknown"].to_list() == [False, True, True, False]


def test_bags_of_a_file_share_one_separator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = of_arrays(tmp_path, {"tags": [["new wave", "folk"], ["folk"], ["jazz"]]})
    (tmp_path / "c.csv").write_text("tags\nnew wave\nfolk|new wave\n\njazz\n")
    monkeypatch.setattr(saved_policy, "BATCH_ROWS", 1)
    assert not policy.recommend(tmp_path / "c.csv", 1)["unknown"].any()
    whole = of_arrays(tmp_path, {"tags": [[1, 2], [3]]})
    (tmp_path / "c.csv").write_text("tags\n1;2\n3;x\n\n9\n")
    assert whole.recommend(tmp_path / "c.csv", 1)["unknown"].to_list() == [False, True, False, True]
    empty = pl.DataFrame({"tags": [None, None]})
    assert not whole.recommend(empty, 1)["unknown"].any()


def test_fewer_actions_than_asked_and_no_contexts(saved: SavedPolicy, tmp_path: Path) -> None:
    assert saved.recommend(frame(2), 1000)["rank"].max() == 23
    for source in (frame(0), LOG.contexts.take(slice(0, 0))):
        nothing = saved.recommend(source, 3)
        assert nothing.schema == saved.recommend(frame(2), 3).schema
        assert nothing.is_empty()
    as_text(frame(3)).head(0).write_csv(tmp_path / "c.csv")
    assert saved.recommend(tmp_path / "c.csv", 3, keep=["user"]).columns[0] == "user"
    assert saved.recommend_to_file(tmp_path / "c.csv", tmp_path / "o.parquet") == 0
    assert pl.read_parquet(tmp_path / "o.parquet").is_empty()


def test_ties_go_to_the_first_action(tmp_path: Path) -> None:
    log = LoggedData.from_arrays({"x": [0.0, 1.0]}, [0, 1], [0, 1], actions=4)
    uniform = load_policy(save_policy(linear_scorer(log), log, tmp_path / "policy"))
    found = uniform.recommend({"x": [0.3]}, 3)
    assert found["action"].to_list() == [0, 1, 2]
    assert found["probability"].to_list() == pytest.approx([0.25] * 3)


def test_errors_name_column_row_and_remedy(saved: SavedPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = frame(40)
    with pytest.raises(LogError, match=r"the frame has no column 'user'. Did you mean 'users'"):
        saved.recommend(contexts.rename({"user": "users"}))
    contexts.rename({"user": "users"}).write_parquet(tmp_path / "c.parquet")
    with pytest.raises(LogError, match=r"c.parquet has no column 'user'.* Did you mean 'users'"):
        saved.recommend(tmp_path / "c.parquet")
    with pytest.raises(LogError, match=r"column 'segment' holds text, but the policy was learned with integers"):
        saved.recommend(contexts.with_columns(pl.col("segment").cast(pl.String)))
    with pytest.raises(LogError, match="column 'history' holds integers, but the policy was learned with text"):
        saved.recommend(contexts.with_columns(history=pl.Series([[1]] * 40)))
    as_text(contexts).with_columns(
        age=pl.when(pl.int_range(40) == 33).then(pl.lit("old")).otherwise(pl.col("age"))
    ).write_csv(tmp_path / "c.csv")
    monkeypatch.setattr(saved_policy, "BATCH_ROWS", 10)
    with pytest.raises(LogError, match=r"c.csv: column 'age' must hold numbers, but row 34 \(.*line 35\) holds 'old'"):
        saved.recommend(tmp_path / "c.csv")
    with pytest.raises(LogError):
        saved.recommend_to_file(tmp_path / "c.csv", tmp_path / "o.csv")
    assert not (tmp_path / "o.csv").exists()
    (tmp_path / "bad.csv").write_text("user,segment,age,taste,history\n" + "u1,1,2,1 2 3,a\n" * 20 + "u1,1,2,3,4,5,6\n")
    with pytest.raises(LogError, match=r"bad.csv cannot be read as CSV"):
        saved.recommend(tmp_path / "bad.csv")
    with pytest.raises(ParameterError, match="vectors of 3 numbers"):
        saved.recommend(contexts.with_columns(taste=pl.Series(np.zeros((40, 2), np.float32))))
    with pytest.raises(LogError, match="cannot be opened"):
        saved.recommend(tmp_path / "nowhere.csv")
    with pytest.raises(LogError, match="cannot be read as numbers, ids or lists"):
        saved.recommend({"user": ["a", "b"], "segment": [1]})
    with pytest.raises(ParameterError, match="contexts must be a path"):
        saved.recommend(42)
    with pytest.raises(ParameterError, match="as when the model was fitted"):
        saved.recommend(LOG.actions.features)


def test_arguments_are_checked(saved: SavedPolicy, tmp_path: Path) -> None:
    for k in (0, -1, 1.5, "3", None):
        with pytest.raises(ParameterError, match="k must"):
            saved.recommend(frame(2), k)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="mode must be one of greedy, sample"):
        saved.recommend(frame(2), mode="best")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="keep names 'rank'"):
        saved.recommend(frame(2), keep=["rank"])
    with pytest.raises(ParameterError, match="none to pass through"):
        saved.recommend(LOG.contexts, keep=["user"])
    with pytest.raises(ParameterError, match="must end in one of"):
        saved.recommend_to_file(frame(2), tmp_path / "out.xlsx")
    with pytest.raises(ParameterError, match="cannot hold the lists of column 'history'"):
        saved.recommend_to_file(frame(2), tmp_path / "out.csv", keep=["history"])
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(OffPolicyError, match="is a folder"):
        saved.recommend_to_file(frame(2), tmp_path / "folder.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.csv"]


def test_probabilities_sum_to_one(saved: SavedPolicy) -> None:
    total = saved.recommend(frame(30, 5, strangers=True), 23).group_by("row").agg(pl.col("probability").sum())
    np.testing.assert_allclose(total["probability"].to_numpy(), 1.0, rtol=1e-5)
    assert torch.is_tensor(saved.log_probs(LOG.contexts))
