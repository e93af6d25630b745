"""What a choice of versions and edges is made from: histories, metrics, moves, and what every edge takes.

These read whole histories, or everything, so they take time in proportion to it; clean-up asks them once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Table, select

from deltavc import canonical
from deltavc.lineage import graph, info
from deltavc.lineage.database import chunks, reading
from deltavc.lineage.history import History
from deltavc.lineage.plan import cost
from deltavc.lineage.records import EdgeRecord
from deltavc.lineage.tables import edge_packs, edges, metrics, packs, parents, ref_entries, versions


@dataclass(frozen=True, slots=True)
class Outline:
    """An edge, and what it takes: cost is that of walking it, packs are those it names."""

    id: str
    base: str | None
    target: str
    nbytes: int
    cost: int
    packs: tuple[str, ...]

    @classmethod
    def of(cls, edge: EdgeRecord) -> Outline:
        names = tuple(sorted({use.pack for use in edge.packs}))
        return cls(edge.id, edge.base, edge.target, edge.nbytes, cost(edge.nbytes, edge.changes), names)


def outlines(history: History) -> list[Outline]:
    """Every edge that is indexed."""
    base, target = versions.alias(), versions.alias()
    wanted = (
        select(edges.c.pk, edges.c.id, base.c.id.label("base"), target.c.id.label("target"))
        .add_columns(edges.c.nbytes, edges.c.changes)
        .outerjoin(base, base.c.pk == edges.c.base)
        .join(target, target.c.pk == edges.c.target)
        .order_by(edges.c.id)
    )
    with reading(history.engine) as db:
        names = {row.pk: row.id for row in db.execute(select(packs.c.pk, packs.c.id))}
        used: dict[int, list[str]] = defaultdict(list)
        for edge, pack in db.execute(select(edge_packs.c.edge, edge_packs.c.pack)):
            used[edge].append(names[pack])
        return [
            Outline(row.id, row.base, row.target, row.nbytes, cost(row.nbytes, row.changes), tuple(used[row.pk]))
            for row in db.execute(wanted)
        ]


def edge_packs_by_id(history: History) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Ids of edges and keys of the packs they name, from those rows that hold the very bytes that the id is of."""
    for pks in _in_chunks(history, edges):
        with reading(history.engine) as db:
            rows = db.execute(select(edges.c.id, edges.c.body).where(edges.c.pk.in_(pks))).all()
        for edge, body in rows:
            if canonical.content_id(body) == edge:
                yield edge, tuple(use.key for use in EdgeRecord.trusted(body).packs)


def files_by_id(history: History) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Ids of versions and keys of the files they name, from those rows that make the very bytes that the id is of."""
    for pks in _in_chunks(history, versions):
        with reading(history.engine) as db:
            found = info.load(db, pks)
        for version in found:
            if version.record.id == version.id:
                yield version.id, tuple(file.key for file in version.record.files.values())


def pack_sizes(history: History) -> dict[str, int]:
    """Bytes of every pack that an indexed edge names."""
    with reading(history.engine) as db:
        return {row.id: row.nbytes for row in db.execute(select(packs.c.id, packs.c.nbytes))}


def committed(history: History) -> set[str]:
    """Ids of all versions that were ever committed."""
    with reading(history.engine) as db:
        return set(db.execute(select(versions.c.id)).scalars())


def first_parents(history: History, head: str) -> list[tuple[str, int | None]]:
    """Ids and steps along first parents, `head` first. Raises UnknownRef."""
    with reading(history.engine) as db:
        chain = graph.first_parents(graph.known_place(db, head).pk)
        wanted = select(versions.c.id, versions.c.step).join(chain, chain.c.pk == versions.c.pk)
        return [(row.id, row.step) for row in db.execute(wanted.order_by(versions.c.depth.desc()))]


def metric_values(history: History, metric: str, ids: Iterable[str]) -> dict[str, float]:
    """The finite values of a metric that these versions have."""
    found: dict[str, float] = {}
    wanted = select(versions.c.id, metrics.c.value).join(metrics, metrics.c.version == versions.c.pk)
    wanted = wanted.where(metrics.c.name == metric, metrics.c.value.is_not(None))
    with reading(history.engine) as db:
        for chunk in chunks(ids):
            found |= {row.id: row.value for row in db.execute(wanted.where(versions.c.id.in_(chunk)))}
    return found


def since(history: History, time: str) -> list[str]:
    """Versions whose own time is this or later; times as records keep them."""
    with reading(history.engine) as db:
        return list(db.execute(select(versions.c.id).where(versions.c.time >= time)).scalars())


def left(history: History, time: str) -> list[str]:
    """Versions that a ref was at until this time or later, and then moved away from other than to a child."""
    child = select(parents.c.version).where(
        parents.c.version == ref_entries.c.new, parents.c.parent == ref_entries.c.old
    )
    wanted: Any = select(versions.c.id).join(ref_entries, ref_entries.c.old == versions.c.pk)
    with reading(history.engine) as db:
        return list(db.execute(wanted.where(ref_entries.c.moved_at >= time, ~child.exists()).distinct()).scalars())


def _in_chunks(history: History, table: Table) -> Iterator[list[int]]:
    with reading(history.engine) as db:
        pks = db.execute(select(table.c.pk).order_by(table.c.pk)).scalars().all()
    yield from chunks(pks)
