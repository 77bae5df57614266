"""The event store: decisions, rewards and activations in SQLite or PostgreSQL, each written once and never changed.

Everything is keyed by the request's id. A decision or activation that is written again is ignored, and so is a reward
with the same request and event id: whoever is unsure whether a write arrived simply writes again.
"""

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, TypeAlias

from offpolicy.errors import MissingExtraError, OffPolicyError

try:
    import sqlalchemy as sa
except ImportError:
    raise MissingExtraError("Serving needs the serve extra. Run: pip install 'offpolicy[serve]'") from None

Row: TypeAlias = Mapping[str, Any]
CHUNK = 64
"""Rows of one INSERT statement."""
BUSY_SECONDS = 30
LONGEST_WAL = 16_000
"""Pages of SQLite's write-ahead log that a commit moves into the database itself, if `checkpoint` has not done it."""
ADVISORY_LOCK = 7_203_411_507_218_021

metadata = sa.MetaData()
meta = sa.Table("meta", metadata, sa.Column("name", sa.Text, primary_key=True), sa.Column("value", sa.Text))
policies = sa.Table(
    "policies",
    metadata,
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("served_at", sa.BigInteger, nullable=False),
    sa.Column("facts", sa.Text, nullable=False),
)
decisions = sa.Table(
    "decisions",
    metadata,
    sa.Column("request_id", sa.Text, primary_key=True),
    sa.Column("decided_at", sa.BigInteger, nullable=False, index=True),
    sa.Column("policy", sa.Text, nullable=False),
    sa.Column("mode", sa.Text, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("context", sa.Text, nullable=False),
    sa.Column("candidates", sa.Text),
    sa.Column("candidates_digest", sa.Text, nullable=False),
    sa.Column("k", sa.Integer, nullable=False),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("actions", sa.Text, nullable=False),
    sa.Column("probability", sa.Double),
    sa.Column("probabilities", sa.Text, nullable=False),
    sa.Column("policy_actions", sa.Text, nullable=False),
    sa.Column("policy_probability", sa.Double),
    sa.Column("explored", sa.SmallInteger, nullable=False),
    sa.Column("deferred", sa.SmallInteger, nullable=False),
    sa.Column("epsilon", sa.Double, nullable=False),
    sa.Column("keep_prob", sa.Double, nullable=False),
    sa.Column("scheme", sa.Integer, nullable=False),
    sa.Column("notes", sa.Text),
)
rewards = sa.Table(
    "rewards",
    metadata,
    sa.Column("request_id", sa.Text, primary_key=True),
    sa.Column("event_id", sa.Text, primary_key=True),
    sa.Column("value", sa.Double, nullable=False),
    sa.Column("received_at", sa.BigInteger, nullable=False),
)
activations = sa.Table(
    "activations",
    metadata,
    sa.Column("request_id", sa.Text, primary_key=True),
    sa.Column("activated_at", sa.BigInteger, nullable=False),
)
WRITTEN = {table.name: table for table in (decisions, rewards, activations)}


def _first_schema(connection: sa.Connection) -> None:
    metadata.create_all(connection)
    connection.execute(meta.insert().values(name="salt", value=secrets.token_hex(16)))


MIGRATIONS: list[Callable[[sa.Connection], None]] = [_first_schema]
"""Step n brings a store from version n to n + 1; steps are only ever added."""


class EventStore:
    """A store by its URL: `sqlite:///events.db`, a path, or `postgresql://user@host/name`."""

    def __init__(self, url: str, *, salt: str | None = None, existing: bool = False) -> None:
        """Open a store, or make one unless it must be `existing`.

        `salt` keys the draws of a new one (else a random one does) and must be that of an old one.
        """
        self.url = store_url(url)
        self.is_sqlite = self.url.startswith("sqlite")
        if existing and self.is_sqlite and not Path(self.url.removeprefix("sqlite:///")).exists():
            raise OffPolicyError(f"There is no event store at {url}. Name the one that was served with (--store).")
        self.engine = _engine(self.url)
        self._connection: Any = None
        self._lock = threading.Lock()
        try:
            with self.transaction() as connection:
                _migrate(connection, self.is_sqlite)
                self.salt = self._salted(connection, salt)
        except sa.exc.SQLAlchemyError as error:
            self.close()
            reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
            raise OffPolicyError(
                f"The event store {self.safe_url} cannot be opened: {reason}. Check the URL, and that the database is "
                "running and may be written."
            ) from None
        except OffPolicyError:
            self.close()
            raise

    def _salted(self, connection: sa.Connection, salt: str | None) -> str:
        known = connection.scalar(sa.select(meta.c.value).where(meta.c.name == "salt"))
        if salt is None or known == salt:
            return str(known)
        if connection.execute(sa.select(policies.c.digest).limit(1)).first() is not None:
            raise OffPolicyError(
                f"{self.safe_url} has served with another salt. Leave --salt out to keep it, or choose another store."
            )
        connection.execute(meta.update().where(meta.c.name == "salt").values(value=salt))
        return salt

    @property
    def safe_url(self) -> str:
        """The URL without its password."""
        return sa.make_url(self.url).render_as_string(hide_password=True)

    def __enter__(self) -> Self:
        """Use it in a `with` block, which closes it."""
        return self

    def __exit__(self, *failure: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Give back its connections."""
        with self._lock:
            self._dropped()
        self.engine.dispose()

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """A connection whose writes become durable together when the block ends."""
        with self.engine.connect().execution_options(writes=True) as connection, connection.begin():
            yield connection

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A connection that sees one state of the store."""
        with self.engine.connect() as connection, connection.begin():
            yield connection

    def append(self, batch: Mapping[str, Sequence[Row]]) -> dict[str, Row]:
        """Write rows by table, durably and all at once; the decisions that were there before, as they were recorded."""
        repeated: list[Row] = []
        with self._lock:
            try:
                cursor = self._opened().cursor()
                if self.is_sqlite:
                    cursor.execute("BEGIN IMMEDIATE")
                for name, rows in batch.items():
                    ordered = sorted(rows, key=_key)  # one order for all writers: no deadlock
                    if self._insert(cursor, name, ordered) < len(rows) and name == "decisions":
                        repeated = ordered
                cursor.execute("COMMIT") if self.is_sqlite else self._opened().commit()
                cursor.close()
            except BaseException:
                self._dropped()
                raise
        return self._found(repeated) if repeated else {}

    def _insert(self, cursor: Any, name: str, rows: Sequence[Row]) -> int:
        names = metadata.tables[name].columns.keys()
        written = 0
        for i in range(0, len(rows), CHUNK):
            part = rows[i : i + CHUNK]
            text = _statement(name, len(part), "?" if self.is_sqlite else "%s")
            cursor.execute(text, [row[column] for row in part for column in names])
            written += cursor.rowcount
        return written

    def _opened(self) -> Any:
        """The driver's connection on which rows are appended, kept open: SQLAlchemy's own cost half a millisecond."""
        if self._connection is None:
            self._connection = self.engine.raw_connection()
        return self._connection

    def _dropped(self) -> None:
        """Close that connection, which rolls back what it had not committed."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.invalidate()

    def _found(self, rows: Sequence[Row]) -> dict[str, Row]:
        """The decisions in the store with the ids of these rows but made at another time."""
        mine = {row["request_id"]: row["decided_at"] for row in rows}
        ids = list(mine)
        found: dict[str, Row] = {}
        with self.reading() as connection:
            for i in range(0, len(ids), 500):
                query = decisions.select().where(decisions.c.request_id.in_(ids[i : i + 500]))
                for row in connection.execute(query).mappings():
                    if row["decided_at"] != mine[row["request_id"]]:
                        found[row["request_id"]] = dict(row)
        return found

    def remember(self, digest: str, facts: str) -> None:
        """Record that a policy is served, with what is known about it (JSON)."""
        row = {"digest": digest, "served_at": now(), "facts": facts}
        with self.transaction() as connection:
            text = _statement("policies", 1, "?" if self.is_sqlite else "%s")
            connection.exec_driver_sql(text, tuple(row[name] for name in policies.columns.keys()))  # noqa: SIM118

    def prune(self, before: int, limit: int = 10_000) -> int:
        """Delete up to `limit` decisions made before a time (µs), their rewards and activations; how many."""
        oldest = sa.select(decisions.c.request_id).where(decisions.c.decided_at < before)
        with self.transaction() as connection:
            ids = list(connection.scalars(oldest.order_by(decisions.c.decided_at).limit(limit)))
            for i in range(0, len(ids), 500):
                for table in WRITTEN.values():
                    connection.execute(table.delete().where(table.c.request_id.in_(ids[i : i + 500])))
        return len(ids)

    def checkpoint(self) -> None:
        """Move what SQLite has committed into the database file, beside the writers and without holding them up."""
        if not self.is_sqlite:
            return
        connection = self.engine.raw_connection()
        try:
            connection.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)").close()
        finally:
            connection.close()

    def ping(self) -> None:
        """Raise unless the store answers."""
        with self.reading() as connection:
            connection.execute(sa.select(meta.c.name).limit(1))


def store_url(url: str) -> str:
    """A URL as SQLAlchemy takes it; a path means SQLite."""
    if "://" not in url:
        return f"sqlite:///{Path(url).expanduser()}"
    scheme, _, rest = url.partition("://")
    if scheme in ("postgres", "postgresql"):
        return f"postgresql+psycopg://{rest}"
    return url


def now() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


def _key(row: Row) -> tuple[str, str]:
    return str(row["request_id"]), str(row.get("event_id", ""))


@lru_cache(maxsize=1024)
def _statement(name: str, rows: int, mark: str) -> str:
    """INSERT of so many rows at once: one statement is one wait for the database, whatever the rows."""
    columns = metadata.tables[name].columns.keys()
    one = f"({', '.join([mark] * len(columns))})"
    return f"INSERT INTO {name} ({', '.join(columns)}) VALUES {', '.join([one] * rows)} ON CONFLICT DO NOTHING"


def _engine(url: str) -> sa.Engine:
    try:
        if not url.startswith("sqlite"):
            return sa.create_engine(url, pool_pre_ping=True, pool_size=4, connect_args={"connect_timeout": 5})
        engine = sa.create_engine(url, connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False})
    except ImportError as error:
        raise MissingExtraError(
            f"The store {url.partition(':')[0]} needs a driver that is not installed ({error.name}). For PostgreSQL "
            "run: pip install 'offpolicy[postgres]'"
        ) from None
    except sa.exc.ArgumentError:
        raise OffPolicyError(
            f"{url!r} is not the URL of a store. Give a path, sqlite:///path or postgresql://user@host/name."
        ) from None

    @sa.event.listens_for(engine, "connect")
    def _prepare(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # transactions begin where SQLAlchemy says so
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")  # a commit is on the disk
        connection.execute(f"PRAGMA wal_autocheckpoint={LONGEST_WAL}")

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        writes = connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _migrate(connection: sa.Connection, is_sqlite: bool) -> None:
    """Bring a store to the newest version of the schema, one server at a time."""
    if not is_sqlite:
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(ADVISORY_LOCK)))
    version = 0
    if sa.inspect(connection).has_table("meta"):
        version = int(connection.scalar(sa.select(meta.c.value).where(meta.c.name == "schema")) or 0)
    if version > len(MIGRATIONS):
        raise OffPolicyError(
            f"The event store has version {version} of the schema, but this library knows versions up to "
            f"{len(MIGRATIONS)}. Upgrade offpolicy."
        )
    for step in MIGRATIONS[version:]:
        step(connection)
    if version < len(MIGRATIONS):
        connection.execute(meta.delete().where(meta.c.name == "schema"))
        connection.execute(meta.insert().values(name="schema", value=str(len(MIGRATIONS))))
