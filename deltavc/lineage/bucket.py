"""The part of an object store that lineage uses, and how its objects are read and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from deltavc.errors import BadPayload, CorruptObject, MissingObject, ObjectMissing
from deltavc.layout import Layout
from deltavc.lineage.records import EdgeRecord, VersionRecord, edges_prefix, layout_key, version_key

_T = TypeVar("_T")


class Listed(Protocol):
    """One line of a listing."""

    @property
    def key(self) -> str: ...


class Bucket(Protocol):
    """What lineage asks of an object store. Every call may raise StoreError."""

    def get(self, key: str) -> bytes:
        """The object's bytes. Raises ObjectMissing."""

    def put(self, key: str, body: bytes) -> None:
        """Write an object, over another if there is one."""

    def create(self, key: str, body: bytes) -> bool:
        """Write an object only if there is none under this key; whether it was written."""

    def list(self, prefix: str) -> Iterator[Listed]:
        """All objects whose key starts with `prefix`, in any order."""


def read(bucket: Bucket, key: str, parse: Callable[[bytes], _T], version: str | None = None) -> _T:
    """Get an object that something refers to, and parse it.

    Raises:
        MissingObject: it is not there.
        CorruptObject: `parse` raised BadPayload.
    """
    try:
        body = bucket.get(key)
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


def read_edges(bucket: Bucket, target: str) -> list[EdgeRecord]:
    """Every edge that leads to `target`, in the order of their ids. Raises CorruptObject."""
    edges = []
    for key in sorted(item.key for item in bucket.list(edges_prefix(target))):
        try:
            edge = read(bucket, key, EdgeRecord.parse, target)
        except MissingObject:
            continue  # dropped since it was listed
        if edge.key != key:
            raise CorruptObject(key, "its content is not what its name says", target)
        edges.append(edge)
    return edges


_Named = TypeVar("_Named", VersionRecord, Layout)


def _named(record: _Named, expected: str, key: str, version: str | None) -> _Named:
    if record.id != expected:
        raise CorruptObject(key, "its content is not what its name says", version)
    return record
