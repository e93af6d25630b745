"""Filling a database anew from the bucket, in one step for everybody who reads it.

    bucket ──> rows in a temporary SQLite file ──one transaction──> the database: every row out, those rows in
                   └── follows what others indexed meanwhile, once more inside the transaction

Until the transaction ends, readers see the rows that were there (on SQLite) or wait for it to end (on PostgreSQL).
When it does not end, because whoever runs it is killed, nothing has happened. Others that write to the database wait
for the transaction; so what they have indexed when it begins is all that anybody may have seen, and the new rows have
it too: no ref goes back, no edge that somebody relies on is unknown for a while, and none that was dropped is there
again. What is known to have happened is only asked after, though: it is read from the bucket like everything else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, Engine, Select, delete, func, insert, select, text
from sqlalchemy.exc import OperationalError

from deltavc.lineage import schema
from deltavc.lineage.database import BUSY_SECONDS, chunks, open_database, reading, writing
from deltavc.lineage.index import Index
from deltavc.lineage.ingest import keys_of
from deltavc.lineage.tables import edges, metadata, refs, repository, versions

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
    engine = open_database(directory / "rebuilt.db")
    try:
        schema.prepare(engine)
        fresh = Index(engine, index.bucket, repository_id)
        with reading(index.engine) as db:
            before = _edge_ids(db)
        fresh.catch_up_all(lambda moves: progress("reading the bucket", moves, 0))
        with reading(index.engine) as db:
            moved = _moved(db, fresh)
        fresh.catch_up(moved)  # most of it while nobody has to wait
        with writing(index.engine, unchecked=True) as db:  # checked, SQLite would look for references to rows that go
            _follow(db, before, fresh)
            _empty(db)
            _copy(engine, db, progress)
    finally:
        engine.dispose()


def _moved(db: Connection, fresh: Index) -> list[str]:
    """The refs of a database that moved on from where a fresh index has them."""
    sequences = select(refs.c.name, refs.c.sequence)
    with reading(fresh.engine) as own:
        known = {row.name: row.sequence for row in own.execute(sequences)}
    return [row.name for row in db.execute(sequences) if row.sequence > known.get(row.name, 0)]


def _follow(db: Connection, before: set[str], fresh: Index) -> None:
    """Let a fresh index learn of what came to a database, or left it, since it had these edges."""
    fresh.catch_up(_moved(db, fresh))
    now = _edge_ids(db)
    fresh.drop(before - now)
    with reading(fresh.engine) as own:
        new = now - before - _edge_ids(own)
        targets = {row.edge: row.target for some in chunks(new) for row in db.execute(_targets(some))}
        known = keys_of(own, versions, targets.values())
    fresh.add([(target, edge) for edge, target in targets.items() if target in known])


def _targets(ids: list[str]) -> Select[tuple[str, str]]:
    ends = select(edges.c.id.label("edge"), versions.c.id.label("target"))
    return ends.join(versions, versions.c.pk == edges.c.target).where(edges.c.id.in_(ids))


def _edge_ids(db: Connection) -> set[str]:
    return set(db.execute(select(edges.c.id)).scalars())


def _copy(source: Engine, db: Connection, progress: Progress) -> None:
    """Copy all rows into tables that are empty."""
    with reading(source) as rebuilt:
        total = sum(rebuilt.execute(select(func.count()).select_from(table)).scalar_one() for table in _TABLES)
        done = 0
        for table in _TABLES:
            rows = rebuilt.execution_options(yield_per=_ROWS).execute(select(table).order_by(*table.primary_key))
            for some in rows.mappings().partitions(_ROWS):
                db.execute(insert(table), [dict(row) for row in some])
                done += len(some)
                progress("writing rows", done, total)


def _empty(db: Connection) -> None:
    """Remove all rows."""
    if db.dialect.name == "postgresql":
        names = ", ".join(table.name for table in _TABLES)
        _lock(db, names)
        db.execute(text(f"TRUNCATE {names}"))
    else:
        for table in _TABLES:
            db.execute(delete(table))


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
        except OperationalError as error:
            if error.connection_invalidated or time.monotonic() > deadline:
                raise
        time.sleep(0.05)
