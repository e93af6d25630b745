"""All records that a database knows, as the bucket has them: what a bundle is made of."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import select

from deltavc import canonical
from deltavc.lineage.database import CHUNK, reading
from deltavc.lineage.history import History
from deltavc.lineage.info import load
from deltavc.lineage.records import edge_key, layout_key
from deltavc.lineage.tables import edges, refs, versions


def num_moves(history: History) -> int:
    """How many moves of refs the database knows."""
    with reading(history.engine) as db:
        return sum(db.execute(select(refs.c.sequence)).scalars())


def records(history: History) -> Iterator[tuple[str, bytes]]:
    """Keys and bodies of layouts, versions, edges and moves of refs. A row that does not make its record is left out.

    Raises:
        DatabaseUnavailable
    """
    for layout in history.layouts():
        if (known := history.layout(layout)) is not None and known.id == layout:
            yield layout_key(layout), known.body
    yield from _versions(history)
    yield from _edges(history)
    with reading(history.engine) as db:
        names = db.execute(select(refs.c.name).order_by(refs.c.name)).scalars().all()
    for name in names:
        yield from ((entry.key, entry.body) for entry in reversed(history.reflog(name)))


def _versions(history: History) -> Iterator[tuple[str, bytes]]:
    last = 0
    while True:  # a transaction for some of them: a reader that holds one for long keeps others waiting
        with reading(history.engine) as db:
            pks = db.execute(select(versions.c.pk).where(versions.c.pk > last).order_by(versions.c.pk).limit(CHUNK))
            infos = load(db, found := list(pks.scalars()))
        if not found:
            return
        yield from ((info.record.key, info.record.body) for info in infos if info.record.id == info.id)
        last = found[-1]


def _edges(history: History) -> Iterator[tuple[str, bytes]]:
    wanted = select(edges.c.pk, edges.c.id, versions.c.id.label("target"), edges.c.body)
    wanted = wanted.join(versions, versions.c.pk == edges.c.target).order_by(edges.c.pk).limit(CHUNK)
    last = 0
    while True:
        with reading(history.engine) as db:
            rows = db.execute(wanted.where(edges.c.pk > last)).all()
        if not rows:
            return
        for row in rows:
            if canonical.content_id(row.body) == row.id:
                yield edge_key(row.target, row.id), row.body
        last = rows[-1].pk
