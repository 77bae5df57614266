"""The tensors of a saved policy: the scorer's weights and the actions' features, in one safetensors file."""

from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from offpolicy.artifacts.document import ActionsRecipe, FeatureRecipe, PolicyDocument
from offpolicy.errors import ArtifactError, OffPolicyError, ParameterError
from offpolicy.log import (
    COLUMNS,
    ActionTable,
    BagColumn,
    CategoricalColumn,
    Column,
    FeatureTable,
    Vocabulary,
    column_parts,
)
from offpolicy.models import Scorer, build_scorer
from offpolicy.policies import tensor

SCORER = "scorer."
FEATURES = "action_features."
ARRAYS: dict[str, dict[str, torch.dtype]] = {
    "numeric": {"values": torch.float64},
    "embedding": {"values": torch.float32},
    "categorical": {"codes": torch.int32},
    "bag": {"codes": torch.int32, "offsets": torch.int64},
}
"""The arrays of a feature column by kind."""
DTYPES = (torch.float32, torch.float64, torch.int32, torch.int64)


def packed(scorer: Scorer, actions: ActionTable) -> bytes:
    """The weights and the features as the content of a safetensors file."""
    tensors = {SCORER + name: values.detach().cpu() for name, values in scorer.state_dict().items()}
    for i, column in enumerate((actions.features or {}).values()):
        for name in ARRAYS[column.kind]:
            tensors[f"{FEATURES}{i}.{name}"] = tensor(getattr(column, name))
    broken = next((name for name, values in tensors.items() if not bool(values.isfinite().all())), None)
    if broken is not None:
        raise ParameterError(
            f"The weights {broken!r} hold NaN or infinity, so this policy cannot be saved. Train again."
        )
    return safetensors.torch.save({name: values.clone().contiguous() for name, values in tensors.items()})


def feature_recipes(actions: ActionTable) -> list[dict[str, Any]]:
    """What the document says about the features of actions."""
    return [
        {
            "name": name,
            "kind": column.kind,
            "ids": column.vocabulary.to_list() if isinstance(column, CategoricalColumn | BagColumn) else None,
        }
        for name, column in (actions.features or {}).items()
    ]


def unpacked(content: bytes, document: PolicyDocument, file: Path) -> tuple[Scorer, ActionTable]:
    """The scorer with its weights and the actions with their features, every tensor accounted for."""
    try:
        tensors = safetensors.torch.load(content)
    except Exception as error:  # the library raises many kinds for broken headers
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise _refused(file, f"it cannot be read ({reason})") from None
    for name, values in tensors.items():
        if values.dtype not in DTYPES:
            raise _refused(file, f"{name!r} is of type {values.dtype}")
        if not bool(values.isfinite().all()):
            raise _refused(file, f"{name!r} holds NaN or infinity")
    weights = {name.removeprefix(SCORER): values for name, values in tensors.items() if name.startswith(SCORER)}
    features = {name.removeprefix(FEATURES): values for name, values in tensors.items() if name.startswith(FEATURES)}
    if len(weights) + len(features) < len(tensors):
        extra = next(name for name in tensors if not name.startswith((SCORER, FEATURES)))
        raise _refused(file, f"it holds a tensor {extra!r} that no policy has")
    return _scorer(weights, document, file), _actions(features, document.actions, file)


def _scorer(weights: dict[str, Tensor], document: PolicyDocument, file: Path) -> Scorer:
    count, expected = sum(values.numel() for values in weights.values()), document.scorer.shape().n_numbers
    if count != expected:  # before anything of the described size is built
        raise _refused(file, f"its weights are {count} numbers where policy.json describes {expected}")
    try:
        scorer = build_scorer(document.scorer.model_dump())
    except OffPolicyError as error:
        raise _refused(file.with_name("policy.json"), f"its scorer cannot be built: {error}") from None
    if any(values.dtype == torch.float64 for values in weights.values()) and isinstance(scorer, nn.Module):
        scorer.double()
    described = scorer.state_dict()
    for name in described.keys() | weights.keys():
        have, want = _described(weights.get(name)), _described(described.get(name))
        if have != want:
            raise _refused(file, f"the tensor {SCORER + name!r} is {have} where policy.json describes {want}")
    try:
        document.scorer.check_tensors(weights)
    except ValueError as error:
        raise _refused(file, str(error)) from None
    negative = next((n for n, v in weights.items() if n.endswith("running_var") and bool((v < 0).any())), None)
    if negative is not None:
        raise _refused(file, f"{negative!r} holds a negative variance")
    scorer.load_state_dict(weights)
    return scorer


def _described(values: Tensor | None) -> str:
    return "missing" if values is None else f"{str(values.dtype).removeprefix('torch.')} {tuple(values.shape)}"


def _actions(arrays: dict[str, Tensor], recipe: ActionsRecipe, file: Path) -> ActionTable:
    wanted = {
        f"{i}.{name}": dtype
        for i, feature in enumerate(recipe.features)
        for name, dtype in ARRAYS[feature.kind].items()
    }
    dtypes = {name: values.dtype for name, values in arrays.items()}
    if dtypes != wanted:
        odd = next(name for name in sorted(dtypes.keys() | wanted.keys()) if dtypes.get(name) != wanted.get(name))
        have, want = dtypes.get(odd, "missing"), wanted.get(odd, "nothing")
        raise _refused(file, f"the tensor {FEATURES + odd!r} is {have} where policy.json describes {want}")
    try:
        columns = {
            feature.name: _feature(feature, {name: arrays[f"{i}.{name}"].numpy() for name in ARRAYS[feature.kind]})
            for i, feature in enumerate(recipe.features)
        }
        if len(columns) < len(recipe.features):
            raise _refused(file, "two features of the actions have one name")
        return ActionTable(Vocabulary.from_list(recipe.ids), FeatureTable(columns) if columns else None)
    except ArtifactError:
        raise
    except OffPolicyError as error:
        raise _refused(file, f"the actions and their features do not fit: {error}") from None


def _feature(recipe: FeatureRecipe, arrays: dict[str, Any]) -> Column:
    return COLUMNS[recipe.kind](**column_parts(recipe.kind, arrays, Vocabulary.from_list(recipe.ids or [])))


def _refused(file: Path, problem: str) -> ArtifactError:
    return ArtifactError(f"{file} does not fit this policy: {problem}. Save the policy again, or copy it in full.")
