"""Words: what ranks tell each other about one commit, none of which grows with the bytes of weights.

Facts      every rank to all, before anything is read: where it is, and what it holds, as a hash
Share      every rank to rank 0: the packs and files it is uploading
Announced  rank 0 to all: the version, its edges, and the ref entry that will make it a commit
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from deltavc.draft import lost
from deltavc.errors import ObjectMissing
from deltavc.freshness import Mark
from deltavc.lineage.records import EdgeRecord, FileRef, PackUse, RefEntry, VersionRecord, layout_key
from deltavc.packing import Packed
from deltavc.store.objects import Store
from deltavc.version import Version


@dataclass(frozen=True, slots=True)
class Facts:
    """Where a rank is when a commit begins.

    tip: the version that its next one would be a child of. step: what it was told. snapshot: whether it would write
    one; rank 0's word counts, as for the tip. held: hash of what it holds. arranged: hash of what all held when it last
    learned that.
    """

    tip: str | None
    step: int | None
    snapshot: bool
    held: str = ""
    arranged: str = ""

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, body: bytes) -> Facts:
        return cls(**json.loads(body))


@dataclass(frozen=True, slots=True)
class Share:
    """What a rank adds to a commit.

    nbytes: of what it uploads, packs and files. mark: before anything of it was uploaded.
    """

    packed: Packed
    changed_lanes: int
    nbytes: int
    files: Mapping[str, FileRef]
    mark: Mark

    def to_bytes(self) -> bytes:
        return json.dumps(
            {
                "packs": [[use.pack, use.nbytes, use.index] for use in self.packed.uses],
                "frames_nbytes": self.packed.nbytes,
                "changed_lanes": self.changed_lanes,
                "nbytes": self.nbytes,
                "files": {name: [file.id, file.nbytes] for name, file in self.files.items()},
                "mark": _mark_json(self.mark),
            }
        ).encode()

    @classmethod
    def read(cls, body: bytes) -> Share:
        found = json.loads(body)
        uses = tuple(PackUse(pack, nbytes, tuple(index)) for pack, nbytes, index in found["packs"])
        return cls(
            Packed(uses, found["frames_nbytes"]),
            found["changed_lanes"],
            found["nbytes"],
            {name: FileRef(*file) for name, file in found["files"].items()},
            _mark(found["mark"]),
        )

    @classmethod
    def added(cls, shares: Sequence[Share]) -> Share:
        """What all ranks add, those of lower rank first."""
        return cls(
            Packed(
                tuple(use for share in shares for use in share.packed.uses),
                sum(share.packed.nbytes for share in shares),
            ),
            sum(share.changed_lanes for share in shares),
            sum(share.nbytes for share in shares),
            {name: file for share in shares for name, file in share.files.items()},
            min((share.mark for share in shares), key=lambda mark: (mark.at, mark.settings)),
        )


@dataclass(frozen=True, slots=True)
class Announced:
    """A commit that is about to be made: enough for any rank to make it, once all of it is uploaded."""

    record: VersionRecord
    entry: RefEntry
    edges: tuple[str, ...]
    bases: frozenset[str]
    whole: bool
    mark: Mark
    changed_lanes: int
    stored_bytes: int

    @classmethod
    def of(cls, record: VersionRecord, edges: Sequence[EdgeRecord], entry: RefEntry, share: Share) -> Announced:
        """What rank 0 made of what all ranks added."""
        return cls(
            record,
            entry,
            tuple(edge.key for edge in edges),
            frozenset(edge.base for edge in edges if edge.base is not None),
            any(edge.base is None for edge in edges),
            share.mark,
            share.changed_lanes,
            share.nbytes,
        )

    def to_json(self) -> str:
        return json.dumps(
            {
                "record": self.record.body.decode(),
                "entry": self.entry.body.decode(),
                "edges": self.edges,
                "bases": sorted(self.bases),
                "whole": self.whole,
                "mark": _mark_json(self.mark),
                "changed_lanes": self.changed_lanes,
                "stored_bytes": self.stored_bytes,
            }
        )

    @classmethod
    def read(cls, body: str) -> Announced:
        found = json.loads(body)
        return cls(
            VersionRecord.parse(found["record"].encode()),
            RefEntry.parse(found["entry"].encode()),
            tuple(found["edges"]),
            frozenset(found["bases"]),
            found["whole"],
            _mark(found["mark"]),
            found["changed_lanes"],
            found["stored_bytes"],
        )

    def lost(self, store: Store) -> str | None:
        """What of it is not in the store, if anything is not. Raises StoreError."""
        try:
            for key in (self.record.key, layout_key(self.record.layout)):
                store.stat(key)
            made = [EdgeRecord.parse(store.get(key)) for key in self.edges]
        except ObjectMissing as error:
            return f"{error.key} is gone"
        return lost(store, self.record, made)

    def version(self, branch: str, num_lanes: int, timings: Mapping[str, float]) -> Version:
        """What the caller gets to see of it, on every rank."""
        return Version.of(
            self.record,
            branch=branch,
            num_lanes=num_lanes,
            changed_lanes=self.changed_lanes,
            stored_bytes=self.stored_bytes,
            timings=timings,
        )


def _mark_json(mark: Mark) -> list[Any]:
    return [mark.at.isoformat(), mark.settings]


def _mark(found: list[Any]) -> Mark:
    return Mark(datetime.fromisoformat(found[0]), found[1])
