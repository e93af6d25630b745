"""The index: a database that follows a bucket.

    bucket:    refs/…/1 ─ 2 ─ 3 ─ 4 ─ 5          entry 5 leads to versions, versions to layouts and edges
    database:  refs/…/1 ─ 2 ─ 3                  catch_up() reads entries 4 and 5 and what they lead to

Following a ref costs one request when nothing is new. Everything read for a batch of entries is inserted in
one transaction, so the database is at some moment of the bucket's past, never between two.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from sqlalchemy import Engine, insert, select

from deltavc.errors import MissingObject, WrongDatabase
from deltavc.layout import Layout
from deltavc.lineage.bucket import Bucket, listed_edges, read_edge, read_edges, read_layout, read_version
from deltavc.lineage.bundles import bundled
from deltavc.lineage.database import reading, redact, writing
from deltavc.lineage.drops import Drops
from deltavc.lineage.history import History, last_entry
from deltavc.lineage.ingest import Batch, Behind, delete_edges, insert_batch, keys_of
from deltavc.lineage.records import DROPS, EDGES, EdgeRecord, RefEntry, VersionRecord
from deltavc.lineage.refs import Refs
from deltavc.lineage.tables import edges as edges_table
from deltavc.lineage.tables import layouts, refs, repository, versions

log = logging.getLogger(__name__)

_READERS = 32
_BATCH = 256

_MANY = 512
"""Moves after which it is taken that many more follow, so that bundles are looked for."""

_T = TypeVar("_T")
_R = TypeVar("_R")


class Index(History):
    """The database of one repository, and the bucket it follows. Safe to use from many threads and processes."""

    def __init__(self, engine: Engine, bucket: Bucket, repository_id: str) -> None:
        """Bind a database, whose schema was prepared, to a repository.

        Raises:
            WrongDatabase: it belongs to another repository.
            DatabaseUnavailable: it cannot be reached.
        """
        super().__init__(engine)
        self.bucket = bucket
        self.refs = Refs(bucket)
        found = indexed_repository(engine)
        if found is None:
            with writing(engine) as db:
                found = db.execute(select(repository.c.id)).scalar()
                if found is None:
                    db.execute(insert(repository).values(id=repository_id))
                    found = repository_id
        if found != repository_id:
            raise WrongDatabase(redact(engine), found, repository_id)

    def catch_up(self, refs: Iterable[str] | None = None) -> None:
        """Read what was added to these refs (None: to those that are known) since the database last followed them.

        Raises:
            CorruptObject, MissingObject: something that an entry leads to is damaged or gone.
            StoreError, DatabaseUnavailable
        """
        known = self._known() if refs is None else {ref: self.head(ref) for ref in refs}
        self._catch_up(known)

    def catch_up_all(self, progress: Callable[[int], None] | None = None) -> None:
        """Catch up, and find refs that are new. This lists the refs. Raises what `catch_up` raises.

        Args:
            progress: told, from time to time, how many moves of refs were indexed.
        """
        known = self._known()
        self._catch_up(dict.fromkeys(self.refs.names(known)) | known, progress)

    def refresh(self) -> None:
        """Learn of edges to known versions that others added or dropped. This lists everything under edges/ and drops/.

        Raises:
            CorruptObject: an edge that was added is damaged.
            StoreError, DatabaseUnavailable
        """
        listed = {edge: target for target, edge in listed_edges(self.bucket, EDGES)}
        dropped = {edge for _, edge in listed_edges(self.bucket, DROPS)}  # last: what it has is dropped for good
        with reading(self.engine) as db:
            known = set(db.execute(select(edges_table.c.id)).scalars())
        self.drop(known & dropped)
        with reading(self.engine) as db:
            new = sorted((target, edge) for edge, target in listed.items() if edge not in known | dropped)
            targets = keys_of(db, versions, {target for target, _ in new})
        new = [item for item in new if item[0] in targets]  # those of other versions come with their versions
        self.add(new)
        log.debug("indexed %d edges that were added, removed %d", len(new), len(known & dropped))

    def add(self, edges: Sequence[tuple[str, str]]) -> None:
        """Read edges, given as target and id, to versions that are indexed. Those that are gone are passed over.

        Raises:
            CorruptObject: one is damaged.
            StoreError, DatabaseUnavailable
        """
        with ThreadPoolExecutor(_READERS) as pool:
            source = _Source(self.bucket, pool)
            for start in range(0, len(edges), _BATCH):
                read = source.each(edges[start : start + _BATCH], lambda item: self._added(*item))
                self.record([], edges=[edge for edge in read if edge is not None])

    def drop(self, edges: Collection[str]) -> None:
        """Forget edges by their ids; ids that are not indexed are ignored. Raises DatabaseUnavailable."""
        if edges:
            with writing(self.engine) as db:
                delete_edges(db, edges)

    def record(
        self,
        entries: Sequence[RefEntry],
        versions: Sequence[VersionRecord] = (),
        edges: Sequence[EdgeRecord] = (),
        layouts: Sequence[Layout] = (),
    ) -> None:
        """Index moves that were just made, from what their writer still holds. Without moves: edges that were added.

        They may have been indexed already. Where the database lacks something before them, it catches up first.

        Raises:
            DatabaseUnavailable: they are in the bucket all the same; a later `catch_up` finds moves, `refresh` edges.
        """
        try:
            with writing(self.engine) as db:
                insert_batch(db, Batch(versions, layouts, edges, entries))
        except Behind:
            if entries:
                self.catch_up({entry.ref for entry in entries})
                return
            self.catch_up_all()
            with writing(self.engine) as db:
                insert_batch(db, Batch(edges=edges))

    def note(
        self,
        entries: Sequence[RefEntry],
        versions: Sequence[VersionRecord] = (),
        edges: Sequence[EdgeRecord] = (),
        layouts: Sequence[Layout] = (),
    ) -> None:
        """Index moves that have happened, if that can be done: a failure is logged, and made good later."""
        try:
            self.record(entries, versions, edges, layouts)
        except Exception as error:  # whatever it is, what has happened must not be told as a failure
            log.warning("the bucket has it, but the database is behind and will catch up: %s", error)

    def _added(self, target: str, edge: str) -> EdgeRecord | None:
        """An edge that was listed, if it is there still."""
        with contextlib.suppress(MissingObject):
            return read_edge(self.bucket, target, edge)
        return None

    def _known(self) -> dict[str, RefEntry | None]:
        with reading(self.engine) as db:
            names = db.execute(select(refs.c.name).order_by(refs.c.name)).scalars().all()
            return {name: last_entry(db, name) for name in names}

    def _catch_up(self, known: dict[str, RefEntry | None], progress: Callable[[int], None] | None = None) -> None:
        done, looked = 0, False
        with contextlib.ExitStack() as stack:
            source = _Source(self.bucket, stack.enter_context(ThreadPoolExecutor(_READERS)))
            for ref, entry in known.items() if len(known) == 1 else self._moved(known, source.pool):
                last = entry
                entries = source.refs.entries(ref, last)
                while batch := list(islice(entries, _BATCH)):
                    gathered = self._gather(batch, source)
                    with writing(self.engine) as db:
                        insert_batch(db, gathered)
                    last = batch[-1]
                    log.debug("indexed %d moves of %s up to %d", len(batch), ref, last.sequence)
                    done += len(batch)
                    if progress is not None:
                        progress(done)
                    if done >= _MANY and not looked:
                        looked = True
                        source = _Source(stack.enter_context(bundled(self.bucket)), source.pool)
                        entries = source.refs.entries(ref, last)

    def _moved(self, known: dict[str, RefEntry | None], pool: ThreadPoolExecutor) -> list[tuple[str, RefEntry | None]]:
        """Those refs that have entries after the known ones."""
        new = pool.map(lambda item: next(self.refs.entries(*item), None), known.items())
        return [item for item, entry in zip(known.items(), new, strict=True) if entry is not None]

    def _gather(self, entries: list[RefEntry], source: _Source) -> Batch:
        """Read all that these entries lead to and the database does not have."""
        found: dict[str, VersionRecord] = {}
        edges: list[EdgeRecord] = []
        wanted = {entry.new for entry in entries if entry.new is not None}
        while wanted := self._unknown(wanted - found.keys()):
            ids = sorted(wanted)
            found.update(zip(ids, source.each(ids, lambda version: read_version(source.bucket, version)), strict=True))
            into = source.each(ids, lambda version: read_edges(source.bucket, version, source.drops.of))
            new_edges = [edge for some in into for edge in some]
            edges += new_edges
            wanted = {parent for version in ids for parent in found[version].parents}
            wanted |= {edge.base for edge in new_edges if edge.base is not None}
        used = {record.layout: version for version, record in found.items()}
        with reading(self.engine) as db:
            missing = sorted(used.keys() - keys_of(db, layouts, used))
        read = source.each(missing, lambda layout: read_layout(source.bucket, layout, used[layout]))
        return Batch(list(found.values()), list(read), edges, entries)

    def _unknown(self, ids: set[str]) -> set[str]:
        if not ids:
            return ids
        with reading(self.engine) as db:
            return ids - keys_of(db, versions, ids).keys()


class _Source:
    """Where records are read: the bucket, or its bundles before it, many at a time."""

    def __init__(self, bucket: Bucket, pool: ThreadPoolExecutor) -> None:
        self.bucket = bucket
        self.refs = Refs(bucket)
        self.drops = Drops(bucket)
        self.pool = pool

    def each(self, items: Sequence[_T], call: Callable[[_T], _R]) -> Iterator[_R]:
        """`call` of each, in order; on this thread when there is only one."""
        return map(call, items) if len(items) == 1 else self.pool.map(call, items)


def indexed_repository(engine: Engine) -> str | None:
    """Id of the repository that a database, whose schema was prepared, belongs to; None if it is new.

    Raises:
        DatabaseUnavailable: it cannot be reached.
    """
    with reading(engine) as db:
        return db.execute(select(repository.c.id)).scalar()
