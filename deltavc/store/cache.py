"""A bounded cache of a remote store's immutable objects, in a local directory that processes share.

Only objects that are named by their content are kept: what is cached cannot be out of date. Each range that is
read is a file, whole objects being the range from 0 to the end:

    <directory>/<2 hex>/<hash of store and key>/<start>-<nbytes>     BLAKE3 of the bytes, then the bytes

An answer that is cut short, or a whole object that is not what its name says, is not kept. A file that is damaged
is a miss and goes away. A cache that cannot be read or written (a full disk, a directory of somebody else) is
slow, never wrong, and never fails a read of the store.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from blake3 import blake3

from deltavc.store.files import is_temporary, new_file
from deltavc.store.objects import STALE, Body, ObjectInfo, Store, check_key

_CACHED = ("edges/", "layouts/", "packs/", "versions/")
_DIGEST = 32  # bytes of BLAKE3 before the content
_UNFINISHED = 3600  # seconds after which a temporary file has no writer any more

_log = logging.getLogger(__name__)


class CachedStore:
    """A store that keeps what it read from another one.

    Args:
        store: where misses and everything that is not cached go.
        directory: created when needed; several stores and processes may share it.
        max_bytes: what all files together may take. Least recently used ones go first; a process that writes
            notices at the latest after a sixteenth of this, and nothing larger than an eighth is kept.
    """

    def __init__(self, store: Store, directory: str | os.PathLike[str], max_bytes: int) -> None:
        self._store = store
        self._directory = Path(directory)
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._until_trim = 0  # bytes to write before looking at the size again; the first write looks

    @property
    def behind(self) -> Store:
        """The store that misses go to."""
        return self._store

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def remote(self) -> bool:
        return self._store.remote

    def prepare(self) -> None:
        self._store.prepare()

    def sweep(self, older_than: timedelta = STALE) -> int:
        return self._store.sweep(older_than)

    def now(self) -> datetime:
        return self._store.now()

    def get(self, key: str, start: int = 0, nbytes: int | None = None) -> bytes:
        if not check_key(key).startswith(_CACHED):
            return self._store.get(key, start, nbytes)
        path = self._place(key) / f"{start}-{'end' if nbytes is None else nbytes}"
        body = self._read(path)
        if body is None:
            body = self._store.get(key, start, nbytes)
            if len(body) <= self._max_bytes // 8 and _is_sound(key, start, nbytes, body):
                self._write(path, body)
        return body

    def put(self, key: str, body: Body) -> None:
        self._store.put(key, body)
        self.forget(key)

    def create(self, key: str, body: Body) -> bool:
        return self._store.create(key, body)

    def put_path(self, key: str, path: str | os.PathLike[str]) -> None:
        self._store.put_path(key, path)
        self.forget(key)

    def get_path(self, key: str, path: str | os.PathLike[str]) -> None:
        self._store.get_path(key, path)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self._store.list(prefix)

    def prefixes(self, prefix: str = "") -> Iterator[str]:
        return self._store.prefixes(prefix)

    def stat(self, key: str) -> ObjectInfo:
        return self._store.stat(key)

    def delete(self, key: str) -> None:
        self._store.delete(key)
        self.forget(key)

    def forget(self, key: str) -> None:
        if key.startswith(_CACHED):
            shutil.rmtree(self._place(key), ignore_errors=True)
        self._store.forget(key)

    def _place(self, key: str) -> Path:
        name = blake3(f"{self.url}\0{key}".encode()).hexdigest()
        return self._directory / name[:2] / name

    def _read(self, path: Path) -> bytes | None:
        try:
            with open(path, "rb") as file:
                digest, body = file.read(_DIGEST), file.read()
            if blake3(body).digest() == digest:
                os.utime(path)  # recently used; access times are rarely kept by file systems
                return body
            _log.warning("cache file %s is damaged; reading the store", path)
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            _log.warning("cannot read cache file %s: %s", path, error)
        return None

    def _write(self, path: Path, body: bytes) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with new_file(str(path)) as new:
                # Not brought to the disk: after a power cut the checksum tells.
                new.file.write(blake3(body).digest())
                new.file.write(body)
                new.file.flush()
                os.replace(new.path, path)
            self._account(len(body))
        except OSError as error:
            _log.warning("cannot write cache file %s: %s", path, error)

    def _account(self, nbytes: int) -> None:
        with self._lock:
            self._until_trim -= nbytes
            if self._until_trim > 0:
                return
            self._until_trim = self._max_bytes // 16
        self._trim()

    def _trim(self) -> None:
        """Remove the least recently used files until an eighth of the room is free, if there is too much."""
        files = sorted(self._files())
        nbytes = sum(size for _, size, _ in files)
        if nbytes <= self._max_bytes:
            return
        for _, size, path in files:
            if nbytes <= self._max_bytes - self._max_bytes // 8:
                break
            _remove(path)
            nbytes -= size

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """When each file was last used, its size and path; what killed writers left is removed on the way."""
        for parent, _, names in os.walk(self._directory):
            for name in names:
                path = Path(parent, name)
                try:
                    found = path.stat()
                except FileNotFoundError:
                    continue  # another process was faster
                if is_temporary(name):
                    if found.st_mtime < time.time() - _UNFINISHED:
                        _remove(path)
                else:
                    yield found.st_mtime, found.st_size, path


def uncached(store: Store) -> Store:
    """The store behind a cache, for whoever wants to know what the store itself holds."""
    return store.behind if isinstance(store, CachedStore) else store


def _is_sound(key: str, start: int, nbytes: int | None, body: bytes) -> bool:
    """Whether this is what was asked for, as far as can be told here: a damaged answer must not come back for ever."""
    if nbytes is not None and len(body) == nbytes:
        return True
    name = key.rpartition("/")[2].partition(".")[0]
    return (nbytes is None and start > 0) or (start == 0 and blake3(body).hexdigest() == name)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
        path.parent.rmdir()
    except OSError:
        pass  # the directory holds other ranges
