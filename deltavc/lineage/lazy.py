"""An index without a database: it answers from the bucket what can be found by going back from a ref.

Branches, tags, ids, `~N`, the edges on the way to a version: each costs a few requests, however long history is.
Everything else (steps, metrics, logs, totals) would mean reading all of it, and needs a database.

Nothing is kept but where the refs were when they were last looked at, so there is nothing to fall behind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import Engine

from deltavc.errors import DatabaseNeeded, MissingObject
from deltavc.layout import Layout
from deltavc.lineage.backwards import Backwards
from deltavc.lineage.bucket import Bucket, read_edges, read_layout, read_version
from deltavc.lineage.drops import Drops
from deltavc.lineage.index import Index
from deltavc.lineage.info import VersionInfo, commit_costs
from deltavc.lineage.names import BRANCHES, TAGS
from deltavc.lineage.plan import Surroundings
from deltavc.lineage.records import EdgeRecord, FileRef, RefEntry, VersionRecord, version_key
from deltavc.lineage.refs import Refs
from deltavc.lineage.surroundings import BucketSurroundings

_READERS = 16
_T = TypeVar("_T")
_ID_DIGITS = 64


class LazyIndex(Index):
    """The questions of an `Index`, answered from the bucket. Those that need a database raise DatabaseNeeded.

    Any version in the bucket answers to its id, also one whose commit did not happen.
    """

    def __init__(self, bucket: Bucket, url: str) -> None:
        """`url` is where the bucket is, for errors."""
        self.bucket = bucket
        self.refs = Refs(bucket)
        self._url = url
        self._heads: dict[str, RefEntry] = {}

    @property
    def engine(self) -> Engine:
        """Whatever is not answered here asks for it."""
        raise DatabaseNeeded(self._url)

    @property
    def place(self) -> None:
        return None

    def close(self) -> None:
        pass

    # --- following refs ---

    def catch_up(self, refs: Iterable[str] | None = None) -> None:
        wanted = list(self._heads if refs is None else refs)
        with ThreadPoolExecutor(_READERS) as pool:
            for entry in pool.map(lambda ref: self.refs.newest(ref, self._heads.get(ref)), wanted):
                if entry is not None:
                    self._heads[entry.ref] = entry

    def catch_up_all(self, progress: Callable[[int], None] | None = None) -> None:
        self.catch_up(self.refs.names(self._heads))

    def refresh(self) -> None:
        pass

    def drop(self, edges: Collection[str]) -> None:
        pass

    def record(
        self,
        entries: Sequence[RefEntry],
        versions: Sequence[VersionRecord] = (),
        edges: Sequence[EdgeRecord] = (),
        layouts: Sequence[Layout] = (),
    ) -> None:
        for entry in entries:
            known = self._heads.get(entry.ref)
            if known is None or known.sequence < entry.sequence:
                self._heads[entry.ref] = entry

    # --- questions ---

    def head(self, ref: str) -> RefEntry | None:
        return self._heads.get(ref)

    def branches(self) -> dict[str, str]:
        return self._at(BRANCHES)

    def tags(self) -> dict[str, str]:
        return self._at(TAGS)

    def reflog(self, ref: str, limit: int | None = None) -> list[RefEntry]:
        return [] if ref not in self._heads else self.refs.latest(self._heads[ref], limit)

    def versions(self, ids: Sequence[str]) -> list[VersionInfo]:
        """Raises MissingObject, CorruptObject."""
        with ThreadPoolExecutor(_READERS) as pool:
            return list(pool.map(self._info, ids))

    def starting_with(self, prefix: str, limit: int = 20) -> list[str]:
        if len(prefix) == _ID_DIGITS:
            try:
                return [read_version(self.bucket, prefix).id]
            except MissingObject:
                return []
        folder = version_key(prefix).rpartition("/")[0]
        ids = (item.key.rpartition("/")[2].removesuffix(".json") for item in self.bucket.list(f"{folder}/"))
        return sorted(version for version in ids if len(version) == _ID_DIGITS and version.startswith(prefix))[:limit]

    def layout(self, layout: str) -> Layout | None:
        try:
            return read_layout(self.bucket, layout)
        except MissingObject:
            return None

    def edges_into(self, version: str) -> list[EdgeRecord]:
        return read_edges(self.bucket, version)

    def ancestor(self, version: str, steps: int) -> str | None:
        """Reads the versions between."""
        records = self._backwards(lambda version: read_version(self.bucket, version))
        for _ in range(steps):
            parents = records[version].parents
            if not parents:
                return None
            version = parents[0]
        return version

    @contextmanager
    def surroundings(self, forward_only: bool) -> Iterator[Surroundings]:
        drops = Drops(self.bucket)
        yield BucketSurroundings(
            self._backwards(lambda version: read_edges(self.bucket, version, drops.of)), forward_only
        )

    def _at(self, kind: str) -> dict[str, str]:
        heads = sorted(self._heads.items())
        return {
            ref.removeprefix(kind): entry.new for ref, entry in heads if ref.startswith(kind) and entry.new is not None
        }

    def _backwards(self, read: Callable[[str], _T]) -> Backwards[_T]:
        return Backwards(read, self.refs, dict(self._heads))

    def _info(self, version: str) -> VersionInfo:
        record = read_version(self.bucket, version)
        had = {file.id for parent in record.parents for file in self._files(parent)} if record.files else set()
        found = self.edges_into(version)
        written = (edge for edge in found if edge.origin == "commit")
        changed, stored = commit_costs((edge.base is None, edge.changes, edge.new_bytes) for edge in written)
        return VersionInfo(
            id=version,
            record=record,
            branch=None,
            num_lanes=read_layout(self.bucket, record.layout, version).num_lanes,
            changed_lanes=changed,
            stored_bytes=stored + sum(file.nbytes for file in record.files.values() if file.id not in had),
            weights=bool(found),
        )

    def _files(self, version: str) -> Collection[FileRef]:
        return read_version(self.bucket, version).files.values()
