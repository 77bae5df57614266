"""Stores of both kinds and a policy to serve, for every test that asks; nothing is imported before one does."""

import os
import pwd
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from serving_world import postgres, postgres_programs

    if postgres_programs() is None:
        pytest.skip("there is no PostgreSQL here; install Debian's package postgresql")
    if os.getuid() == 0:
        known = False
        with suppress(KeyError):
            known = bool(pwd.getpwnam("postgres"))
        if not known:
            pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
    with postgres(tmp_path_factory.mktemp("postgres")) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'events.db'}"
    import sqlalchemy as sa

    from offpolicy.serving.store import metadata, store_url

    url: str = request.getfixturevalue("postgres_url")
    engine = sa.create_engine(store_url(url))
    with engine.begin() as connection:
        metadata.drop_all(connection)
    engine.dispose()
    return url


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from serving_world import a_policy

    return a_policy(tmp_path_factory.mktemp("policy") / "policy")
