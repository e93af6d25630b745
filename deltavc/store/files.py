"""Files that appear whole or not at all, and what the operating system's errors mean.

A file is written under a temporary name beside its place, brought to the disk, and only then given its name.
A writer that is killed leaves a name that `is_temporary` knows.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from deltavc.errors import StoreDenied, StoreError, StoreFull, StoreUnavailable
from deltavc.store.urls import redact

PIECE = 1 << 20
"""Bytes that are copied at a time; large enough that the calls cost nothing beside the copying."""

_TEMPORARY = re.compile(r".+\.tmp-[0-9a-f]{16}")
# A file too large for the file system or for the process's own limit is the same news: no room.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file under its temporary name, open for writing."""

    path: str
    file: BinaryIO

    def sync(self) -> None:
        """Bring what was written to the disk."""
        self.file.flush()
        os.fsync(self.file.fileno())


@contextmanager
def new_file(path: str) -> Iterator[NewFile]:
    """Open a temporary file beside `path`. At the end it is gone, unless it was given another name."""
    temporary = f"{path}.tmp-{secrets.token_hex(8)}"
    file = open(temporary, "xb")  # noqa: SIM115 - closed below, before the name goes
    try:
        try:
            yield NewFile(temporary, file)
        finally:
            file.close()
    finally:
        with suppress(FileNotFoundError):  # it was renamed into place
            os.unlink(temporary)


@contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` when the block ends without an error."""
    with new_file(path) as new:
        yield new.file
        new.sync()
        os.replace(new.path, path)
    sync_directory(os.path.dirname(path))


def is_temporary(name: str) -> bool:
    """Whether a file of this name is an unfinished one."""
    return _TEMPORARY.fullmatch(name) is not None


def sync_directory(path: str) -> None:
    """Bring a directory's entries to the disk: without it, a new name may be gone after a power cut."""
    descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_bytes(source: BinaryIO, target: BinaryIO) -> None:
    """Copy what is left of `source`, a piece at a time."""
    while piece := source.read(PIECE):
        target.write(piece)


def temporary_directory(prefix: str) -> Path:
    """Make a directory among temporary files. The caller removes it. Raises StoreError."""
    with file_errors("the place for temporary files", "a directory"):
        return Path(tempfile.mkdtemp(prefix=prefix))


def store_error(url: str, operation: str, error: OSError) -> StoreError:
    """Say what an error of the operating system means for the store at `url`."""
    reason = redact(error.strerror or str(error) or type(error).__name__)
    if error.errno in _FULL:
        return StoreFull(url, operation)
    if error.errno in _DENIED:
        return StoreDenied(url, operation, reason)
    return StoreUnavailable(url, operation, reason)


@contextmanager
def file_errors(url: str, operation: str) -> Iterator[None]:
    """Raise the errors of the operating system in this block as those of the store at `url`."""
    try:
        yield
    except OSError as error:
        raise store_error(url, operation, error) from error
