"""Copying: what refs of one repository lead to, to another one, which may be in another kind of store.

    read the history ── look at what is there ── carry what is missing ── look again ── move the refs ── look once more
                              └──────────────── at most a quarter of the grace ─────┘

Versions keep their ids, since these name their content; every object is checked against its name on its way. A ref
moves by one entry of its own, after all that it leads to is there. So a copy that is interrupted has moved no ref or
some, and the next one goes on where it was.

Beside clean-up there, docs/decisions/0017-copies.md says why nothing goes that a ref is about to lead to.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltavc.access import Access
from deltavc.canonical import content_id
from deltavc.errors import (
    CorruptObject,
    HistoriesDiffer,
    MissingObject,
    ObjectMissing,
    RefExists,
    StoreUnavailable,
    TooLate,
    UnknownRef,
)
from deltavc.files import digest
from deltavc.freshness import Mark
from deltavc.interchange.missing import History, Missing, history, missing, stock
from deltavc.lineage import names
from deltavc.lineage.lazy import LazyIndex
from deltavc.lineage.records import FileRef, PackUse, RefEntry, layout_key
from deltavc.lineage.standing import move_to
from deltavc.repo import Repo
from deltavc.store.transfers import DEFAULT_MEMORY
from deltavc.upkeep.compact import Progress

log = logging.getLogger(__name__)

GROUP_BYTES = 1 << 30
GROUP_VERSIONS = 256
"""What is stored before its edges are; an interrupted copy stores so much again at most."""

IN_MEMORY = 32 << 20
"""Bytes of an object that is carried in memory; larger ones go through a temporary file."""

IN_FLIGHT = 256 << 20
"""Bytes of objects that are carried at once in memory."""


@dataclass(frozen=True, slots=True)
class CopiedRef:
    """A ref that was to be copied. version: where it is now, or would be. moved: whether this call moved it."""

    name: str
    version: str
    moved: bool


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy did, or would do. num_objects, nbytes: packs and files that were stored."""

    url: str
    dry_run: bool
    refs: tuple[CopiedRef, ...]
    num_versions: int
    num_objects: int
    nbytes: int

    def as_json(self) -> dict[str, Any]:
        """A JSON-able form."""
        refs = [{"ref": ref.name, "version": ref.version, "moved": ref.moved} for ref in self.refs]
        told = {"url": self.url, "dry_run": self.dry_run, "refs": refs, "num_versions": self.num_versions}
        return told | {"num_objects": self.num_objects, "nbytes": self.nbytes}


def copy(
    source: Repo,
    target: Repo,
    refs: Sequence[str] | None = None,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Copied:
    """Copy branches and tags with their whole history to another repository.

    It goes by the buckets alone, and works without databases. What the policy of either repository gave up is not
    copied; neither are settings, reflogs, and versions that no ref leads to.

    Args:
        target: a new repository, or one with the same history, less of it or the same.
        refs: names of branches and tags; None for all.
        dry_run: only say what would be copied.
        progress: called as it goes on.

    Raises:
        HistoriesDiffer: a branch of this name is there at a version that the one to copy never was at and does not come
            from; or a tag at another version. Nothing was copied.
        RefExists: a branch there has the name of a tag to copy, or the other way around.
        UnknownRef: `refs` names what is neither a branch nor a tag.
        MissingObject, CorruptObject: something is gone or damaged here. No ref was moved.
        NoPath: a version lost its weights there while it was copied.
        TooLate: storing some of it took longer than half the grace there; do it again.
        BranchMoved, CommitInDoubt: somebody else moved a ref; the store did not say whether one moved.
        StoreError: what was stored until then is of use to the next call.
        ValueError: both are one repository.
    """
    if source.url == target.url:
        raise ValueError(f"{source.url} cannot be copied to itself")
    show = progress or (lambda doing, done, total: None)
    one, other = source._access(DEFAULT_MEMORY), target._access(DEFAULT_MEMORY)
    show("reading the history", 0, 0)
    heads = {entry.ref: entry for entry in _heads(one, refs)}
    wanted = history(one.store, one.transfers, {entry.new for entry in heads.values() if entry.new is not None})
    there = {ref: other.refs.newest(ref) for ref in heads}
    for ref, entry in heads.items():
        _check_follows(one, other, wanted, entry, there[ref])
    run = _Run(one, other, wanted, show)
    found = run.look()
    if dry_run:
        refs_to_be = tuple(_copied(entry, there[ref]) for ref, entry in heads.items())
        return Copied(target.url, True, refs_to_be, *_totals(found))
    while found:
        carried = run.carry(found)
        if (again := run.look()) == found and carried:
            raise StoreUnavailable(target.url, "copy", "what was stored there is not listed afterwards")
        found = again
    moved = tuple(run.move(entry, there[ref], target) for ref, entry in heads.items())
    if late := run.look():  # clean-up was faster than the copy
        run.carry(late)
    return Copied(target.url, False, moved, run.num_versions, run.num_objects, run.nbytes)


def _heads(access: Access, refs: Sequence[str] | None) -> Iterator[RefEntry]:
    """The last entries of the refs to copy. Raises UnknownRef."""
    known = access.refs.names()
    if refs is None:
        for ref in known:
            if (entry := access.refs.newest(ref)) is not None and entry.new is not None:
                yield entry
        return
    for name in dict.fromkeys(refs):
        entries = (access.refs.newest(ref) for ref in (names.BRANCHES + name, names.TAGS + name) if ref in known)
        entry = next((entry for entry in entries if entry is not None and entry.new is not None), None)
        if entry is None:
            candidates = tuple(ref.partition("/")[2] for ref in known)
            raise UnknownRef(name, "no branch or tag has this name, and only those are copied", candidates[:5])
        yield entry


def _check_follows(one: Access, other: Access, wanted: History, entry: RefEntry, there: RefEntry | None) -> None:
    """Refuse to move a ref there from where the one here never was."""
    kind, name = ("branch" if entry.ref.startswith(names.BRANCHES) else "tag"), entry.ref.partition("/")[2]
    twin = (names.TAGS if kind == "branch" else names.BRANCHES) + name
    if (taken := other.refs.newest(twin)) is not None and taken.new is not None:
        raise RefExists("tag" if kind == "branch" else "branch", name, taken.new)
    at = None if there is None else there.new
    if at is None or at == entry.new:
        return
    assert entry.new is not None
    if kind == "branch" and (
        at in _ancestors(wanted, [entry.new]) or any(move.new == at for move in one.refs.entries(entry.ref))
    ):
        return
    raise HistoriesDiffer(kind, name, entry.new, at, other.store.url)


def _ancestors(wanted: History, waiting: list[str]) -> set[str]:
    """These versions and all before them."""
    found: set[str] = set()
    while waiting:
        if (version := waiting.pop()) not in found:
            found.add(version)
            waiting += wanted.versions[version].parents
    return found


class _Run:
    """One copy: what it has stored so far."""

    def __init__(self, one: Access, other: Access, wanted: History, show: Progress) -> None:
        self.num_versions = self.num_objects = self.nbytes = 0
        self._one = one
        self._other = other
        self._wanted = wanted
        self._show = show
        self._looked: Mark
        heads = (entry.new for ref in other.refs.names() if (entry := other.refs.newest(ref)) is not None)
        self._settled = _ancestors(wanted, [head for head in heads if head in wanted.versions])

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
        total = sum(part.nbytes for part in found)
        done = 0
        for number, group in enumerate(_groups(found)):
            try:
                self._other.freshness.check(self._looked, "")
            except TooLate:
                return number > 0
            mark = self._other.freshness.mark()
            objects = {kept.key: (kept, part.version) for part in group for kept in part.objects}
            carried = self._other.transfers.ahead(
                objects.values(),
                lambda item: self._carry(*item),
                lambda item: min(item[0].nbytes, IN_MEMORY),
                IN_FLIGHT,
            )
            for (kept, _), _ in carried:
                done += kept.nbytes
                self._show("copying", done, total)
            self._put((layout_key(layout.id), layout.body) for part in group for layout in part.layouts)
            self._put((drop.key, drop.body) for part in group for drop in part.drops)
            self._put((edge.key, edge.body) for part in group for edge in part.edges)
            self._other.freshness.check(mark, "a part of the copy")
            records = [part.record for part in group if part.record is not None]
            self._put((record.key, record.body) for record in records)
            self.num_versions += len(records)
            self.num_objects += len(objects)
            self.nbytes += sum(kept.nbytes for kept, _ in objects.values())
            log.info("copied %d versions, %d bytes", self.num_versions, self.nbytes)
        return True

    def move(self, entry: RefEntry, there: RefEntry | None, target: Repo) -> CopiedRef:
        """Let a ref there follow the one here. Raises NoPath, BranchMoved, CommitInDoubt."""
        copied, other = _copied(entry, there), self._other
        if copied.moved:
            why = f"copied from {self._one.store.url}"
            if entry.ref.startswith(names.TAGS) and copied.version not in self._wanted.reached:
                moved = other.refs.move(
                    entry.ref, there, copied.version, other.author, why
                )  # has no weights here either
            else:
                index = LazyIndex(other.store, other.store.url)  # a database knows nothing of all this yet
                index.catch_up([entry.ref])
                moved = move_to(index, other.refs, entry.ref, there, copied.version, other.author, why)
            target._index.note([moved])
        return copied

    def _put(self, objects: Iterable[tuple[str, bytes]]) -> None:
        put = self._other.transfers.ahead(
            list(objects), lambda item: self._other.store.put(*item), lambda item: len(item[1]), IN_FLIGHT
        )
        for _ in put:
            pass

    def _carry(self, kept: PackUse | FileRef, version: str) -> None:
        """Copy an object whose name is its hash. Raises MissingObject, CorruptObject."""
        store, due = self._one.store, kept.pack if isinstance(kept, PackUse) else kept.id[:64]
        try:
            if kept.nbytes <= (IN_MEMORY if not store.remote else IN_MEMORY >> 5):
                body = store.get(kept.key, 0, kept.nbytes + 1)
                _check(kept, version, len(body), content_id(body), due)
                self._other.store.put(kept.key, body)
                return
            with tempfile.TemporaryDirectory(prefix="deltavc-copy-") as directory:
                path = Path(directory, "object")
                store.get_path(kept.key, path)  # past the cache, which it would fill
                _check(kept, version, path.stat().st_size, digest(path), due)
                self._other.store.put_path(kept.key, path)
        except ObjectMissing as error:
            raise MissingObject(kept.key, version=version) from error


def _check(kept: PackUse | FileRef, version: str, nbytes: int, found: str, due: str) -> None:
    if nbytes != kept.nbytes or found != due:
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


def _copied(entry: RefEntry, there: RefEntry | None) -> CopiedRef:
    assert entry.new is not None
    return CopiedRef(entry.ref, entry.new, there is None or there.new != entry.new)


def _totals(found: list[Missing]) -> tuple[int, int, int]:
    kept = {one.key: one.nbytes for part in found for one in part.objects}
    return sum(part.record is not None for part in found), len(kept), sum(kept.values())
