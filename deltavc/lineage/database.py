"""Connections to the index database: SQLite for one machine, PostgreSQL for a team.

Everything goes through two context managers, each one transaction:

    with reading(engine) as db:  ...      a consistent view
    with writing(engine) as db:  ...      alone: one writer at a time, whatever it reads stays true

Writers are serialised from their first statement (SQLite: BEGIN IMMEDIATE; PostgreSQL: an advisory lock), so
"insert what is not there" needs no retries however many processes index the same bucket.
"""

from __future__ import annotations

import os
import sqlite3
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import sqlalchemy
import zstandard
from sqlalchemy import Connection, event, text
from sqlalchemy import Engine as Engine  # for those above, who do not import sqlalchemy
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError, TimeoutError
from sqlalchemy.pool import QueuePool

from deltavc.errors import DatabaseUnavailable

BUSY_SECONDS = 30
"""How long a transaction waits for another before DatabaseUnavailable."""

CHUNK = 500
"""Values in one IN list; SQLite once allowed 999 variables a statement."""

_WRITES = "deltavc_writes"
_ADVISORY_LOCK = 0x64656C7461766300  # "deltavc" in ASCII
_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def open_database(place: str | Path) -> Engine:
    """Make an engine for a database; nothing is connected to yet. `schema.prepare` checks what is in it.

    Args:
        place: sqlite:///relative.db, sqlite:////absolute.db, sqlite:// (in memory), postgresql://user@host/name; or
            the path of an SQLite file, which may hold characters that mean something in a URL.

    Raises:
        DatabaseUnavailable: not such a URL, or psycopg is not installed.
    """
    try:
        parsed = URL.create("sqlite", database=str(place)) if isinstance(place, Path) else make_url(place)
    except (ArgumentError, ValueError) as error:
        raise DatabaseUnavailable("(not a URL)", "a database is named by sqlite:///path or postgresql://...") from error
    if parsed.drivername in ("postgres", "postgresql"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    backend = parsed.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise DatabaseUnavailable(redact(parsed), "only sqlite:// and postgresql:// databases are supported")
    try:
        engine = _sqlite(parsed) if backend == "sqlite" else sqlalchemy.create_engine(parsed, pool_pre_ping=True)
    except NoSuchModuleError as error:
        raise DatabaseUnavailable(redact(parsed), str(error)) from error
    except ImportError as error:
        reason = f"{error.name} is not installed: pip install 'deltavc[postgres]'"
        raise DatabaseUnavailable(redact(parsed), reason) from error
    if not _in_memory(parsed):
        _engines.add(engine)
    return engine


def redact(url: URL | Engine) -> str:
    """The URL as errors and logs may show it: without its password and its options, which may name another."""
    url = url.url if isinstance(url, Engine) else url
    if url.get_backend_name() == "sqlite" and url.database and "%" not in url.database:
        return f"{url.drivername}:///{url.database}"  # a path to read; rendered, it is percent-encoded
    return url.set(query={}).render_as_string(hide_password=True)


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A transaction that only reads. Raises DatabaseUnavailable."""
    with _named_errors(engine), engine.connect() as connection, connection.begin():
        yield connection


@contextmanager
def writing(engine: Engine, *, unchecked: bool = False) -> Iterator[Connection]:
    """A transaction that no other writer runs beside.

    Args:
        unchecked: on SQLite, do not look whether foreign keys lead somewhere.

    Raises:
        DatabaseUnavailable
    """
    with _named_errors(engine), engine.connect() as connection:
        connection.execution_options(**{_WRITES: True})
        keys = _without_foreign_keys(connection) if unchecked else nullcontext()
        with keys, connection.begin():
            if engine.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
            yield connection


def chunks(values: Iterable[Any]) -> Iterator[list[Any]]:
    """The values in lists that fit into an IN."""
    pending = list(values)
    for start in range(0, len(pending), CHUNK):
        yield pending[start : start + CHUNK]


@contextmanager
def _named_errors(engine: Engine) -> Iterator[None]:
    try:
        yield
    except IntegrityError:
        raise  # two rows that contradict each other: a fault of ours, not of the database
    except (DBAPIError, TimeoutError) as error:
        reason = str(error.orig if isinstance(error, DBAPIError) else error).strip()
        if engine.url.password:
            reason = reason.replace(str(engine.url.password), "***")
        raise DatabaseUnavailable(redact(engine), reason) from error
    except zstandard.ZstdError as error:
        reason = f"a row of it is damaged ({error}); name an empty one, which is filled from the bucket"
        raise DatabaseUnavailable(redact(engine), reason) from error


def _sqlite(url: URL) -> Engine:
    options: dict[str, Any] = {"connect_args": {"timeout": BUSY_SECONDS}}
    if _in_memory(url):
        # The connection is the database: exactly one, which threads take in turns.
        options |= {"poolclass": QueuePool, "pool_size": 1, "max_overflow": 0, "pool_timeout": BUSY_SECONDS}
        options["connect_args"]["check_same_thread"] = False
    engine = sqlalchemy.create_engine(url, **options)
    event.listen(engine, "connect", _configure_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _in_memory(url: URL) -> bool:
    return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")


def _configure_sqlite(connection: sqlite3.Connection, record: object) -> None:
    connection.isolation_level = None  # transactions are begun by _begin_sqlite, not by the driver
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = NORMAL")  # a power failure may lose the last rows; the bucket has them
    _use_wal(connection)


def _use_wal(connection: sqlite3.Connection) -> None:
    """Readers beside a writer. Switching fails at once, without the busy timeout, while another process switches."""
    deadline = time.monotonic() + BUSY_SECONDS
    while connection.execute("PRAGMA journal_mode").fetchone()[0] not in ("wal", "memory"):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            # A disk that is full or read-only stays so; only the low byte tells the kind.
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


@contextmanager
def _without_foreign_keys(connection: Connection) -> Iterator[None]:
    """SQLite takes this only between transactions, so it is said to the driver's connection."""
    if connection.dialect.name != "sqlite":
        yield
        return
    driver: Any = connection.connection.driver_connection
    driver.execute("PRAGMA foreign_keys = OFF")
    try:
        yield
    finally:
        driver.execute("PRAGMA foreign_keys = ON")


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _forget_connections() -> None:
    """A forked child must neither use nor close the connections of its parent."""
    for engine in list(_engines):
        engine.dispose(close=False)


os.register_at_fork(after_in_child=_forget_connections)
