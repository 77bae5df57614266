"""A scorer that the library has never heard of learns, fits a propensity, is saved, loaded, served and exported."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from offpolicy.artifacts import ArtifactError, export_onnx, load_policy, save_policy
from offpolicy.atomic import current_version
from offpolicy.errors import ParameterError
from offpolicy.learning import learn_policy
from offpolicy.log import FeatureTable, LoggedData
from offpolicy.models import (
    ColumnsRecipe,
    DesignMatrix,
    FittedColumn,
    OnnxGraph,
    Scorer,
    ScorerRecipe,
    ScorerShape,
    build_scorer,
    register_scorer,
)
from offpolicy.policy_files import DOCUMENT, WEIGHTS, sha256
from offpolicy.propensity import fit_logging_policy
from offpolicy.rewards import RewardFitConfig, fit_reward_model
from offpolicy.uncertainty import row_uncertainty
from policy_worlds import a_log, frame

LOG = a_log(200)


class Hidden(nn.Module, Scorer):
    """One hidden layer: h(x) = tanh(W·x), f(x, a) = h(x)·w_a + b_a."""

    default_ridge = 0.1

    def __init__(self, encoder: DesignMatrix, dim: int, n_actions: int) -> None:
        super().__init__()
        self.encoder, self.dim, self.n_actions = encoder, dim, n_actions
        random = torch.Generator().manual_seed(0)
        self.hidden = nn.Parameter(torch.randn(dim, encoder.width, generator=random) / encoder.width**0.5)
        self.weights = nn.Parameter(torch.randn(n_actions, dim, generator=random) * 0.1)
        self.bias = nn.Parameter(torch.zeros(n_actions))

    @property
    def columns(self) -> tuple[FittedColumn, ...]:
        return self.encoder.columns

    def states(self, contexts: FeatureTable) -> Tensor:
        return torch.tanh(self.encoder.encode(contexts) @ self.hidden.T)

    def actions(self) -> tuple[Tensor, Tensor]:
        return self.weights, self.bias

    def specification(self) -> dict[str, Any]:
        columns = self.encoder.to_json()["columns"]
        return {"kind": "hidden", "dim": self.dim, "n_actions": self.n_actions, "encoder": {"columns": columns}}

    def onnx_states(self, graph: OnnxGraph) -> str:
        joined = graph.node("Concat", *map(graph.encoded, self.columns), axis=1)
        return str(graph.node("Tanh", graph.node("MatMul", joined, graph.floats(self.hidden.T))))


class HiddenRecipe(ScorerRecipe):
    kind: Literal["hidden"]
    dim: Annotated[PositiveInt, Field(le=1000)]
    n_actions: PositiveInt
    encoder: ColumnsRecipe

    def shape(self) -> ScorerShape:
        width = sum(column.width for column in self.encoder.columns)
        numbers = self.dim * width + self.n_actions * (self.dim + 1)
        return ScorerShape(self.n_actions, self.dim, numbers, list(self.encoder.columns))

    def check_tensors(self, tensors: Mapping[str, Tensor], prefix: str = "") -> None:
        if float(tensors[f"{prefix}hidden"].abs().max()) > 100:
            raise ValueError("the hidden layer is beyond reason")


def build(specification: dict[str, Any]) -> Hidden:
    encoder = DesignMatrix.from_json(specification["encoder"])
    return Hidden(encoder, specification["dim"], specification["n_actions"])


register_scorer("hidden", HiddenRecipe, build)


def a_hidden(log: LoggedData) -> Hidden:
    return Hidden(DesignMatrix.fit(log.contexts, 16), 6, log.n_actions)


@pytest.fixture(scope="module")
def learned() -> Any:
    return learn_policy(LOG, "uips_dr", scorer=a_hidden, epochs=3, learning_rate=0.05, metric="value")


def test_it_fits_a_propensity_with_its_uncertainty_and_rewards() -> None:
    beta = fit_logging_policy(LOG, a_hidden)
    assert isinstance(beta.whole.scorer, Hidden)
    assert beta.whole.ridge == 0.1
    assert beta.whole.design is None
    assert bool((row_uncertainty(beta) > 0).all())
    rewards = fit_reward_model(LOG, a_hidden, folds=2, config=RewardFitConfig(epochs=3))
    assert isinstance(rewards.whole.scorer, Hidden)


def test_it_learns_and_β_alternates_on_states_with_items_only(learned: Any) -> None:
    assert isinstance(learned.scorer, Hidden)
    assert learned.history[-1]["weighted_reward"] != learned.history[0]["weighted_reward"]
    with pytest.raises(ParameterError, match="alternate"):
        learn_policy(LOG, "uips", scorer=a_hidden, schedule="alternate", epochs=1)


def test_it_is_saved_loaded_and_recommends(learned: Any, tmp_path: Path) -> None:
    saved = load_policy(save_policy(learned, LOG, tmp_path / "policy"))
    assert isinstance(saved.policy.scorer, Hidden)
    assert [column.name for column in saved.context] == list(LOG.contexts)
    assert torch.equal(saved.log_probs(LOG.contexts), learned.log_probs(LOG.contexts))
    contexts = frame(20, 3, strangers=True)
    found = saved.recommend(contexts, 3)
    ((encoded, _),) = saved.encoded(contexts)
    best = saved.log_probs(encoded.table).argmax(1).numpy()
    assert found.filter(found["rank"] == 1)["action"].to_list() == LOG.actions.vocabulary.decode(best)


def test_it_is_exported_with_parity(learned: Any, tmp_path: Path) -> None:
    saved = load_policy(save_policy(learned, LOG, tmp_path / "policy"))
    parity = export_onnx(saved, tmp_path / "policy.onnx", k=5, contexts=frame(300, 4, strangers=True))
    assert parity is not None
    assert (parity.rows, parity.same_lists) == (300, 300)
    assert parity.largest_difference < 1e-5


def test_without_onnx_states_only_the_export_is_refused(tmp_path: Path) -> None:
    class Mute(Hidden):
        onnx_states = Scorer.onnx_states

    graphless = Mute(DesignMatrix.fit(LOG.contexts, 4), 2, LOG.n_actions)
    with pytest.raises(ParameterError, match="type Mute does not say"):
        graphless.onnx_states(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "forged", "message"),
    [
        (("dim",), 10**6, "dim"),
        (("dim",), 5, "numbers where policy.json describes"),
        (("dim",), "6", "dim"),
        (("extra",), 1, "extra"),
        (("kind",), "visible", "kind of a scorer"),
        (("encoder", "columns"), [], "columns"),
    ],
)
def test_a_forged_recipe_is_refused(
    learned: Any, tmp_path: Path, path: tuple[str, ...], forged: Any, message: str
) -> None:
    folder = current_version(save_policy(learned, LOG, tmp_path / "policy"))
    document = json.loads((folder / DOCUMENT).read_text())
    place = document["scorer"]
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = forged
    (folder / DOCUMENT).write_text(json.dumps(document))
    sums = {name: sha256((folder / name).read_bytes()) for name in (WEIGHTS, DOCUMENT)}
    (folder / "checksums.json").write_text(json.dumps({"sha256": sums}))
    with pytest.raises(ArtifactError, match=message):
        load_policy(tmp_path / "policy")


def test_its_own_check_of_the_tensors_is_asked(tmp_path: Path) -> None:
    wild = a_hidden(LOG)
    with torch.no_grad():
        wild.hidden.fill_(1e3)
    with pytest.raises(ArtifactError, match="beyond reason"):
        save_policy(wild, LOG, tmp_path / "policy")


def test_a_kind_has_one_owner() -> None:
    register_scorer("hidden", HiddenRecipe, build)  # once more is fine
    with pytest.raises(ParameterError, match="another scorer of the kind 'hidden'"):
        register_scorer("hidden", HiddenRecipe, lambda specification: a_hidden(LOG))
    again = build_scorer(a_hidden(LOG).specification())
    np.testing.assert_array_equal(again.actions()[0].shape, (LOG.n_actions, 6))
