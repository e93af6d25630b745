"""All that a database holds, by id: to compare it with a bucket, and to give back what a bucket lost.

Records come out as they are stored in the bucket. Whoever writes one there again compares it with its name first.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select

from deltavc import canonical
from deltavc.errors import BadPayload, DatabaseUnavailable
from deltavc.lineage.database import chunks, reading, redact
from deltavc.lineage.history import History
from deltavc.lineage.info import load
from deltavc.lineage.records import ref_prefix
from deltavc.lineage.tables import edges, layouts, refs, versions


@dataclass(frozen=True, slots=True)
class Contents:
    """versions, layouts: ids. edges: target by edge id. heads: sequence and version of the last entry of every ref.

    damaged: by table, ids of rows that do not make the record of this id.
    """

    versions: frozenset[str]
    layouts: frozenset[str]
    edges: dict[str, str]
    heads: dict[str, tuple[int, str | None]]
    damaged: dict[str, frozenset[str]]


def contents(history: History, *, compare: bool = False) -> Contents:
    """What the database knows. compare: also put every record together and compare it with its id.

    Raises:
        DatabaseUnavailable
    """
    with reading(history.engine) as db:
        to = select(edges.c.id, versions.c.id.label("target")).join(versions, versions.c.pk == edges.c.target)
        at = select(refs.c.name, refs.c.sequence, versions.c.id).outerjoin(versions, versions.c.pk == refs.c.version)
        return Contents(
            frozenset(db.execute(select(versions.c.id)).scalars()),
            frozenset(db.execute(select(layouts.c.id)).scalars()),
            {row.id: row.target for row in db.execute(to)},
            {name: (sequence, version) for name, sequence, version in db.execute(at)},
            _damaged(db) if compare else {},
        )


def version_body(history: History, version: str) -> bytes | None:
    """The record of a version as the bucket has it, if the database knows it."""
    with reading(history.engine) as db:
        known = db.execute(select(versions.c.id).where(versions.c.id == version)).scalar()
    return None if known is None else history.version(version).record.body


def layout_body(history: History, layout: str) -> bytes | None:
    """The same of a layout."""
    try:
        found = history.layout(layout)
    except BadPayload as error:
        raise DatabaseUnavailable(redact(history.engine), f"a row of it is damaged: {error.reason}") from error
    return None if found is None else found.body


def edge_body(history: History, edge: str) -> bytes | None:
    """The same of an edge."""
    with reading(history.engine) as db:
        return db.execute(select(edges.c.body).where(edges.c.id == edge)).scalar()


def entry_body(history: History, key: str) -> bytes | None:
    """The same of a ref entry, by its key in the bucket."""
    with reading(history.engine) as db:
        names = db.execute(select(refs.c.name)).scalars().all()
    ref = next((name for name in names if key.startswith(ref_prefix(name))), None)
    entries = [] if ref is None else history.reflog(ref)
    return next((entry.body for entry in entries if entry.key == key), None)


def _damaged(db: Connection) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {"versions": set(), "edges": set(), "layouts": set()}
    for chunk in chunks(db.execute(select(versions.c.pk).order_by(versions.c.pk)).scalars()):
        found["versions"].update(info.id for info in load(db, chunk) if info.record.id != info.id)
    for table, name in ((edges, "edges"), (layouts, "layouts")):
        for chunk in chunks(db.execute(select(table.c.pk).order_by(table.c.pk)).scalars()):
            rows = db.execute(select(table.c.id, table.c.body).where(table.c.pk.in_(chunk)))
            found[name].update(row.id for row in rows if canonical.content_id(row.body) != row.id)
    return {name: frozenset(ids) for name, ids in found.items()}
