"""`policy.json`: everything about a saved policy but its weights, checked field by field when it is read."""

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, NonNegativeInt, model_validator

from offpolicy.errors import ArtifactError
from offpolicy.log import Id
from offpolicy.models import AnyScorerRecipe, Strict
from offpolicy.policy_files import parsed

FORMAT = "offpolicy policy"
VERSION = 1
LIBRARIES = ("offpolicy", "torch", "numpy", "polars", "safetensors")


class FeatureRecipe(Strict):
    """A feature column of the actions; its values are tensors."""

    name: str
    kind: Literal["numeric", "categorical", "embedding", "bag"]
    ids: list[Id] | None = None


class ActionsRecipe(Strict):
    """The actions' ids in code order, and their features."""

    ids: list[Id]
    features: list[FeatureRecipe]


class ContextColumn(Strict):
    """A context column that the policy reads."""

    name: str
    kind: Literal["numeric", "categorical", "embedding", "bag"]


class Metadata(Strict):
    """How the policy was learned. Whatever else is given is kept as well."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, allow_inf_nan=False)
    __pydantic_extra__: dict[str, JsonValue]

    method: str | None = None
    hyper: dict[str, JsonValue] = Field(default_factory=dict)
    config: dict[str, JsonValue] = Field(default_factory=dict)
    metrics: dict[str, JsonValue] = Field(default_factory=dict)
    seed: int | None = None


class PolicyDocument(Strict):
    """The whole of `policy.json`."""

    format: Literal["offpolicy policy"]
    version: Literal[1]
    scorer: AnyScorerRecipe
    actions: ActionsRecipe
    excluded: list[NonNegativeInt]
    """Codes of actions that the policy never chooses."""
    context: list[ContextColumn]
    reward_range: tuple[float, float]
    metadata: Metadata
    versions: dict[str, str]

    @model_validator(mode="after")
    def _parts_fit(self) -> "PolicyDocument":
        shape = self.scorer.shape()
        read = [(column.name, column.kind) for column in shape.columns]
        if read != [(column.name, column.kind) for column in self.context]:
            raise ValueError("context must list the columns that the scorer reads")
        if shape.n_actions != len(self.actions.ids):
            raise ValueError(f"the scorer has {shape.n_actions} actions, but there are {len(self.actions.ids)} ids")
        if len(set(self.excluded)) >= len(self.actions.ids) or any(c >= len(self.actions.ids) for c in self.excluded):
            raise ValueError("excluded must be codes of some, not all, of the actions")
        if not self.reward_range[0] < self.reward_range[1]:
            raise ValueError("reward_range must rise")
        return self


class _Head(BaseModel):
    """What every version of the format begins with."""

    format: str
    version: int


def parsed_document(content: bytes, file: Path) -> PolicyDocument:
    """The document, after a look at its format and version."""
    head = parsed(_Head, content, file)
    if head.format != FORMAT:
        raise ArtifactError(f"{file} is no policy of this library: its format is {head.format!r}. Name another folder.")
    if head.version > VERSION:
        raise ArtifactError(
            f"{file} has version {head.version} of the format, but this library reads versions up to {VERSION}. "
            "Upgrade offpolicy."
        )
    return parsed(PolicyDocument, content, file)


def library_versions() -> dict[str, str]:
    """The versions that a policy was made with."""
    versions = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "unknown"
    return versions
