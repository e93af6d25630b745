"""Carrying: objects of a history on their way from one bucket to another, each checked against its name.

    packs, files, layouts ── drops, edges ── is it still in time? ── versions           a group of them at a time

What is stored before a look at the other bucket has gone stale is safe from clean-up there; then it is looked again.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from deltavc.access import Access
from deltavc.canonical import content_id
from deltavc.errors import CorruptObject, MissingObject, ObjectMissing, TooLate
from deltavc.files import digest
from deltavc.freshness import Mark
from deltavc.interchange.missing import Edge, History, Kept, Missing, missing, stock
from deltavc.layout import Layout
from deltavc.lineage.bucket import read, read_edge, read_layout, read_version
from deltavc.lineage.drops import DropRecord
from deltavc.lineage.records import EdgeRecord, VersionRecord, drop_key, layout_key
from deltavc.upkeep.compact import Progress

log = logging.getLogger(__name__)

GROUP_BYTES = 1 << 30
GROUP_VERSIONS = 256
"""What is stored before its edges are; an interrupted copy stores so much again at most."""

IN_MEMORY = 32 << 20
"""Bytes of an object that is carried in memory; larger ones go through a temporary file."""

IN_FLIGHT = 256 << 20
"""Bytes of objects that are carried at once in memory."""

Record: TypeAlias = Layout | DropRecord | EdgeRecord | VersionRecord


class Carrier:
    """Brings a history to another repository.

    num_versions, num_objects, nbytes: versions, and packs and files, that it has stored so far.
    """

    def __init__(self, one: Access, other: Access, wanted: History, show: Progress) -> None:
        self.num_versions = self.num_objects = self.nbytes = 0
        self._one = one
        self._other = other
        self._wanted = wanted
        self._show = show
        self._looked: Mark
        heads = (entry.new for ref in other.refs.names() if (entry := other.refs.newest(ref)) is not None)
        self._settled = wanted.before(head for head in heads if head in wanted.versions)

    def look(self) -> list[Missing]:
        """What is missing there."""
        self._show("looking at what is there", 0, 0)
        self._looked = self._other.freshness.mark()
        return missing(self._wanted, stock(self._other.store), self._other.store, self._settled)

    def carry(self, found: list[Missing]) -> bool:
        """Store what is missing, in groups, as long as what was seen there is fresh; whether anything was stored.

        Raises:
            TooLate: a group took too long.
        """
        store = self._one.store
        total = sum(part.nbytes for part in found)
        done = 0
        for number, group in enumerate(_groups(found)):
            try:
                self._other.freshness.check(self._looked, "")
            except TooLate:
                return number > 0
            mark = self._other.freshness.mark()
            objects = [(kept, part.version) for part in group for kept in part.objects]
            carried = self._other.transfers.ahead(
                objects,
                lambda item: self._carry(*item),
                lambda item: min(item[0].nbytes, IN_MEMORY),
                IN_FLIGHT,
            )
            for (kept, _), _ in carried:
                done += kept.nbytes
                self._show("copying", done, total)
            self._put(group, lambda part: (read_layout(store, layout, part.version) for layout in part.layouts))
            self._put(group, lambda part: (self._drop(part.version, edge) for edge in part.given_up))
            self._put(group, lambda part: (read_edge(store, part.version, edge) for edge in part.given_up))
            self._put(group, lambda part: (self._edge(edge, form) for edge, form in part.edges))
            self._other.freshness.check(mark, "a part of the copy")
            self._put(group, lambda part: (read_version(store, part.version) for _ in range(part.record)))
            self.num_versions += sum(part.record for part in group)
            self.num_objects += len(objects)
            self.nbytes += sum(kept.nbytes for kept, _ in objects)
            log.info("copied %d versions, %d bytes", self.num_versions, self.nbytes)
        return True

    def _put(self, group: list[Missing], records: Callable[[Missing], Iterable[Record]]) -> None:
        """Read some records of each version, which checks them, and store them."""

        def put(part: Missing) -> None:
            for record in records(part):
                key = layout_key(record.id) if isinstance(record, Layout) else record.key
                self._other.store.put(key, record.body)

        for _ in self._other.transfers.ahead(group, put, lambda _: 0, 0):
            pass

    def _drop(self, target: str, edge: str) -> DropRecord:
        return read(self._one.store, drop_key(target, edge), DropRecord.parse, target)

    def _edge(self, edge: Edge, form: str) -> EdgeRecord:
        record = read_edge(self._one.store, edge.target, edge.id)
        return record if form == edge.id else replace(record, origin="compact")

    def _carry(self, kept: Kept, version: str) -> None:
        """Copy an object whose name is its hash. Raises MissingObject, CorruptObject."""
        store = self._one.store
        try:
            if kept.nbytes <= (IN_MEMORY if not store.remote else IN_MEMORY >> 5):
                body = store.get(kept.key, 0, kept.nbytes + 1)
                _check(kept, version, len(body), content_id(body))
                self._other.store.put(kept.key, body)
                return
            with tempfile.TemporaryDirectory(prefix="deltavc-copy-") as directory:
                path = Path(directory, "object")
                store.get_path(kept.key, path)  # past the cache, which it would fill
                _check(kept, version, path.stat().st_size, digest(path))
                self._other.store.put_path(kept.key, path)
        except ObjectMissing as error:
            raise MissingObject(kept.key, version=version) from error


def _check(kept: Kept, version: str, nbytes: int, found: str) -> None:
    if nbytes != kept.nbytes or found != kept.digest:
        raise CorruptObject(kept.key, "its content is not what its name says", version)


def _groups(found: list[Missing]) -> Iterator[list[Missing]]:
    group: list[Missing] = []
    nbytes = 0
    for part in found:
        group.append(part)
        nbytes += part.nbytes
        if nbytes >= GROUP_BYTES or len(group) >= GROUP_VERSIONS:
            yield group
            group, nbytes = [], 0
    if group:
        yield group
