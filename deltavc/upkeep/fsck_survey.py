"""What the bucket holds: everything listed, refs first, and every record read and compared with its name.

    refs/  ──> entries ──> versions ──> parents, bases ──> all that was ever committed
    then everything else is listed; whatever a move that was read leads to was there before the move

So what a writer adds meanwhile is at most an object too many, never one too few; and what clean-up takes away
meanwhile was dropped before, which is looked up before anything is called missing. Records are small and read in
parallel; of edges only an outline stays in memory.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from deltavc.errors import CorruptObject, MissingObject, ObjectMissing
from deltavc.lineage.bucket import listed_edges, read, read_edge, read_version
from deltavc.lineage.drops import EXPIRED, DropRecord
from deltavc.lineage.names import BRANCHES, SETTINGS, TAGS
from deltavc.lineage.records import (
    DROPS,
    EdgeRecord,
    FileRef,
    RefEntry,
    VersionRecord,
    drop_key,
)
from deltavc.lineage.settings import read_policy
from deltavc.store.objects import Store
from deltavc.store.transfers import Transfers
from deltavc.upkeep.fsck_graph import closure
from deltavc.upkeep.fsck_report import Problem

_T = TypeVar("_T")
_R = TypeVar("_R")

_ENTRY = re.compile(r"(?P<prefix>refs/[0-9a-f]{32}/)(?P<sequence>\d{12})\.json")
EDGE_KEY = re.compile(r"edges/(?P<target>[0-9a-f]{64})/(?P<edge>[0-9a-f]{64})\.json")
_RECORD_BYTES = 16 << 10
"""What a record is taken to hold when memory is shared out; most are far smaller."""

_NOUNS = {"versions": "version", "layouts": "layout", "edges": "edge", "packs": "pack", "files": "file"} | {
    "refs": "ref",
    "drops": "drop",
    "settings": "settings",
}


@dataclass(frozen=True, slots=True)
class Seen:
    """What a check needs of a version."""

    parents: tuple[str, ...]
    layout: str
    fingerprint: str
    files: tuple[FileRef, ...]

    @classmethod
    def of(cls, record: VersionRecord) -> Seen:
        return cls(record.parents, record.layout, record.fingerprint, tuple(record.files.values()))


class Move(NamedTuple):
    """What a check needs of a ref entry."""

    sequence: int
    old: str | None
    new: str | None


@dataclass
class Survey:
    """What was found, and what is wrong with it.

    sizes: bytes of every object, by key. moves: of every ref, by full name. versions: all that were committed and
    can be read. edges_to: ids of the edges to committed versions, and dropped: of those that are no more, by target.
    expired: ids of those that were dropped because the policy does not keep what needs them.
    """

    store: Store
    transfers: Transfers
    memory: int
    sizes: dict[str, int] = field(default_factory=dict)
    moves: dict[str, list[Move]] = field(default_factory=dict)
    versions: dict[str, Seen] = field(default_factory=dict)
    committed: set[str] = field(default_factory=set)
    edges_to: dict[str, set[str]] = field(default_factory=dict)
    dropped: dict[str, set[str]] = field(default_factory=dict)
    expired: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def read_refs(self) -> None:
        """Read every entry of every ref: the first thing to do."""
        by_prefix: dict[str, dict[int, RefEntry | None]] = defaultdict(dict)
        keys = [item.key for item in self.store.list("refs/")]
        entries = {key: found for key in keys if (found := _ENTRY.fullmatch(key))}
        for key, entry in self.each(entries, self._entry):
            if isinstance(entry, Problem):
                self.problems.append(entry)
            found = entries[key]
            by_prefix[found["prefix"]][int(found["sequence"])] = entry if isinstance(entry, RefEntry) else None
        for prefix, numbered in by_prefix.items():
            self._check_ref(prefix, numbered)
        for _, note in self.each(sorted(by_prefix), self._hint_fault):
            if isinstance(note, str):
                self.notes.append(note)

    def read_objects(self) -> None:
        """List everything else, and read the versions."""
        self.sizes = {item.key: item.nbytes for item in self.store.list()}
        listed = [found for key in self.sizes if (found := EDGE_KEY.fullmatch(key))]
        edges: dict[str, set[str]] = defaultdict(set)
        for found in listed:
            edges[found["target"]].add(found["edge"])
        self.edges_to = dict(edges)
        for target, edge in listed_edges(self.store, DROPS):
            self.dropped.setdefault(target, set()).add(edge)
        keys = [key for key in self.sizes if key.startswith("versions/") and key.endswith(".json")]
        stored = [key.rpartition("/")[2].removesuffix(".json") for key in keys]
        wrong: dict[str, Problem] = {}
        for version, record in self.each(stored, self._version):
            if isinstance(record, Problem):
                wrong[version] = record
            else:
                self.versions[version] = record
        self._follow(wrong)

    def read_edges(self, targets: Iterable[str]) -> Iterator[tuple[EdgeRecord, str]]:
        """The edges to these versions that were not dropped, each with its version. Unreadable ones are problems."""
        wanted = [
            (target, edge)
            for target in targets
            for edge in sorted(self.edges_to.get(target, set()) - self.dropped.get(target, set()))
        ]
        for (target, edge), record in self.each(wanted, lambda item: read_edge(self.store, *item)):
            if isinstance(record, EdgeRecord):
                yield record, target
            elif not self.is_dropped(target, edge):
                self.problems.append(record)

    def follow_bases(self, bases: Iterable[str]) -> set[str]:
        """Take in versions that edges start from; those that were not known to be committed before."""
        before = set(self.committed)
        self._follow({}, bases)
        return self.committed - before

    def check_drops(self) -> None:
        """Read the drops. They hold whatever stands in them, but what people are told of them does not."""
        wanted = [(target, edge) for target, edges in self.dropped.items() for edge in sorted(edges)]
        for (_, edge), found in self.each(wanted, self._drop):
            if isinstance(found, Problem):
                self.problems.append(found)
            elif found.why == EXPIRED:
                self.expired.add(edge)

    def let_go(self, version: str) -> bool:
        """Whether the policy dropped every edge to a version."""
        edges = self.edges_to.get(version, set())
        return bool(edges) and edges <= self.expired

    def check_settings(self) -> None:
        """Read every settings object that was ever set."""
        wanted = {move.new for move in self.moves.get(SETTINGS, ()) if move.new is not None}
        for _, found in self.each(sorted(wanted), lambda policy: read_policy(self.store, policy)):
            if isinstance(found, Problem):
                self.problems.append(found)

    def each(self, items: Iterable[_T], call: Callable[[_T], _R]) -> Iterator[tuple[_T, _R | Problem]]:
        """`call` of each, on many threads, in order; a problem where it met a damaged or missing object, twice.

        Raises:
            StoreError
        """
        return self.transfers.ahead(items, lambda item: attempt(call, item), lambda item: _RECORD_BYTES, self.memory)

    def size(self, key: str) -> int | None:
        """Bytes of an object, asked for again if it was not listed: it may have been added since."""
        if key not in self.sizes:
            try:
                self.sizes[key] = self.store.stat(key).nbytes
            except ObjectMissing:
                return None
        return self.sizes[key]

    def is_dropped(self, target: str, edge: str) -> bool:
        """Whether the edge was dropped, by now."""
        if edge in self.dropped.get(target, ()):
            return True
        if self.size(drop_key(target, edge)) is None:
            return False
        self.dropped.setdefault(target, set()).add(edge)
        return True

    # --- inside ---

    def _entry(self, key: str) -> RefEntry:
        entry = read(self.store, key, RefEntry.parse)
        if entry.key != key:
            raise CorruptObject(key, "it is the entry of another ref or place")
        return entry

    def _check_ref(self, prefix: str, numbered: dict[int, RefEntry | None]) -> None:
        due = 1
        for sequence in sorted(numbered):
            while due < sequence:
                found = attempt(self._entry, ref_key(prefix, due))  # a listing beside a writer may pass over one
                if isinstance(found, Problem):
                    self.problems.append(replace(found, what=f"{found.what}; the entries after it are out of reach"))
                    break
                numbered[due], due = found, due + 1
            due = sequence + 1
        read_ones = {sequence: entry for sequence, entry in sorted(numbered.items()) if entry is not None}
        for sequence, entry in read_ones.items():
            before = read_ones.get(sequence - 1)
            left_at = before.new if before is not None else None
            if entry.old != left_at and (before is not None or sequence == 1):
                what = f"it says that {entry.ref} was at {entry.old}, and the entry before it left it at {left_at}"
                self.problems.append(Problem("broken_ref", entry.key, what))
        name = next((entry.ref for entry in read_ones.values()), prefix)
        self.moves[name] = [Move(entry.sequence, entry.old, entry.new) for entry in read_ones.values()]

    def _hint_fault(self, prefix: str) -> str | None:
        try:
            hint = self.store.get(f"{prefix}last", 0, 16)
        except ObjectMissing:
            return None
        if hint.isdigit() and len(hint) <= 12 and self.size(ref_key(prefix, int(hint))) is not None:
            return None
        return f"the hint {prefix}last names no entry; readers pass over it"

    def _follow(self, wrong: dict[str, Problem], more: Iterable[str] = ()) -> None:
        named = [moves for ref, moves in self.moves.items() if ref.startswith((BRANCHES, TAGS))]
        ends = {end for moves in named for move in moves for end in (move.old, move.new) if end}

        def parents(version: str) -> tuple[str, ...]:
            if version in self.versions:
                return self.versions[version].parents
            seen = wrong[version] if version in wrong else attempt(self._version, version)
            if isinstance(seen, Problem):
                self.problems.append(replace(seen, versions=(version,)))
                return ()
            self.versions[version] = seen  # added since the listing
            return seen.parents

        known = self.committed
        self.committed = known | closure({*ends, *more} - known, parents)

    def _version(self, version: str) -> Seen:
        return Seen.of(read_version(self.store, version))

    def _drop(self, item: tuple[str, str]) -> DropRecord:
        key = drop_key(*item)
        drop = read(self.store, key, DropRecord.parse, item[0])
        if drop.key != key:
            raise CorruptObject(key, "it is the drop of another edge", item[0])
        return drop


def ref_key(prefix: str, sequence: int) -> str:
    """The key of an entry below a ref's prefix."""
    return f"{prefix}{sequence:012d}.json"


def attempt(call: Callable[[_T], _R], item: _T) -> _R | Problem:
    """`call(item)`; where it meets a damaged or missing object twice, the problem."""
    with suppress(CorruptObject):  # and let go of what was read before it is read again
        return call(item)
    try:
        return call(item)
    except CorruptObject as error:
        return problem_of(error)


def problem_of(error: CorruptObject) -> Problem:
    """What a reader's error says, as a problem."""
    noun = _NOUNS[error.key.partition("/")[0]]
    kind = ("missing_" if isinstance(error, MissingObject) else "damaged_") + noun
    return Problem(kind, error.key, error.reason, (error.version,) if error.version else ())
