"""gc: deletes packs and files that nobody names and nobody can be about to name.

    packs/ ── older than the grace? ── named by an edge that was not dropped, or only lately? ── delete
    files/ ── older than the grace? ── named by a version? ───────────────────────────────────── delete

It goes by the bucket alone: every edge under `edges/`, whoever's branch it belongs to and whether or not its commit
has happened, and every version under `versions/`. Nothing else is ever deleted, and no edge is judged: what the policy
does not keep, `expire` drops. Whatever does not look right ends it before the first deletion.

What makes this safe beside writers is written down in docs/decisions/0007-clean-up.md.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from deltavc.access import Access
from deltavc.durations import duration
from deltavc.errors import CleanUpRefused, GraceTooShort, MissingObject, ObjectMissing
from deltavc.lineage import choosing, contents
from deltavc.lineage.bucket import edge_of, read_edge, read_version
from deltavc.lineage.records import DROPS, EDGES, edge_key, version_key
from deltavc.lineage.settings import SettingsRef
from deltavc.store.objects import ObjectInfo
from deltavc.upkeep.rescue import stranded
from deltavc.upkeep.tree import Tree

log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""

VERSIONS = "versions/"
SWEPT = ("packs/", "files/")

_TICK = timedelta(seconds=1)
"""What S3 rounds its times to."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Collected:
    """What was deleted, or would be. Bytes are those of objects.

    num_kept, kept_bytes: packs and files that stay. num_young: those of them that nobody names and that are younger
    than the grace.
    """

    dry_run: bool
    older_than: timedelta
    num_packs: int
    num_files: int
    nbytes: int
    num_kept: int
    kept_bytes: int
    num_young: int

    def as_json(self) -> dict[str, Any]:
        """A JSON-able form."""
        return {
            "dry_run": self.dry_run,
            "older_than_seconds": self.older_than.total_seconds(),
            "deleted_packs": self.num_packs,
            "deleted_files": self.num_files,
            "deleted_bytes": self.nbytes,
            "kept_objects": self.num_kept,
            "kept_bytes": self.kept_bytes,
            "young_objects": self.num_young,
        }


def gc(
    access: Access,
    settings: SettingsRef,
    *,
    dry_run: bool = False,
    older_than: str | timedelta | None = None,
    progress: Progress | None = None,
) -> Collected:
    """Delete packs and files that no undropped edge and no version names.

    Args:
        older_than: how long ago the drop, or of what was never named the upload, has to be; None for the grace.

    Raises:
        GraceTooShort: `older_than` is less than the repository's grace.
        CleanUpRefused: listings or the store's clock contradict themselves, or a branch has no weights.
        MissingObject, CorruptObject: something that is needed is gone or damaged. Nothing was deleted.
        ValueError: `older_than` is no length of time.
        StoreError: what was deleted until then was garbage.
        DatabaseUnavailable, DatabaseNeeded
    """
    policy = settings.newest()
    grace = policy.grace
    age = grace if older_than is None else duration(older_than) if isinstance(older_than, str) else older_than
    if age < grace:
        raise GraceTooShort(age.total_seconds(), grace.total_seconds())
    show = progress or (lambda doing, done, total: None)
    tick = _TICK if access.store.remote else timedelta()
    sweep = _Sweep(access, access.store.now() - age - tick, policy.keep_tagged, show)
    doomed, kept, young = sweep.choose()
    if not dry_run:
        sweep.delete(doomed)
    return Collected(
        dry_run=dry_run,
        older_than=age,
        num_packs=sum(item.key.startswith("packs/") for item in doomed),
        num_files=sum(item.key.startswith("files/") for item in doomed),
        nbytes=sum(item.nbytes for item in doomed),
        num_kept=len(kept),
        kept_bytes=sum(item.nbytes for item in kept),
        num_young=len(young),
    )


@dataclass(frozen=True)
class _Sweep:
    """One run. before: what is not older than this moment, by the store's clock, is left alone."""

    access: Access
    before: datetime
    keep_tagged: bool
    show: Progress

    def choose(self) -> tuple[list[ObjectInfo], list[ObjectInfo], list[ObjectInfo]]:
        """What to delete, what to keep, and what of that stays only for its age."""
        found = [item for prefix in SWEPT for item in self._listed(prefix).values()]
        old = {item.key for item in found if item.modified < self.before}
        there = {item.key for item in found}
        self._check_refs()
        marked = self._named_packs(there)
        if any(key.startswith("files/") for key in there):
            marked |= self._named_files()
        self._check_clock(found)
        doomed = [item for item in found if item.key in old and item.key not in marked]
        kept = [item for item in found if item.key not in old or item.key in marked]
        young = [item for item in kept if item.key not in marked]
        return doomed, kept, young

    def delete(self, doomed: list[ObjectInfo]) -> None:
        """Delete objects, in any order: none of them is needed by anything."""
        deleted = self.access.transfers.ahead(doomed, self._delete, lambda _: 0, 0)
        for number, _ in enumerate(deleted, 1):
            self.show("deleting", number, len(doomed))
        log.info("deleted %d objects", len(doomed))

    def _delete(self, item: ObjectInfo) -> None:
        """Delete an object, unless it was put again since it was listed, as a copy from another repository does."""
        with contextlib.suppress(ObjectMissing):
            if self.access.store.stat(item.key).modified <= item.modified + _TICK:
                self.access.store.delete(item.key)

    def _named_packs(self, there: Collection[str]) -> set[str]:
        """Keys of the packs that edges name which were not dropped, or so lately that somebody may be reading them.

        Args:
            there: keys of all packs.
        """
        indexed = contents.contents(self.access.index).edges  # before the bucket is listed: others commit meanwhile
        listed, drops = self._agreed(EDGES), self._agreed(DROPS)
        dropped = {edge_of(key): item.modified for key, item in drops.items()}
        wanted = {edge for key in listed if (edge := edge_of(key)) is not None}
        wanted -= {edge for edge, when in dropped.items() if edge is not None and when < self.before}
        known = dict(choosing.edge_packs_by_id(self.access.index))
        packs = {edge: known[edge[1]] for edge in wanted if edge[1] in known}
        packs |= self._read("reading edges", wanted - packs.keys(), self._packs_of)
        for edge_id, target in indexed.items():
            if edge_key(target, edge_id) not in listed and (target, edge_id) not in dropped:
                raise MissingObject(edge_key(target, edge_id), version=target)  # lost by the bucket, or hidden
        for edge in packs.keys() - dropped.keys():
            if edge[1] in known and listed[edge_key(*edge)].modified < self.before:  # and so committed, and complete
                for key in packs[edge]:
                    if key not in there:
                        raise MissingObject(key, version=edge[0])
        return {key for keys in packs.values() for key in keys}

    def _named_files(self) -> set[str]:
        """Keys of the files that versions name."""
        indexed = choosing.committed(self.access.index)  # before, as above
        listed = self._agreed(VERSIONS)
        ids = {key.rpartition("/")[2].removesuffix(".json") for key in listed}
        for version in indexed - ids:
            raise MissingObject(version_key(version), version=version)
        files = {version: keys for version, keys in choosing.files_by_id(self.access.index) if version in ids}
        files |= self._read("reading versions", ids - files.keys(), self._files_of)
        return {key for keys in files.values() for key in keys}

    def _check_refs(self) -> None:
        """Refuse while a branch or a tag is cut off: its way may have been dropped by mistake, and be saved yet."""
        index = self.access.index
        index.catch_up_all()
        index.refresh()
        branches, tags = index.branches(), index.tags()  # before their ways: others commit meanwhile
        reached = Tree(choosing.outlines(index)).entry.keys()
        for branch, version in branches.items():
            if version not in reached:
                raise CleanUpRefused(
                    f"branch {branch!r} is at version {version}, whose weights cannot be reached; "
                    "`deltavc expire` makes up for what was dropped at the same time as the branch went there; "
                    "where they are lost, begin the branch anew (`deltavc commit --orphan`)"
                )
        for version in stranded(self.access, tags.values() if self.keep_tagged else (), reached):
            raise CleanUpRefused(f"a tag is at version {version}, and edges to it were dropped; run `deltavc expire`")

    def _check_clock(self, found: Iterable[ObjectInfo]) -> None:
        """Refuse where objects are stamped with times to come: then ages mean nothing."""
        now = self.access.store.now()
        slack = (now - self.before) / 4
        for item in found:
            if item.modified > now + slack:
                raise CleanUpRefused(f"{item.key} was stored at {item.modified}, and the store says it is {now}")

    def _agreed(self, prefix: str) -> dict[str, ObjectInfo]:
        """What two listings together show. They have to agree about what is older than the grace."""
        one, other = self._listed(prefix), self._listed(prefix)
        for key in one.keys() ^ other.keys():
            item = one.get(key) or other[key]
            if item.modified < self.before:
                raise CleanUpRefused(f"one of two listings has {key}, which is older than the grace, and one has not")
        return one | other

    def _listed(self, prefix: str) -> dict[str, ObjectInfo]:
        self.show(f"listing {prefix}", 0, 0)
        return {item.key: item for item in self.access.store.list(prefix)}

    def _packs_of(self, edge: tuple[str, str]) -> tuple[str, ...]:
        return tuple(use.key for use in read_edge(self.access.store, *edge).packs)

    def _files_of(self, version: str) -> tuple[str, ...]:
        return tuple(file.key for file in read_version(self.access.store, version).files.values())

    def _read(
        self, doing: str, items: Collection[_T], read: Callable[[_T], tuple[str, ...]]
    ) -> dict[_T, tuple[str, ...]]:
        """`read` of each, from the bucket: of what the database does not have, or has damaged."""
        found = {}
        for item, keys in self.access.transfers.ahead(items, read, lambda _: 0, 0):
            found[item] = keys
            self.show(doing, len(found), len(items))
        return found
