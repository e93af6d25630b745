"""The objects of the lineage as the bucket keeps them: versions, edges and ref entries.

Each is canonical JSON. A record is read strictly: whatever `body` could not have written is BadPayload.

    version    a point in the lineage; named by the BLAKE3 of its body; never changes
    edge       how to get from one version's weights (or from nothing) to another's
    ref entry  one move of a branch or tag; created if absent, which is the commit
"""

from __future__ import annotations

import functools
import itertools
import json
from dataclasses import dataclass, field
from typing import Any, TypeVar

from deltavc import canonical
from deltavc.errors import BadMetadata, BadPayload, BadRefName
from deltavc.lineage.fields import (
    FILE,
    ID,
    RANDOM,
    U64,
    integer,
    items,
    json_object,
    match,
    members,
    moment,
    one_of,
    text,
    typed,
)
from deltavc.lineage.names import BRANCHES, TAGS, check_name

EDGES = "edges/"
DROPS = "drops/"

MAX_METRIC_NAME = 200
"""Characters in a metric's name: databases index it."""


@dataclass(frozen=True, slots=True)
class FileRef:
    """A file kept with a version: the BLAKE3 of its bytes, the upload it came with, and its size."""

    id: str
    nbytes: int

    @property
    def key(self) -> str:
        return f"files/{self.id[:2]}/{self.id}"


@dataclass(frozen=True)
class VersionRecord:
    """A version as stored. `time` is UTC with microseconds: 2026-01-02T03:04:05.678901Z.

    metrics: name to number, non-finite ones as the strings NaN, Infinity, -Infinity.
    files: name to the file kept under it. source: where its tensors came from, when read from files.
    """

    parents: tuple[str, ...]
    layout: str
    fingerprint: str
    step: int | None = None
    message: str = ""
    author: str = ""
    time: str = ""
    metrics: dict[str, float | str] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    files: dict[str, FileRef] = field(default_factory=dict)
    source: dict[str, Any] | None = None

    @functools.cached_property
    def body(self) -> bytes:
        """Canonical JSON.

        Raises:
            BadMetadata: message, metrics, meta or file names that JSON cannot hold.
        """
        record: dict[str, Any] = {
            "parents": list(self.parents),
            "layout": self.layout,
            "fingerprint": self.fingerprint,
            "step": self.step,
            "message": self.message,
            "author": self.author,
            "time": self.time,
            "metrics": self.metrics,
            "meta": self.meta,
            "files": {name: {"id": file.id, "nbytes": file.nbytes} for name, file in self.files.items()},
        }
        if self.source is not None:
            record["source"] = self.source
        return canonical.dumps(record, "version")

    @functools.cached_property
    def id(self) -> str:
        return canonical.content_id(self.body)

    @property
    def key(self) -> str:
        return version_key(self.id)

    @classmethod
    def parse(cls, body: bytes) -> VersionRecord:
        """Read a stored version. Raises BadPayload."""
        item = json_object(body, "version")
        try:
            record = cls(
                parents=tuple(match(ID, parent) for parent in items(item["parents"])),
                layout=match(ID, item["layout"]),
                fingerprint=match(ID, item["fingerprint"]),
                step=None if item["step"] is None else integer(item["step"], low=-canonical.MAX_INTEGER),
                message=text(item["message"]),
                author=text(item["author"]),
                time=moment(item["time"]),
                metrics={_metric_name(name): _metric(value) for name, value in members(item["metrics"]).items()},
                meta=members(item["meta"]),
                files={name: _file(value) for name, value in members(item["files"]).items()},
                source=None if item.get("source") is None else members(item["source"]),
            )
        except (KeyError, ValueError) as error:
            raise BadPayload(f"not a version: {error}") from error
        return _same_body(record, body, "version")


@dataclass(frozen=True, slots=True)
class PackUse:
    """What an edge takes of one pack.

    index: offset, stored bytes and unpacked bytes of the pack's index. frames: which of its frames, by
    their number in the index, ascending; None for all of them, which is how an edge names packs written for it.
    """

    pack: str
    nbytes: int
    index: tuple[int, int, int]
    frames: tuple[int, ...] | None = None

    @property
    def key(self) -> str:
        return pack_key(self.pack)


@dataclass(frozen=True)
class EdgeRecord:
    """An edge as stored.

    base: a version id, or None for nothing (then the edge is a snapshot).
    layout, base_layout: ids of the target's and the base's layout.
    changed, fingerprints: places in the target's layout of the tensors with frames here, ascending, and
        the target's fingerprint of each as 16 hex digits. A snapshot lists every stored tensor.
    reversible: whether it can be walked back; False for snapshots and when tensors were dropped or retyped.
    nbytes: bytes of the frames it uses. changes: lanes that differ between base and target; new tensors count
        whole, and so does everything in a snapshot.
    origin: "commit" when written with its version, "compact" when added later.
    """

    base: str | None
    target: str
    layout: str
    base_layout: str | None
    packs: tuple[PackUse, ...]
    changed: tuple[int, ...]
    fingerprints: tuple[str, ...]
    reversible: bool
    nbytes: int
    changes: int
    origin: str = "commit"

    @functools.cached_property
    def body(self) -> bytes:
        packs = []
        for use in self.packs:
            item: dict[str, Any] = {"pack": use.pack, "nbytes": use.nbytes, "index": list(use.index)}
            if use.frames is not None:
                item["frames"] = list(use.frames)
            packs.append(item)
        return canonical.dumps(
            {
                "base": self.base,
                "target": self.target,
                "layout": self.layout,
                "base_layout": self.base_layout,
                "packs": packs,
                "changed": list(self.changed),
                "fingerprints": list(self.fingerprints),
                "reversible": self.reversible,
                "nbytes": self.nbytes,
                "changes": self.changes,
                "origin": self.origin,
            },
            "edge",
        )

    @functools.cached_property
    def id(self) -> str:
        return canonical.content_id(self.body)

    @property
    def key(self) -> str:
        return edge_key(self.target, self.id)

    @property
    def new_bytes(self) -> int:
        """Bytes of the packs that were written for it."""
        return sum(use.nbytes for use in self.packs if use.frames is None)

    @classmethod
    def parse(cls, body: bytes) -> EdgeRecord:
        """Read a stored edge. Raises BadPayload."""
        item = json_object(body, "edge")
        try:
            record = cls(
                base=None if item["base"] is None else match(ID, item["base"]),
                target=match(ID, item["target"]),
                layout=match(ID, item["layout"]),
                base_layout=None if item["base_layout"] is None else match(ID, item["base_layout"]),
                packs=tuple(_pack_use(members(use)) for use in items(item["packs"])),
                changed=tuple(integer(place) for place in items(item["changed"])),
                fingerprints=tuple(match(U64, value) for value in items(item["fingerprints"])),
                reversible=typed(bool, item["reversible"]),
                nbytes=integer(item["nbytes"]),
                changes=integer(item["changes"]),
                origin=one_of(item["origin"], ("commit", "compact")),
            )
            if len(record.changed) != len(record.fingerprints):
                raise ValueError("changed and fingerprints differ in length")
            if any(a >= b for a, b in zip(record.changed, record.changed[1:], strict=False)):
                raise ValueError("changed is not ascending")
            if (record.base is None) != (record.base_layout is None) or (record.base is None and record.reversible):
                raise ValueError("base, base_layout and reversible disagree")
        except (KeyError, ValueError) as error:
            raise BadPayload(f"not an edge: {error}") from error
        return _same_body(record, body, "edge")

    @classmethod
    def trusted(cls, body: bytes) -> EdgeRecord:
        """Read a body that `parse` accepted before, 20 times faster by not checking it again."""
        item = json.loads(body)
        packs = (
            PackUse(use["pack"], use["nbytes"], tuple(use["index"]), tuple(use["frames"]) if "frames" in use else None)
            for use in item["packs"]
        )
        item |= {"packs": tuple(packs), "changed": tuple(item["changed"]), "fingerprints": tuple(item["fingerprints"])}
        return cls(**item)


@dataclass(frozen=True)
class RefEntry:
    """One move of a ref. `ref` is its full name: branches/main, tags/v1. Sequences start at 1.

    old: where it was, None at its creation (or after a deletion). new: where it goes, None to delete it.
    write_id: random, so that a writer whose answer was lost can recognise its own entry.
    """

    ref: str
    sequence: int
    old: str | None
    new: str | None
    who: str
    when: str
    why: str
    write_id: str

    @functools.cached_property
    def body(self) -> bytes:
        return canonical.sealed(
            {
                "ref": self.ref,
                "sequence": self.sequence,
                "old": self.old,
                "new": self.new,
                "who": self.who,
                "when": self.when,
                "why": self.why,
                "write_id": self.write_id,
            },
            "ref entry",
        )

    @property
    def key(self) -> str:
        return ref_entry_key(self.ref, self.sequence)

    @classmethod
    def parse(cls, body: bytes) -> RefEntry:
        """Read a stored ref entry. Raises BadPayload."""
        item = canonical.unsealed(body)
        try:
            record = cls(
                ref=_ref(item["ref"]),
                sequence=integer(item["sequence"], low=1),
                old=None if item["old"] is None else match(ID, item["old"]),
                new=None if item["new"] is None else match(ID, item["new"]),
                who=text(item["who"]),
                when=moment(item["when"]),
                why=text(item["why"]),
                write_id=match(RANDOM, item["write_id"]),
            )
        except (KeyError, ValueError, BadRefName) as error:
            raise BadPayload(f"not a ref entry: {error}") from error
        return _same_body(record, body, "ref entry")


def version_key(version: str) -> str:
    return f"versions/{version[:2]}/{version}.json"


def layout_key(layout: str) -> str:
    return f"layouts/{layout[:2]}/{layout}.json"


def pack_key(pack: str) -> str:
    return f"packs/{pack[:2]}/{pack}.pack"


def edges_prefix(target: str) -> str:
    return f"{EDGES}{target}/"


def edge_key(target: str, edge: str) -> str:
    return f"{edges_prefix(target)}{edge}.json"


def drops_prefix(target: str) -> str:
    return f"{DROPS}{target}/"


def drop_key(target: str, edge: str) -> str:
    """Where the record lies that an edge to `target` is no more."""
    return f"{drops_prefix(target)}{edge}.json"


def ref_prefix(ref: str) -> str:
    """Where a ref's entries lie: under the BLAKE3 of its full name, cut to 32 hex digits."""
    return f"refs/{canonical.content_id(ref.encode())[:32]}/"


def ref_entry_key(ref: str, sequence: int) -> str:
    return f"{ref_prefix(ref)}{sequence:012d}.json"


def ref_hint_key(ref: str) -> str:
    return f"{ref_prefix(ref)}last"


_Record = TypeVar("_Record", VersionRecord, EdgeRecord, RefEntry)


def _same_body(record: _Record, body: bytes, what: str) -> _Record:
    try:
        canonical_body = record.body
    except BadMetadata as error:
        raise BadPayload(f"not a {what}: {error}") from error
    if canonical_body != bytes(body):
        raise BadPayload(f"not a {what}: it is not in canonical form")
    return record


def _metric_name(name: str) -> str:
    if not 1 <= len(name) <= MAX_METRIC_NAME:
        raise ValueError(f"a metric's name of {len(name)} characters")
    return name


def _metric(value: Any) -> float | str:
    if value in ("NaN", "Infinity", "-Infinity"):
        return str(value)
    if type(value) not in (int, float):
        raise ValueError(f"{str(value)[:40]!r} is not a metric")
    return value  # type: ignore[no-any-return]


def _ref(value: Any) -> str:
    name = text(value)
    if name.startswith((BRANCHES, TAGS)):  # other kinds of refs may come, and are passed over
        check_name(name.partition("/")[2])
    return name


def _file(value: Any) -> FileRef:
    item = members(value)
    return FileRef(match(FILE, item["id"]), integer(item["nbytes"]))


def _pack_use(item: dict[str, Any]) -> PackUse:
    offset, nbytes, unpacked = (integer(value) for value in items(item["index"]))
    frames = None if "frames" not in item else tuple(integer(frame) for frame in items(item["frames"]))
    if frames is not None and any(a >= b for a, b in itertools.pairwise(frames)):
        raise ValueError("the frames of a pack are not ascending")
    return PackUse(match(ID, item["pack"]), integer(item["nbytes"]), (offset, nbytes, unpacked), frames)
