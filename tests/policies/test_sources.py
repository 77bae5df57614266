"""Policies in every form: lists, rows joined by a key, classifiers, ONNX files, functions by name, series."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from offpolicy.artifacts import ArtifactError, TableSource, policy_source
from offpolicy.errors import ParameterError
from offpolicy.log import LoggedData, read_log
from offpolicy.policies import as_policy, batch_log_probs, logged_log_prob

N = 120
RANDOM = np.random.default_rng(4)
ITEMS = ["tea", "coffee", "juice"]
FRAME = pl.DataFrame(
    {
        "request": [f"r{n}" for n in range(N)],
        "country": np.array(["at", "fr"])[RANDOM.integers(0, 2, N)],
        "age": RANDOM.integers(0, 3, N) * 1.5,
        "item": np.array(ITEMS)[RANDOM.integers(0, 3, N)],
        "click": RANDOM.integers(0, 2, N),
        "pi": RANDOM.random(N),
    }
)
LOG = read_log(FRAME, context=["country", "age"], action="item", reward="click", keep=["request", "pi"])


def dense(policy: Any, log: LoggedData = LOG) -> Any:
    found = np.empty((log.n_contexts, log.n_actions))
    for batch in log.batches():
        found[batch.contexts] = batch_log_probs(policy, log, batch).exp().numpy()
    return found


def by_hand(prob_of: Any) -> Any:
    """The mean over each context's rows of what `prob_of` (row number) gives to all actions."""
    found = np.zeros((LOG.n_contexts, LOG.n_actions))
    for row in range(N):
        found[LOG.context_index[row]] += prob_of(row)
    return found / np.bincount(LOG.context_index)[:, None]


IDS: list[Any] = LOG.actions.vocabulary.to_list()
LISTS = [[ITEMS[n % 3], ITEMS[(n // 3) % 3]] for n in range(N)]


def list_prob(row: int, residual: float = 0.05) -> Any:
    listed = set(LISTS[row])
    return np.array([residual / 3 + (1 - residual) * (one in listed) / len(listed) for one in IDS])


def agrees(policy: Any, expected: Any) -> None:
    np.testing.assert_allclose(dense(policy), expected, atol=1e-12)
    np.testing.assert_allclose(logged_log_prob(policy, LOG).exp(), expected[LOG.context_index, LOG.action], atol=1e-12)


@pytest.mark.parametrize("form", ["lists", "frame", "pandas", "parquet", "csv", "one action a row", "mapping"])
def test_lists_per_request_are_averaged_over_a_contexts_rows(form: str, tmp_path: Path) -> None:
    order = RANDOM.permutation(N)
    frame = pl.DataFrame({"request": [f"r{n}" for n in order], "item": [LISTS[n] for n in order]})
    target: Any = frame
    if form == "lists":
        target = {"lists": LISTS}
    elif form == "pandas":
        target = frame.to_pandas()
    elif form == "parquet":
        frame.write_parquet(tmp_path / "lists.parquet")
        target = {"rows": str(tmp_path / "lists.parquet")}
    elif form == "csv":
        frame.with_columns(pl.col("item").list.join("|")).write_csv(tmp_path / "lists.csv")
        target = {"rows": str(tmp_path / "lists.csv"), "key": "request"}
    elif form == "one action a row":
        target = frame.explode("item").with_columns(rank=1)
    elif form == "mapping":
        target = {"rows": frame.rename({"item": "shown"}), "action": "shown", "key": ["request"]}
    agrees(as_policy(target, LOG), by_hand(list_prob))


def test_rows_with_probabilities_joined_by_the_context() -> None:
    rows = pl.DataFrame(
        {
            "country": ["at", "at", "fr", "fr"],
            "item": ["tea", "juice", "coffee", "tea"],
            "probability": [0.7, 0.3, 0.5, 0.1],  # what is missing in France is spread evenly
        }
    )
    given = {"at": {"tea": 0.7, "juice": 0.3}, "fr": {"coffee": 0.5 + 0.4 / 3, "tea": 0.1 + 0.4 / 3, "juice": 0.4 / 3}}
    log = read_log(FRAME, context=["country", "age"], action="item", reward="click")
    expected = by_hand(lambda row: np.array([given[FRAME["country"][row]].get(one, 0.0) for one in IDS]))
    policy = as_policy(rows, log)
    np.testing.assert_allclose(dense(policy, log), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"request": ["r0"], "item": ["tea"]}, r"no entry for 119 of the log's 120 rows"),
        ({"stranger": ["r0"], "item": ["tea"]}, "they share no column"),
        ({"request": ["r0"], "n": [1], "m": [2]}, "without a column of actions"),
        ({"request": [f"r{n}" for n in range(N)], "item": ["milk"] * N}, "lists action 'milk'"),
        ({"request": [f"r{n}" for n in range(N)], "item": ["tea"] * N, "prob": [1.5] * N}, r"in \[0, 1\]"),
        (
            {"request": [f"r{n // 2}" for n in range(2 * N)], "item": ITEMS[:2] * N, "prob": [0.7] * 2 * N},
            r"the request with request r0 probabilities that sum to 1\.4 \(so for 120 of 120 requests\)",
        ),
    ],
)
def test_tables_that_do_not_fit_are_refused(rows: dict[str, Any], said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        as_policy(pl.DataFrame(rows), LOG)


@pytest.mark.parametrize("column", ["pi", FRAME["pi"], FRAME["pi"].to_pandas(), FRAME["pi"].to_list()])
def test_columns_by_name_and_as_series(column: Any) -> None:
    np.testing.assert_allclose(logged_log_prob(as_policy(column, LOG), LOG).exp(), FRAME["pi"].to_numpy())


def test_a_classifier_is_asked_with_the_columns_it_was_fitted_to() -> None:
    features = FRAME.select("country", "age").to_pandas()
    encode = make_column_transformer((OneHotEncoder(), ["country"]), remainder="passthrough")
    pipeline = make_pipeline(encode, LogisticRegression()).fit(features, FRAME["item"].to_list())
    expected = by_hand(lambda row: pipeline.predict_proba(features.iloc[[row]])[0])  # classes are sorted, as ids are
    found = dense(as_policy(pipeline, LOG))
    np.testing.assert_allclose(found[:, [IDS.index(one) for one in pipeline.classes_]], expected, atol=1e-9)
    matrix = LogisticRegression().fit(FRAME.select("age").to_numpy(), FRAME["item"].to_list())
    with pytest.raises(ParameterError, match="cannot be told from the contexts"):
        dense(as_policy(matrix, LOG))
    wrong = LogisticRegression().fit(FRAME.select("age").to_numpy(), FRAME["click"].to_list())
    with pytest.raises(ParameterError, match="must be actions of the log"):
        as_policy(wrong, LOG)


def test_a_function_may_ask_for_the_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import numpy as np\ndef best(contexts, actions):\n"
    code += "    want = contexts.to_frame()['country'].replace_strict({'at': 'tea', 'fr': 'juice'})\n"
    code += "    return np.array([[0.8 if a == w else 0.1 for a in actions] for w in want])\n"
    (tmp_path / "own_policies.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    policy = as_policy(policy_source("own_policies:best"), LOG)
    want = {"at": "tea", "fr": "juice"}
    agrees(policy, by_hand(lambda row: np.array([0.8 if a == want[FRAME["country"][row]] else 0.1 for a in IDS])))
    for wrong in ("own_policies:worst", "no_such_module:best"):
        with pytest.raises(ParameterError, match="cannot be loaded"):
            policy_source(wrong)


def test_what_a_name_stands_for(tmp_path: Path) -> None:
    (tmp_path / "lists.parquet").write_bytes(b"")
    assert policy_source("uniform") == "uniform"
    assert policy_source("column:uniform") == "uniform" or policy_source("column:pi") == "pi"
    assert policy_source("pi") == "pi"
    assert policy_source(tmp_path / "lists.parquet") == TableSource(str(tmp_path / "lists.parquet"))
    with pytest.raises(ParameterError, match="is a pickle"):
        policy_source("model.joblib")
    with pytest.raises(ArtifactError, match="does not exist"):
        policy_source("nowhere/policy")
    with pytest.raises(ArtifactError, match="does not exist"):
        policy_source("nowhere.onnx")


def test_an_onnx_file_of_anybody(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    weights = np.array([[1.0, -1.0, 0.5]], dtype=np.float32)
    nodes = [
        helper.make_node("Cast", ["age"], ["x"], to=kinds.FLOAT),
        helper.make_node("MatMul", ["x", "w"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["probabilities"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info("age", kinds.DOUBLE, ["rows", 1])],
        [helper.make_tensor_value_info("probabilities", kinds.FLOAT, ["rows", 3])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    meta = model.metadata_props.add()
    meta.key, meta.value = "actions", json.dumps(["juice", "tea", "coffee"])
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    policy = as_policy(policy_source(tmp_path / "model.onnx"), LOG)

    def prob(row: int) -> Any:
        raw = np.exp(FRAME["age"][row] * weights[0])
        named = dict(zip(["juice", "tea", "coffee"], raw / raw.sum(), strict=True))
        return np.array([named[one] for one in IDS])

    np.testing.assert_allclose(dense(policy), by_hand(prob), atol=1e-6)


def test_frames_of_contexts_hold_the_users_ids() -> None:
    frame = LOG.contexts.to_frame()
    assert frame[LOG.context_index].rows() == FRAME.select("country", "age").rows()
    bags = LoggedData.from_arrays({"tags": [["a"], [], ["b", "a"]], "v": np.eye(3)}, [0, 1, 0], [0, 1, 1], actions=2)
    assert sorted(map(sorted, bags.contexts.to_frame()["tags"].to_list())) == [[], ["a"], ["a", "b"]]
    assert isinstance(FRAME.to_pandas(), pd.DataFrame)
