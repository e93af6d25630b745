"""What can be asked of the database: versions, refs, logs, totals. All of it answers for what is indexed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Row, Select, func, select

from deltavc.layout import Layout
from deltavc.lineage import graph, info
from deltavc.lineage.database import reading, redact
from deltavc.lineage.info import VersionInfo
from deltavc.lineage.names import BRANCHES, TAGS
from deltavc.lineage.plan import Surroundings
from deltavc.lineage.records import EdgeRecord, RefEntry
from deltavc.lineage.surroundings import IndexedSurroundings
from deltavc.lineage.tables import edges, layouts, metrics, packs, ref_entries, refs, versions

_PAGE = 256
"""Versions of a log that are read at once."""

_old = versions.alias("old_version")
_new = versions.alias("new_version")


@dataclass(frozen=True, slots=True)
class Totals:
    """How much there is. Bytes are those of objects: packs, and files kept with versions."""

    num_versions: int
    num_branches: int
    num_tags: int
    num_layouts: int
    num_edges: int
    num_snapshots: int
    num_packs: int
    pack_bytes: int
    file_bytes: int


class History:
    """Reads the database. Versions go by id, refs by full name."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def engine(self) -> Engine:
        """The database."""
        return self._engine

    @property
    def place(self) -> str | None:
        """Where the database is, without a password."""
        return redact(self._engine)

    def close(self) -> None:
        """Close the connections to the database."""
        self._engine.dispose()

    @contextmanager
    def surroundings(self, forward_only: bool) -> Iterator[Surroundings]:
        """What a plan asks about the edges around a version; with `forward_only` in their own direction alone."""
        with reading(self._engine) as db:
            yield IndexedSurroundings(db, forward_only)

    def version(self, version: str) -> VersionInfo:
        """Raises UnknownRef."""
        return self.versions([version])[0]

    def versions(self, ids: Sequence[str]) -> list[VersionInfo]:
        """Several at once, in the order given. Raises UnknownRef."""
        with reading(self.engine) as db:
            return info.load(db, [graph.known_place(db, version).pk for version in ids])

    def starting_with(self, prefix: str, limit: int = 20) -> list[str]:
        """Ids of versions that start with these hex digits, in order."""
        # Every digit sorts before g, so the ids that start with "12" lie between "12" and "12g".
        wanted = select(versions.c.id).where(versions.c.id >= prefix, versions.c.id < prefix + "g")
        with reading(self.engine) as db:
            return list(db.execute(wanted.order_by(versions.c.id).limit(limit)).scalars())

    def with_fingerprint(self, fingerprint: str) -> list[str]:
        """Ids of versions whose weights have this fingerprint, newest first."""
        wanted = select(versions.c.id).where(versions.c.fingerprint == fingerprint)
        with reading(self.engine) as db:
            return list(db.execute(wanted.order_by(versions.c.clock.desc(), versions.c.id.desc())).scalars())

    def layout(self, layout: str) -> Layout | None:
        """A layout that some version or edge has."""
        with reading(self.engine) as db:
            body = db.execute(select(layouts.c.body).where(layouts.c.id == layout)).scalar()
        return None if body is None else Layout.parse(body)

    def layouts(self) -> list[str]:
        """Ids of all layouts: those that a state could have been committed with."""
        with reading(self.engine) as db:
            return list(db.execute(select(layouts.c.id).order_by(layouts.c.id)).scalars())

    def edges_into(self, version: str) -> list[EdgeRecord]:
        """Every edge that leads to a version, in the order of their ids."""
        wanted = select(edges.c.body).join(versions, versions.c.pk == edges.c.target)
        with reading(self.engine) as db:
            bodies = db.execute(wanted.where(versions.c.id == version).order_by(edges.c.id)).scalars().all()
        return [EdgeRecord.trusted(body) for body in bodies]

    def head(self, ref: str) -> RefEntry | None:
        """The last entry of a ref that is indexed; its `new` is None when the ref was deleted."""
        with reading(self.engine) as db:
            return last_entry(db, ref)

    def branches(self) -> dict[str, str]:
        """The version that every branch is at, by name, in the order of names."""
        return self._refs(BRANCHES)

    def tags(self) -> dict[str, str]:
        """The version that every tag is at, by name, in the order of names."""
        return self._refs(TAGS)

    def reflog(self, ref: str, limit: int | None = None) -> list[RefEntry]:
        """The moves of a ref, newest first."""
        with reading(self.engine) as db:
            rows = _entries(ref).order_by(ref_entries.c.sequence.desc()).limit(limit)
            return [_entry(row) for row in db.execute(rows)]

    def log(
        self,
        starts: Iterable[str] | None,
        limit: int | None = None,
        *,
        first_parent: bool = False,
        exclude: Iterable[str] = (),
    ) -> Iterator[VersionInfo]:
        """Versions newest first, none before one of its children.

        They are read as they are asked for, in pages, each in a transaction of its own: however long history is, it
        takes little memory, and no transaction stays open while somebody reads.

        Args:
            starts: where to start; None for every version that was ever committed, rolled back or not.
            limit: how many at most.
            first_parent: follow only the first parent of each.
            exclude: leave out these and all their ancestors (A of `A..B`); not with `starts=None`.

        Raises:
            UnknownRef: an id that is not indexed.
        """
        size = _PAGE if limit is None else min(_PAGE, limit)
        pages = self._pages_of_all(size) if starts is None else self._pages(starts, exclude, first_parent, size)
        return islice(chain.from_iterable(pages), limit)

    def sampled(self, head: str, most: int) -> tuple[int, list[VersionInfo]]:
        """How many versions the first-parent history of `head` has, and `most` of them (2 or more), evenly apart.

        They are in order, oldest first, the first and the last among them; all of them where there are no more. Takes a
        short query for each, however long history is. Raises UnknownRef.
        """
        with reading(self.engine) as db:
            start = graph.known_place(db, head)
            total = start.depth + 1
            count = min(most, total)
            depths = [number * start.depth // max(count - 1, 1) for number in range(count)]
            found = (graph.ancestor(db, start.pk, depth) for depth in depths)
            return total, info.load(db, [pk for pk in found if pk is not None])

    def ancestor(self, version: str, steps: int) -> str | None:
        """The version `steps` back along first parents, or None when there are fewer. Raises UnknownRef."""
        with reading(self.engine) as db:
            start = graph.known_place(db, version)
            found = graph.ancestor(db, start.pk, start.depth - steps) if 0 <= steps <= start.depth else None
            return None if found is None else graph.ids_of(db, [found])[found]

    def with_step(self, head: str, step: int) -> list[str]:
        """Versions with this step on the first-parent history of `head`, newest first. Raises UnknownRef."""
        with reading(self.engine) as db:
            found = graph.with_step(db, graph.known_place(db, head), step)
            ids = graph.ids_of(db, found)
            return [ids[pk] for pk in found]

    def with_step_anywhere(self, step: int, limit: int) -> list[str]:
        """Versions with this step on any branch or none, newest first."""
        wanted = select(versions.c.id).where(versions.c.step == step)
        with reading(self.engine) as db:
            return list(db.execute(wanted.order_by(versions.c.pk.desc()).limit(limit)).scalars())

    def extreme(self, head: str, metric: str, *, highest: bool) -> str | None:
        """The version on the first-parent history of `head` where a metric is highest or lowest; the newest such.

        NaN and infinities do not count. None when no version there has the metric. Raises UnknownRef.
        """
        with reading(self.engine) as db:
            found = graph.extreme(db, graph.known_place(db, head), metric, highest)
            return None if found is None else graph.ids_of(db, [found])[found]

    def metric_names(self) -> list[str]:
        """Every metric that some version has, in order."""
        with reading(self.engine) as db:
            return list(db.execute(select(metrics.c.name).distinct().order_by(metrics.c.name)).scalars())

    def totals(self) -> Totals:
        """Count everything. Takes time in proportion to the number of versions."""
        with reading(self.engine) as db:

            def one(column: ColumnElement[int], *where: ColumnElement[bool]) -> int:
                return db.execute(select(column).where(*where)).scalar_one()

            return Totals(
                num_versions=one(func.count(versions.c.pk)),
                num_branches=one(func.count(refs.c.version), refs.c.name.like(f"{BRANCHES}%")),
                num_tags=one(func.count(refs.c.version), refs.c.name.like(f"{TAGS}%")),
                num_layouts=one(func.count(layouts.c.pk)),
                num_edges=one(func.count(edges.c.pk)),
                num_snapshots=one(func.count(edges.c.pk), edges.c.base.is_(None)),
                num_packs=one(func.count(packs.c.pk)),
                pack_bytes=int(one(func.coalesce(func.sum(packs.c.nbytes), 0))),
                file_bytes=int(one(func.coalesce(func.sum(versions.c.new_file_bytes), 0))),
            )

    def _pages(
        self, starts: Iterable[str], exclude: Iterable[str], first_parent: bool, size: int
    ) -> Iterator[list[VersionInfo]]:
        from_, without = list(starts), list(exclude)
        while from_:
            with reading(self.engine) as db:
                shown, hidden = ([graph.known_place(db, version).pk for version in ids] for ids in (from_, without))
                walk = graph.NewestFirst(db, shown, hidden, first_parent)
                page = info.load(db, list(islice(walk, size)))
                from_, without = walk.frontier
            yield page

    def _pages_of_all(self, size: int) -> Iterator[list[VersionInfo]]:
        after: tuple[int, str] | None = None
        while True:
            with reading(self.engine) as db:
                found, after = graph.latest(db, size, after)
                page = info.load(db, found)
            yield page
            if after is None:
                return

    def _refs(self, kind: str) -> dict[str, str]:
        wanted = select(refs.c.name, versions.c.id).join(versions, versions.c.pk == refs.c.version)
        with reading(self.engine) as db:
            found = db.execute(wanted.where(refs.c.name.like(f"{kind}%"))).all()
        return {name.removeprefix(kind): version for name, version in sorted(found)}


def last_entry(db: Connection, ref: str) -> RefEntry | None:
    """The last entry of a ref that is indexed."""
    row = db.execute(_entries(ref).order_by(ref_entries.c.sequence.desc()).limit(1)).one_or_none()
    return None if row is None else _entry(row)


def _entries(ref: str) -> Select[Any]:
    return (
        select(ref_entries, _old.c.id.label("old_id"), _new.c.id.label("new_id"))
        .outerjoin(_old, _old.c.pk == ref_entries.c.old)
        .outerjoin(_new, _new.c.pk == ref_entries.c.new)
        .where(ref_entries.c.ref == ref)
    )


def _entry(row: Row[Any]) -> RefEntry:
    return RefEntry(row.ref, row.sequence, row.old_id, row.new_id, row.who, row.moved_at, row.why, row.write_id)
