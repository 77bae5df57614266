"""What every part of the results is: frozen, its numbers finite or unknown, ready for JSON. Needs no torch."""

import math
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

LARGEST = 1e100
"""Numbers beyond this count as unknown, so that no arithmetic of a chart overflows."""


def _or_unknown(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and abs(value) < LARGEST else None


def _finite(value: float) -> float:
    if not (math.isfinite(value) and abs(value) < LARGEST):
        raise ValueError("the number is not finite")
    return value


def _or_empty(value: Any) -> Any:
    return {} if value is None else value


def _or_none_listed(value: Any) -> Any:
    return [] if value is None else value


Finite = Annotated[float, AfterValidator(_finite)]
Number = Annotated[float | None, AfterValidator(_or_unknown)]
"""A number that may be unknown; infinity and NaN are."""
Maybe = BeforeValidator(_or_empty)
MaybeList = BeforeValidator(_or_none_listed)


class Part(BaseModel):
    """A part of the results: frozen; fields that this version does not know are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return self.model_dump()
