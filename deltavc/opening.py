"""Opening repositories: the store, its cache, the marker object and the database that follows it."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from deltavc import canonical
from deltavc.errors import (
    BadPayload,
    CorruptObject,
    DatabaseNeeded,
    FormatUnsupported,
    NotARepository,
    ObjectMissing,
    RepositoryExists,
    StoreError,
    WrongDatabase,
)
from deltavc.lineage import schema
from deltavc.lineage.database import open_database, redact
from deltavc.lineage.index import Index, indexed_repository
from deltavc.lineage.lazy import LazyIndex
from deltavc.repo import Repo
from deltavc.store.cache import CachedStore
from deltavc.store.objects import Store, open_store
from deltavc.store.probe import PROBES, probe

if TYPE_CHECKING:
    from deltavc.lineage.database import Engine

log = logging.getLogger(__name__)

MARKER = "deltavc.json"
FORMAT = 1
DATABASE_FILE = "lineage.db"
NO_DATABASE = "none"
CACHE_BYTES = 10 << 30
"""What the local copies of remote stores' objects may take, all repositories of a user together."""


def init(url: str | Path, db: str | None = None, storage_options: Mapping[str, Any] | None = None) -> Repo:
    """Create a repository and open it.

    Args:
        url: a local path, file:///path, memory://name or s3://bucket/prefix.
        db: an SQLAlchemy URL of SQLite or PostgreSQL, or "none". By default beside a local repository, in memory for
            memory:// and where that may not be written, none for a remote one. Without a database, what would need all
            of history raises DatabaseNeeded.
        storage_options: for S3, what s3fs.S3FileSystem takes.

    Raises:
        RepositoryExists: there is one already, or other files are in its place.
        StoreUnfit: the store does not honour create-if-absent, or there is no store for this URL.
        WrongDatabase, SchemaOutdated, SchemaTooNew, DatabaseUnavailable; StoreError
    """
    store = open_store(url, storage_options)
    database = _database_place(store, db)
    store.prepare()
    if _read_marker(store) is not None:
        raise RepositoryExists(store.url)
    # A database without its repository, and probes, are what an interrupted `init` leaves.
    taken = next((item.key for item in store.list("") if not item.key.startswith((DATABASE_FILE, PROBES))), None)
    if taken is not None:
        raise RepositoryExists(store.url, f"it is not empty: it holds {taken}")
    probe(store)
    engine = None if database is None else _prepared(database)
    repository_id = secrets.token_hex(16)
    if engine is not None and (other := indexed_repository(engine)) is not None:
        raise WrongDatabase(redact(engine), other, "a new one")
    if not store.create(MARKER, canonical.sealed({"format": FORMAT, "repository": repository_id})):
        raise RepositoryExists(store.url)
    return _open(store, engine, repository_id)


def open_repository(url: str | Path, db: str | None = None, storage_options: Mapping[str, Any] | None = None) -> Repo:
    """Open a repository. Takes what `init` takes.

    An empty database is filled from the bucket.

    Raises:
        NotARepository: there is none.
        FormatUnsupported: it has a format of another release.
        WrongDatabase, SchemaOutdated, SchemaTooNew, DatabaseUnavailable; StoreError
    """
    store = open_store(url, storage_options)
    repository_id = _read_marker(store)
    if repository_id is None:
        raise _no_repository(store)
    database = _database_place(store, db)
    return _open(store, None if database is None else _prepared(database), repository_id)


def upgrade_database(
    url: str | Path, db: str | None = None, storage_options: Mapping[str, Any] | None = None
) -> tuple[str | None, str]:
    """Bring a repository's database to this release's schema. Returns the revisions before and after.

    Raises:
        NotARepository: there is none; no database is made for it.
        SchemaTooNew, DatabaseNeeded, DatabaseUnavailable; StoreError
    """
    store = open_store(url, storage_options)
    if _read_marker(store) is None:
        raise _no_repository(store)
    database = _database_place(store, db)
    if database is None:
        raise DatabaseNeeded(store.url)
    return schema.upgrade(open_database(database))


def _no_repository(store: Store) -> NotARepository:
    found: set[str] = set()
    with suppress(StoreError):  # a directory that is not there, a bucket that may not be listed
        found.update(store.prefixes())
    if not {"refs/", "versions/"} <= found:
        return NotARepository(store.url)
    return NotARepository(store.url, f"the rest of a repository is there, but {MARKER} is gone: restore that object")


def _read_marker(store: Store) -> str | None:
    """The repository's id, or None where there is no repository."""
    try:
        body = store.get(MARKER, 0, canonical.MAX_BYTES + 1)
    except ObjectMissing:
        return None
    try:
        marker = canonical.loads(body)
        found = marker["format"]
        if found != FORMAT or type(found) is not int:
            raise FormatUnsupported(store.url, str(found), FORMAT)
        repository_id = canonical.unsealed(body)["repository"]
    except (BadPayload, KeyError, TypeError) as error:
        raise CorruptObject(MARKER, f"it does not say what it should: {error}") from error
    if not isinstance(repository_id, str):
        raise CorruptObject(MARKER, "the repository's id is not a string")
    return repository_id


def _database_place(store: Store, db: str | None) -> str | Path | None:
    """Where the database is; None for none."""
    if db == NO_DATABASE or (db is None and store.remote):
        return None
    if db is not None:
        return db
    if store.url.startswith("memory://"):
        return "sqlite://"
    file = Path(store.url, DATABASE_FILE)
    if any(place.exists() and not os.access(place, os.W_OK) for place in (file.parent, file)):
        log.info("%s cannot be written to: all of the history is read into memory", file)
        return "sqlite://"
    return file


def _prepared(database: str | Path) -> Engine:
    engine = open_database(database)
    schema.prepare(engine)
    return engine


def _open(store: Store, engine: Engine | None, repository_id: str) -> Repo:
    if store.remote:
        store = CachedStore(store, platformdirs.user_cache_dir("deltavc"), CACHE_BYTES)
    index = LazyIndex(store, store.url) if engine is None else Index(engine, store, repository_id)
    return Repo(store, index, repository_id)
