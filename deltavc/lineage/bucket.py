"""The part of an object store that lineage uses, and how its objects are read and checked."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Set
from typing import Protocol, TypeVar

from deltavc import canonical
from deltavc.errors import BadPayload, CorruptObject, MissingObject, ObjectMissing
from deltavc.layout import Layout
from deltavc.lineage.records import (
    EdgeRecord,
    VersionRecord,
    drops_prefix,
    edge_key,
    edges_prefix,
    layout_key,
    version_key,
)

_OF_EDGE = re.compile(r"(?:edges|drops)/(?P<target>[0-9a-f]{64})/(?P<edge>[0-9a-f]{64})\.json")
_T = TypeVar("_T")


class Listed(Protocol):
    """One line of a listing."""

    @property
    def key(self) -> str: ...


class Bucket(Protocol):
    """What lineage asks of an object store. Every call may raise StoreError."""

    def get(self, key: str, start: int = 0, nbytes: int | None = None) -> bytes:
        """The object's bytes from `start`, at most `nbytes` of them. Raises ObjectMissing."""

    def put(self, key: str, body: bytes) -> None:
        """Write an object, over another if there is one."""

    def create(self, key: str, body: bytes) -> bool:
        """Write an object only if there is none under this key; whether it was written."""

    def list(self, prefix: str) -> Iterator[Listed]:
        """All objects whose key starts with `prefix`, in any order."""

    def prefixes(self, prefix: str) -> Iterator[str]:
        """The prefixes one level below `prefix`, each with its slash, in any order; perhaps some without objects."""


def read(bucket: Bucket, key: str, parse: Callable[[bytes], _T], version: str | None = None) -> _T:
    """Get an object that something refers to, and parse it.

    Raises:
        MissingObject: it is not there.
        CorruptObject: `parse` raised BadPayload.
    """
    try:
        body = bucket.get(key, 0, canonical.MAX_BYTES + 1)  # one more is as good as any number more
    except ObjectMissing as error:
        raise MissingObject(key, version=version) from error
    try:
        return parse(body)
    except BadPayload as error:
        raise CorruptObject(key, error.reason, version) from error


def read_version(bucket: Bucket, version: str) -> VersionRecord:
    """Raises MissingObject, CorruptObject."""
    key = version_key(version)
    return _named(read(bucket, key, VersionRecord.parse, version), version, key, version)


def read_layout(bucket: Bucket, layout: str, version: str | None = None) -> Layout:
    """Raises MissingObject, CorruptObject."""
    key = layout_key(layout)
    return _named(read(bucket, key, Layout.parse, version), layout, key, version)


def listed_edges(bucket: Bucket, prefix: str) -> Iterator[tuple[str, str]]:
    """Target and id of the edges, or of the drops, whose keys lie below this prefix. Other keys are passed over."""
    for item in bucket.list(prefix):
        if found := edge_of(item.key):
            yield found


def edge_of(key: str) -> tuple[str, str] | None:
    """Target and id of the edge that this is the key of, or of its drop."""
    found = _OF_EDGE.fullmatch(key)
    return None if found is None else (found["target"], found["edge"])


def read_edges(bucket: Bucket, target: str, dropped: Callable[[str], Set[str]] | None = None) -> list[EdgeRecord]:
    """Every edge that leads to `target` and was not dropped, in the order of their ids.

    Args:
        dropped: gives ids of the dropped edges to a version (`Drops.of`); None lists them.

    Raises:
        CorruptObject
    """
    ids = {edge for _, edge in listed_edges(bucket, edges_prefix(target))}
    if not ids:
        return []
    # After the edges: whatever is dropped before it is looked at is seen to be.
    ids -= {edge for _, edge in listed_edges(bucket, drops_prefix(target))} if dropped is None else dropped(target)
    edges = []
    for edge in sorted(ids):
        with contextlib.suppress(MissingObject):  # gone since it was listed
            edges.append(read_edge(bucket, target, edge))
    return edges


def read_edge(bucket: Bucket, target: str, edge: str) -> EdgeRecord:
    """Raises MissingObject, CorruptObject."""
    key = edge_key(target, edge)
    record = read(bucket, key, EdgeRecord.parse, target)
    if record.key != key:
        raise CorruptObject(key, "its content is not what its name says", target)
    return record


_Named = TypeVar("_Named", VersionRecord, Layout)


def _named(record: _Named, expected: str, key: str, version: str | None) -> _Named:
    if record.id != expected:
        raise CorruptObject(key, "its content is not what its name says", version)
    return record
