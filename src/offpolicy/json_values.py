"""Values as JSON can hold them."""

import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """Values that JSON can hold: no NaN, no infinity, no arrays."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(inner) for inner in value]
    if hasattr(value, "tolist") and hasattr(value, "shape"):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int | bool) else str(value)
