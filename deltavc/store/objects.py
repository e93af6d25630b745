"""Objects: bytes under keys, and the few operations that a repository is built from.

Every store, local or remote, gives the same promises:

- An object is there whole or not at all, for every reader, at every moment, whatever is killed when.
- `create` succeeds for exactly one of any number of callers, on any number of machines.
- A write that has returned is seen by every get, stat and list that starts after it.

    store = open_store("s3://bucket/runs")
    store.create("refs/ab/000000000001.json", body)     # True, or False: somebody was first

Calls block, and may be made from many threads and after a fork. What a store cannot do ends in a StoreError.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeAlias

from deltavc.errors import StoreUnfit
from deltavc.store.urls import locate

Body: TypeAlias = bytes | bytearray | memoryview

STALE = timedelta(days=1)
"""When what an unfinished write left behind may go. Far longer than any single upload takes."""

_KEY = re.compile(r"(?!.*\.tmp-)[a-z0-9_-][a-z0-9._-]*(?:/[a-z0-9_-][a-z0-9._-]*)*")
_PREFIX = re.compile(rf"(?:{_KEY.pattern}/)?")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store knows of an object without reading it. `modified` is aware, by the store's own clock."""

    key: str
    nbytes: int
    modified: datetime


class Store(Protocol):
    """Keeps immutable bytes under keys: slash-separated parts of a-z, 0-9 and . _ - that start with no dot.

    A key or prefix of another form is a ValueError, before anything is touched. Every operation may raise
    StoreDenied, StoreUnavailable (after the store's own retries) and, when it writes, StoreFull.
    """

    @property
    def url(self) -> str:
        """Where it is, without credentials: fit for logs and errors."""

    @property
    def remote(self) -> bool:
        """Whether a request costs a trip over the network."""

    def prepare(self) -> None:
        """Make the place ready for a new repository: create the directory of a local store."""

    def sweep(self, older_than: timedelta = STALE) -> int:
        """Remove what killed writers left half-written, and return how much was removed.

        Only leftovers that the store's own clock calls older than `older_than`; never an object.
        """

    def now(self) -> datetime:
        """The time by the clock that stamps `ObjectInfo.modified`."""

    def get(self, key: str, start: int = 0, nbytes: int | None = None) -> bytes:
        """Return the object's bytes from `start`, `nbytes` of them or all.

        A range that reaches beyond the end gives what there is, perhaps nothing: callers check lengths.

        Raises:
            ObjectMissing: nothing is there.
        """

    def put(self, key: str, body: Body) -> None:
        """Write the object, replacing one that is there, as one step."""

    def create(self, key: str, body: Body) -> bool:
        """Write the object if nothing is there, as one step. Return whether this call wrote it.

        False may be wrong in one case: the write landed, its answer was lost, and a retry found the object.
        Callers that must know put something unique into the body and read it back.
        """

    def put_path(self, key: str, path: str | os.PathLike[str]) -> None:
        """Upload a file, of any size in bounded memory; otherwise like `put`."""

    def get_path(self, key: str, path: str | os.PathLike[str]) -> None:
        """Download to a file, of any size in bounded memory. The file appears whole or not at all.

        Raises:
            ObjectMissing: nothing is there.
        """

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object below `prefix`, in no order; "" is the whole store, others end with a slash.

        A listing that fails raises, at the latest at its end; it never just looks shorter. Objects that were
        put there by others are listed under the names they have.
        """

    def prefixes(self, prefix: str = "") -> Iterator[str]:
        """Yield the prefixes one level below `prefix` that objects have, in no order, without listing the objects.

        With objects a/b/c and a/d, "" has the prefix "a/", and "a/" has "a/b/". Where prefixes are directories, one
        whose objects were deleted may go on being there. Fails as `list` does.
        """

    def stat(self, key: str) -> ObjectInfo:
        """Return what is known of the object.

        Raises:
            ObjectMissing: nothing is there.
        """

    def delete(self, key: str) -> None:
        """Remove the object; that it is not there is fine."""

    def forget(self, key: str) -> None:
        """Drop any copy kept nearer than the store, so that the next get reads the store itself.

        For a caller whose checksum failed; a store without a cache has nothing to do.
        """


def open_store(url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Store:
    """Return the store at `url`; nothing is touched yet.

    Args:
        url: a path, file:///path, memory://name (shared within this process) or s3://bucket/prefix.
        storage_options: for S3, what s3fs.S3FileSystem takes: key, secret, client_kwargs and so on.

    Raises:
        StoreUnfit: deltavc has no store for this URL, or what it needs is not installed.
    """
    where = locate(url)
    options = dict(storage_options or {})
    match where.scheme:
        case "file":
            from deltavc.store.local import LocalStore

            return LocalStore(where.place)
        case "memory":
            from deltavc.store.memory import MemoryStore

            return MemoryStore.named(where.place)
        case _:
            try:
                from deltavc.store.s3 import S3Store
            except ModuleNotFoundError as error:
                raise StoreUnfit(where.url, f"{error.name} is not installed; pip install 'deltavc[s3]'") from error
            if where.key is not None:
                options |= {"key": where.key, "secret": where.secret}
            return S3Store(where.place, options)


def check_key(key: str) -> str:
    """Return `key`, or raise ValueError if it could lead anywhere but to an object of ours."""
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key!r} cannot be the key of an object")
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix`, or raise ValueError unless it is empty or a key's leading parts and a slash."""
    if not _PREFIX.fullmatch(prefix):
        raise ValueError(f"{prefix!r} is not a prefix of keys; a prefix ends with a slash")
    return prefix


def check_range(start: int, nbytes: int | None) -> None:
    """Raise ValueError for a range that no object has."""
    if start < 0 or (nbytes is not None and nbytes < 0):
        raise ValueError(f"there is no range of {nbytes} bytes at {start}")
