"""A real local Ray, started once for all tests."""

import importlib.util
from collections.abc import Iterator

import pytest

from offpolicy.engine import Engine, make_engine


@pytest.fixture(scope="session")
def local_ray() -> Iterator[Engine]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray has no wheel for this Python or system")
    with make_engine("ray", 2) as engine:
        yield engine
