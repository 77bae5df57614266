"""Policies saved as folders, whose files `policy_files` describes, and loaded again. No pickle anywhere."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import torch

from offpolicy.artifacts.document import (
    FORMAT,
    VERSION,
    PolicyDocument,
    library_versions,
    parsed_document,
)
from offpolicy.artifacts.saved_policy import SavedPolicy
from offpolicy.artifacts.tensors import feature_recipes, packed, unpacked
from offpolicy.atomic import CURRENT, VERSIONS, new_version, versions
from offpolicy.errors import ArtifactError, ParameterError
from offpolicy.json_writer import json_text, jsonable
from offpolicy.log import ActionTable, LoggedData
from offpolicy.models import Scorer, ScorerShape, scorer_recipe
from offpolicy.policies import ScorerPolicy
from offpolicy.policy_files import CHECKSUMS, DOCUMENT, FILES, WEIGHTS, from_current_version, read_version, sha256


class HasPolicy(Protocol):
    """Something that carries the softmax policy of a scorer, as learned and loaded policies do."""

    @property
    def policy(self) -> ScorerPolicy:
        """The policy."""
        ...


def save_policy(
    policy: Scorer | ScorerPolicy | HasPolicy,
    log: LoggedData,
    path: str | Path,
    *,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Save a policy and all that is needed to use it, atomically: a reader gets the former policy or the new one.

    `policy` is a scorer, the softmax policy of one, or what `learn_policy` or `load_policy` returned, and `log` the log
    it was learned from, which tells the actions with their ids and features and the range of rewards. `metadata` is
    kept beside it; the names method, hyper, config, metrics and seed have a meaning to reports. A policy that was
    saved at `path` before is replaced when the new one is complete; a folder that holds anything else is left alone.
    Nothing is published that cannot be loaded.
    """
    scorer, excluded = _parts(policy)
    target = Path(path).expanduser()
    _check_free(target)
    weights = packed(scorer, log.actions)
    document = _document(scorer, excluded, log, metadata or {})
    sums = {"sha256": {WEIGHTS: sha256(weights), DOCUMENT: sha256(document)}}
    if (target / CURRENT).exists():
        for name in FILES:  # of an older layout, superseded since
            with suppress(OSError):
                (target / name).unlink()
    with new_version(target) as folder:
        (folder / WEIGHTS).write_bytes(weights)
        (folder / DOCUMENT).write_bytes(document)
        (folder / CHECKSUMS).write_text(json_text(sums, indent=1), encoding="utf-8")
        _load(folder)
    return target


def load_policy(path: str | Path) -> SavedPolicy:
    """Load a saved policy; anything but a complete and undamaged folder is an `ArtifactError`."""
    return from_current_version(path, _load)


def _load(folder: Path) -> SavedPolicy:
    files = read_version(folder)
    document = parsed_document(files.document, folder / DOCUMENT)
    scorer, actions = unpacked(files.weights, document, folder / WEIGHTS)
    return _restored(scorer, actions, document, folder)


def _restored(scorer: Scorer, actions: ActionTable, document: PolicyDocument, folder: Path) -> SavedPolicy:
    mask = None
    if document.excluded:
        mask = torch.zeros(len(actions), dtype=torch.bool)
        mask[document.excluded] = True
    policy = ScorerPolicy(scorer, actions, mask)
    weights_usable = bool(policy.weights.isfinite().all()) and not bool(policy.bias.isnan().any())
    if not weights_usable:
        raise ArtifactError(f"{folder / WEIGHTS} gives scores that are not finite. Save the policy again.")
    return SavedPolicy(policy, actions, document)


def _check_free(target: Path) -> None:
    """Refuse to write into a folder that holds more than a policy."""
    if not target.is_dir():
        return
    known = versions(target)
    foreign = [inside.name for inside in target.iterdir() if inside.name not in (*FILES, CURRENT, VERSIONS)]
    if (target / VERSIONS).is_dir():
        foreign += [inside.name for inside in (target / VERSIONS).iterdir() if inside not in known]
    for version in known:
        foreign += [inside.name for inside in version.iterdir() if inside.name not in FILES] if version.is_dir() else []
    if foreign:
        raise ArtifactError(
            f"{target} holds {min(foreign)!r}, which is no part of a saved policy, so it is not replaced. "
            "Name a new folder, for example one inside it."
        )


def _parts(policy: Any) -> tuple[Scorer, list[int]]:
    """The scorer of a policy and the codes of the actions that the policy excludes."""
    policy = policy.policy if isinstance(getattr(policy, "policy", None), ScorerPolicy) else policy
    if isinstance(policy, Scorer):
        return policy, []
    if not isinstance(policy, ScorerPolicy):
        raise ParameterError(f"Only a scorer or the softmax policy of one can be saved, not {type(policy).__name__}.")
    with torch.no_grad():
        weights, bias = policy.scorer.actions()
    excluded = torch.isneginf(policy.bias)
    if not torch.equal(weights, policy.weights) or not torch.equal(bias[~excluded], policy.bias[~excluded]):
        raise ParameterError(
            "The scorer was trained further after this policy was made from it. Make the policy again."
        )
    return policy.scorer, excluded.nonzero().squeeze(1).tolist()


def _document(scorer: Scorer, excluded: list[int], log: LoggedData, metadata: Mapping[str, Any]) -> bytes:
    specification = scorer.specification()
    context = [{"name": column.name, "kind": column.kind} for column in _shape(specification).columns]
    _check_made_for(scorer, context, log)
    recipe: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "metadata": jsonable(metadata, "metadata"),
        "versions": library_versions(),
        "reward_range": log.reward_range,
        "context": context,
        "excluded": excluded,
        "actions": {"ids": log.actions.vocabulary.to_list(), "features": feature_recipes(log.actions)},
        "scorer": specification,
    }
    return json_text(recipe, "The policy", indent=1).encode()


def _shape(specification: dict[str, Any]) -> ScorerShape:
    try:
        return scorer_recipe(specification).shape()
    except ValueError as error:
        raise ParameterError(
            f"A scorer of kind {specification.get('kind')!r} cannot be saved: {error}. Register its kind with "
            "offpolicy.models.register_scorer, or save a scorer of this library."
        ) from None


def _check_made_for(scorer: Scorer, context: list[dict[str, str]], log: LoggedData) -> None:
    if scorer.n_actions != log.n_actions:
        raise ParameterError(
            f"The scorer has {scorer.n_actions} actions, but the log has {log.n_actions}. Give the log that the scorer "
            "was made for."
        )
    for column in context:
        known = log.contexts.get(column["name"])
        if known is None or known.kind != column["kind"]:
            raise ParameterError(
                f"The scorer reads the {column['kind']} column {column['name']!r}, which the log does not have. Give "
                "the log that the scorer was made for."
            )
