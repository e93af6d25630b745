"""A store in this process's memory: memory://name is the same store whoever opens it, until the process ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from deltavc.errors import ObjectMissing
from deltavc.store.files import file_errors, replacing
from deltavc.store.objects import STALE, Body, ObjectInfo, check_key, check_prefix, check_range


class MemoryStore:
    """Objects in a dict. Bodies are copied in, so callers may reuse their buffers."""

    remote = False

    def __init__(self, url: str) -> None:
        self.url = url
        self._objects: dict[str, tuple[bytes, datetime]] = {}
        self._lock = threading.Lock()

    @classmethod
    def named(cls, name: str) -> MemoryStore:
        """The one store of this name in this process."""
        with _NAMED_LOCK:
            if name not in _NAMED:
                _NAMED[name] = cls(f"memory://{name}")
            return _NAMED[name]

    def prepare(self) -> None:
        pass

    def sweep(self, older_than: timedelta = STALE) -> int:
        return 0

    def now(self) -> datetime:
        return datetime.now(UTC)

    def get(self, key: str, start: int = 0, nbytes: int | None = None) -> bytes:
        check_range(start, nbytes)
        body, _ = self._find(key)
        return body[start:] if nbytes is None else body[start : start + nbytes]

    def put(self, key: str, body: Body) -> None:
        entry = (bytes(body), self.now())
        with self._lock:
            self._objects[check_key(key)] = entry

    def create(self, key: str, body: Body) -> bool:
        entry = (bytes(body), self.now())
        with self._lock:
            return self._objects.setdefault(check_key(key), entry) is entry

    def put_path(self, key: str, path: str | os.PathLike[str]) -> None:
        check_key(key)
        with file_errors(os.fspath(path), "reading"), open(path, "rb") as file:
            body = file.read()
        self.put(key, body)

    def get_path(self, key: str, path: str | os.PathLike[str]) -> None:
        body, _ = self._find(key)
        with file_errors(os.fspath(path), "writing"), replacing(os.fspath(path)) as file:
            file.write(body)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        with self._lock:
            entries = list(self._objects.items())
        for key, (body, modified) in entries:
            if key.startswith(prefix):
                yield ObjectInfo(key, len(body), modified)

    def prefixes(self, prefix: str = "") -> Iterator[str]:
        rests = (found.key[len(prefix) :] for found in self.list(prefix))
        yield from {f"{prefix}{rest.partition('/')[0]}/" for rest in rests if "/" in rest}

    def stat(self, key: str) -> ObjectInfo:
        body, modified = self._find(key)
        return ObjectInfo(key, len(body), modified)

    def delete(self, key: str) -> None:
        with self._lock:
            self._objects.pop(check_key(key), None)

    def forget(self, key: str) -> None:
        pass

    def _find(self, key: str) -> tuple[bytes, datetime]:
        try:
            return self._objects[check_key(key)]
        except KeyError:
            raise ObjectMissing(key) from None


_NAMED: dict[str, MemoryStore] = {}
_NAMED_LOCK = threading.Lock()
