"""All records that a database knows, as the bucket has them: what a bundle is made of."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import select

from deltavc import canonical
from deltavc.lineage.database import chunks, reading
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
    with reading(history.engine) as db:
        version_rows = list(chunks(db.execute(select(versions.c.pk).order_by(versions.c.pk)).scalars()))
        edge_rows = list(chunks(db.execute(select(edges.c.pk).order_by(edges.c.pk)).scalars()))
        names = db.execute(select(refs.c.name).order_by(refs.c.name)).scalars().all()
    for chunk in version_rows:
        with reading(history.engine) as db:
            infos = load(db, chunk)
        yield from ((info.record.key, info.record.body) for info in infos if info.record.id == info.id)
    wanted = select(edges.c.id, versions.c.id.label("target"), edges.c.body)
    for chunk in edge_rows:
        query = wanted.join(versions, versions.c.pk == edges.c.target).where(edges.c.pk.in_(chunk))
        with reading(history.engine) as db:
            rows = db.execute(query.order_by(edges.c.pk)).all()
        for edge, target, body in rows:
            if canonical.content_id(body) == edge:
                yield edge_key(target, edge), body
    for name in names:
        yield from ((entry.key, entry.body) for entry in reversed(history.reflog(name)))
