"""Filling a database anew from the bucket, in one step for everybody who reads it.

    bucket ──> rows in a temporary SQLite file ──one transaction──> the database: every row out, those rows in

Until the transaction ends, readers see the rows that were there (on SQLite) or wait for it to end (on PostgreSQL).
When it does not end, because whoever runs it is killed, nothing has happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, delete, func, insert, select, text
from sqlalchemy.exc import OperationalError

from deltavc.lineage import schema
from deltavc.lineage.database import BUSY_SECONDS, open_database, reading, writing
from deltavc.lineage.index import Index
from deltavc.lineage.tables import metadata, repository

Progress = Callable[[str, int, int], None]

_TABLES = [table for table in metadata.sorted_tables if table is not repository]
_ROWS = 2000


def rebuild(index: Index, repository_id: str, directory: Path, progress: Progress) -> None:
    """Replace all that the index's database knows by what its bucket says.

    Args:
        directory: where a temporary database may lie.
        progress: is told what is being done, how much of it is done, and how much there is (0: not known).

    Raises:
        CorruptObject, MissingObject: a record in the bucket is damaged or gone; the database is as it was.
        StoreError; DatabaseUnavailable: the same.
    """
    target = index.engine
    engine = open_database(directory / "rebuilt.db")
    try:
        schema.prepare(engine)
        fresh = Index(engine, index.bucket, repository_id)
        fresh.catch_up_all(lambda moves: progress("reading the bucket", moves, 0))
        with reading(engine) as source:
            total = sum(source.execute(select(func.count()).select_from(table)).scalar_one() for table in _TABLES)
            done = 0
            with _emptied(target) as db:
                for table in _TABLES:
                    rows = source.execution_options(yield_per=_ROWS).execute(select(table).order_by(*table.primary_key))
                    for some in rows.mappings().partitions(_ROWS):
                        db.execute(insert(table), [dict(row) for row in some])
                        done += len(some)
                        progress("writing rows", done, total)
    finally:
        engine.dispose()


@contextmanager
def _emptied(engine: Engine) -> Iterator[Connection]:
    """A writing transaction that begins with no rows at all."""
    with writing(engine, unchecked=True) as db:  # checked, SQLite would look for references to each row that goes
        if engine.dialect.name == "postgresql":
            names = ", ".join(table.name for table in _TABLES)
            _lock(db, names)
            db.execute(text(f"TRUNCATE {names}"))
        else:
            for table in _TABLES:
                db.execute(delete(table))
        yield db


def _lock(db: Connection, names: str) -> None:
    """Lock tables against readers, letting go again whenever a reader holds one for long and may wait for another."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            with db.begin_nested():
                db.execute(text("SET LOCAL lock_timeout = '300ms'"))
                db.execute(text(f"LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE"))
                db.execute(text("SET LOCAL lock_timeout TO DEFAULT"))
                return
        except OperationalError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)
