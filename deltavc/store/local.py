"""A store in a directory: a key is a path below it.

Objects get their names by rename (put) or by hard link (create): both are single steps of the file system, and
a link refuses a name that is taken. Everything is on the disk before it has its name, and the name before the
call returns.

The root is only created by `prepare`. If it goes away later (a disk that was unmounted), operations fail; they
do not start another repository in its place.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import BinaryIO

from deltavc.errors import ObjectMissing, StoreUnfit
from deltavc.store.files import (
    NewFile,
    copy_bytes,
    file_errors,
    is_temporary,
    new_file,
    replacing,
    store_error,
    sync_directory,
)
from deltavc.store.objects import STALE, Body, ObjectInfo, check_key, check_prefix, check_range

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
_ATTEMPTS = 100  # to be faster than those who delete; each is two system calls


class LocalStore:
    """Objects as files below the directory `root`, on any file system with hard links."""

    remote = False

    def __init__(self, root: str) -> None:
        self.url = root
        self._root = root
        self._was_there = os.path.isdir(root)

    def prepare(self) -> None:
        with file_errors(self.url, "creating the directory"):
            try:
                os.makedirs(self._root, exist_ok=True)
            except (FileExistsError, NotADirectoryError) as error:
                raise StoreUnfit(self.url, "it, or a folder that it should lie in, is a file") from error
            sync_directory(os.path.dirname(self._root))
        self._was_there = True

    def sweep(self, older_than: timedelta = STALE) -> int:
        before = (self.now() - older_than).timestamp()
        removed = 0
        with file_errors(self.url, "sweeping"):
            for entry in self._walk(self._root):
                with suppress(FileNotFoundError):  # finished or swept by somebody else
                    if is_temporary(entry.name) and _stat(entry).st_mtime < before:
                        os.unlink(entry.path)
                        removed += 1
        return removed

    def now(self) -> datetime:
        # The file system's clock is not this machine's when the file system is a network one.
        with file_errors(self.url, "making a file"), new_file(os.path.join(self._root, "now")) as new:
            return _time(os.fstat(new.file.fileno()))

    def get(self, key: str, start: int = 0, nbytes: int | None = None) -> bytes:
        check_range(start, nbytes)
        with self._open(key) as file, file_errors(self.url, f"get {key}"):
            # `read` allocates what it is asked for, and a caller may ask for more than there is.
            there = max(0, os.fstat(file.fileno()).st_size - start)
            file.seek(start)
            return file.read(there if nbytes is None else min(nbytes, there))

    def put(self, key: str, body: Body) -> None:
        self._write("put", key, lambda file: file.write(body), _replace)

    def create(self, key: str, body: Body) -> bool:
        return self._write("create", key, lambda file: file.write(body), self._link)

    def put_path(self, key: str, path: str | os.PathLike[str]) -> None:
        with file_errors(os.fspath(path), "reading"):
            source = open(path, "rb")  # noqa: SIM115 - its errors are not the store's
        with source:
            self._write("put", key, lambda file: copy_bytes(source, file), _replace)

    def get_path(self, key: str, path: str | os.PathLike[str]) -> None:
        target = os.fspath(path)
        with self._open(key) as source, file_errors(target, "writing"), replacing(target) as file:
            copy_bytes(source, file)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        top = self._path(check_prefix(prefix).rstrip("/"))
        with file_errors(self.url, f"list {prefix}"):
            for entry in self._walk(top):
                if is_temporary(entry.name):
                    continue
                try:
                    found = _stat(entry)
                except FileNotFoundError:
                    continue  # deleted since its name was read
                yield ObjectInfo(os.path.relpath(entry.path, self._root), found.st_size, _time(found))
        self._check_root(f"list {prefix}")

    def prefixes(self, prefix: str = "") -> Iterator[str]:
        with file_errors(self.url, f"list {prefix}"):
            for entry in self._entries(self._path(check_prefix(prefix).rstrip("/"))):
                if entry.is_dir(follow_symlinks=False):
                    yield f"{prefix}{entry.name}/"
        self._check_root(f"list {prefix}")

    def stat(self, key: str) -> ObjectInfo:
        path = self._path(check_key(key))
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            raise self._missing(key, "stat") from None
        except OSError as error:
            raise store_error(self.url, f"stat {key}", error) from error
        if os.path.isdir(path):
            raise ObjectMissing(key)
        return ObjectInfo(key, found.st_size, _time(found))

    def delete(self, key: str) -> None:
        path = self._path(check_key(key))
        try:
            os.unlink(path)
        except (FileNotFoundError, NotADirectoryError):
            self._check_root(f"delete {key}")
            return
        except OSError as error:
            raise store_error(self.url, f"delete {key}", error) from error
        self._remove_empty(os.path.dirname(path))

    def forget(self, key: str) -> None:
        pass

    def _path(self, key: str) -> str:
        return os.path.join(self._root, key) if key else self._root

    def _open(self, key: str) -> BinaryIO:
        try:
            return open(self._path(check_key(key)), "rb")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise self._missing(key, "get") from None
        except OSError as error:
            raise store_error(self.url, f"get {key}", error) from error

    def _missing(self, key: str, operation: str) -> ObjectMissing:
        """What to raise when a key has no file, unless there is more to it: a directory that is gone."""
        if self._was_there:
            self._check_root(f"{operation} {key}")
        return ObjectMissing(key)

    def _check_root(self, operation: str) -> None:
        with file_errors(self.url, operation):
            os.stat(self._root)

    def _write(
        self, operation: str, key: str, fill: Callable[[BinaryIO], object], place: Callable[[NewFile, str], bool]
    ) -> bool:
        target = self._path(check_key(key))
        directory = os.path.dirname(target)
        with file_errors(self.url, f"{operation} {key}"), self._new_file(target) as new:
            fill(new.file)
            new.sync()
            placed = place(new, target)
            with suppress(FileNotFoundError):  # deleted by somebody already, directory and all
                sync_directory(directory)
            return placed

    @contextmanager
    def _new_file(self, target: str) -> Iterator[NewFile]:
        with ExitStack() as stack:
            for attempt in itertools.count(1):
                try:
                    self._make_directory(os.path.dirname(target))
                    new = stack.enter_context(new_file(target))
                    break
                except FileNotFoundError:
                    # Whoever deleted the directory's last object removed it before our file was in it.
                    if attempt == _ATTEMPTS or not os.path.isdir(self._root):
                        raise
            yield new

    def _make_directory(self, directory: str) -> None:
        """Create a directory below the root; the root itself must be there."""
        try:
            os.stat(directory)
        except FileNotFoundError:
            if directory == self._root:
                raise
        else:
            return
        parent = os.path.dirname(directory)
        self._make_directory(parent)
        try:
            os.mkdir(directory)
        except FileExistsError:
            return
        sync_directory(parent)

    def _remove_empty(self, directory: str) -> None:
        while directory != self._root:
            try:
                os.rmdir(directory)
            except OSError:
                return  # something is in it, or somebody else removed it
            directory = os.path.dirname(directory)

    def _link(self, new: NewFile, target: str) -> bool:
        try:
            os.link(new.path, target)
        except FileExistsError:
            # Over NFS a link whose answer was lost is tried again and finds itself; two names tell.
            return os.stat(new.path).st_nlink == 2
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise StoreUnfit(self.url, f"its file system cannot link files ({error.strerror})") from error
            raise
        return True

    def _walk(self, top: str) -> Iterator[os.DirEntry[str]]:
        for entry in self._entries(top):
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(entry.path)
            else:
                yield entry

    def _entries(self, directory: str) -> Sequence[os.DirEntry[str]]:
        try:
            with os.scandir(directory) as entries:
                return list(entries)
        except FileNotFoundError:
            self._check_root("list")
            return []  # no object has this prefix, or the last one went while we were listing


def _replace(new: NewFile, target: str) -> bool:
    os.replace(new.path, target)
    return True


def _stat(entry: os.DirEntry[str]) -> os.stat_result:
    return entry.stat(follow_symlinks=False)


def _time(found: os.stat_result) -> datetime:
    """When an object got its name. Its last byte was written before that: for ever before, if its writer was stopped.

    Renames and links set the time of the last change, and so does copying a store, whatever else is preserved.
    """
    return datetime.fromtimestamp(found.st_ctime_ns / 1e9, UTC)
