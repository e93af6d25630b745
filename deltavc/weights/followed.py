"""A directory of weights that says which version it is, wherever the process that keeps it was killed.

    VERSION              which version its files are, and which files those are
    MOVING               only while files change places: from which version, to which
    .deltavc-follow/     lock: held by the one process that writes here
                         new/: files of the next version that are not in their places yet

A move fills new/ and brings it to the disk; then come MOVING, the files by rename, VERSION, and MOVING goes. Killed
before MOVING, the directory is what VERSION says, and new/ is thrown away. Killed after it, what is left to do stands
in MOVING and lies in new/, and whoever opens the directory next does it.

Only files that VERSION or MOVING list are ever replaced or removed. Others may lie beside them.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from deltavc import canonical
from deltavc.errors import BadCheckpoint, BadPayload, DirectoryInUse
from deltavc.weights.extras import file_name_fault
from deltavc.weights.output import flush, reported

VERSION = "VERSION"
MOVING = "MOVING"
OWN = ".deltavc-follow"


@dataclass(frozen=True, slots=True)
class Label:
    """What a directory says it is.

    branch: the branch that was followed, or else the one that the version was committed to. fingerprint: of the
    version's weights. repository: the repository's id. time: when the directory got there, in UTC. files: relative
    names of its files, weights first.
    """

    version: str
    step: int | None
    branch: str | None
    fingerprint: str
    repository: str
    time: str
    files: tuple[str, ...]

    @classmethod
    def parse(cls, item: Any) -> Label:
        """Read what `asdict` gave, after JSON. Raises ValueError."""
        if not isinstance(item, dict) or item.keys() != cls.__dataclass_fields__.keys():
            raise ValueError("it does not have the entries of one")
        texts = [item["version"], item["fingerprint"], item["repository"], item["time"]]
        if not all(isinstance(text, str) for text in texts) or not isinstance(item["branch"], str | None):
            raise ValueError("an entry is no text")
        if type(item["step"]) not in (int, type(None)) or not isinstance(item["files"], list):
            raise ValueError("its step or its files are none")
        for name in item["files"]:
            if not isinstance(name, str) or file_name_fault(name) or name in (VERSION, MOVING):
                raise ValueError(f"{str(name)[:200]!r} is not the name of a file of a version")
        return cls(**item | {"files": tuple(item["files"])})


class FollowedDirectory:
    """A directory that this process alone may write to, until `close`. What a move left undone is done first.

    Args:
        path: made if it is not there. It has to be empty, or to hold what this class wrote.

    Raises:
        BadCheckpoint: it is no directory, has files of others in it, or a VERSION or MOVING of others.
        DirectoryInUse: another process writes to it.
        StoreDenied, StoreFull: it may not be written to; the disk is full.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self._own = self.path / OWN
        self._new = self._own / "new"
        self._lock = _Lock(self._own / "lock")
        if os.path.lexists(self.path) and not self.path.is_dir():
            raise BadCheckpoint(str(self.path), "is not a directory")
        try:
            with reported(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
                self._refuse_foreign()
                self._own.mkdir(exist_ok=True)
                if (holder := self._lock.take()) is not None:
                    raise DirectoryInUse(str(self.path), holder)
            self.completed = self.settle()
        except BaseException:
            self.close()
            raise

    def settle(self) -> bool:
        """Bring what was interrupted to an end: a move is completed, files for one that had not begun go away.

        Returns:
            Whether there was a move to complete.

        Raises:
            BadCheckpoint, StoreDenied, StoreFull: it cannot be done now; what is left to do is noted as before.
        """
        with reported(self.path):
            moving = self._read_moving()
            self.label = self._read_label()
            if moving is not None:
                self._put_in_place(*moving)
            self._empty_new()
        return moving is not None

    def stage(self, files: Iterable[str]) -> Path:
        """An empty folder for files that are to be put in place, on the same file system.

        Args:
            files: every file of the version to come.

        Raises:
            BadCheckpoint: a file that is not ours is in the place of one of these.
            StoreDenied, StoreFull
        """
        ours = set(self.label.files) if self.label is not None else set()
        for name in files:
            if (taken := self._in_the_way(name, ours)) is not None:
                reason = f"is in the way of the version's {name!r}, and deltavc did not write it; move it elsewhere"
                raise BadCheckpoint(str(taken), reason)
        with reported(self.path):
            self._empty_new()
            self._new.mkdir(parents=True)
        return self._new

    def publish(self, label: Label, rewrite: Callable[[], object] | None = None) -> tuple[str, ...]:
        """Put what was staged in place; the directory is then what `label` says.

        Whatever interrupts this, `settle` brings it to its end, here or in the next process.

        Args:
            rewrite: changes files where they are. What it did not get to do nobody does: who opens the directory next
                has to look whether its files are what they should be.

        Returns:
            The files that were removed, since they are none of `label`.

        Raises:
            BadCheckpoint, StoreDenied, StoreFull
        """
        before = self.label
        with reported(self.path):
            for folder, _, names in os.walk(self._new):
                for name in names:
                    flush(Path(folder, name))
                flush(Path(folder))
            flush(self._own)
            self._write(MOVING, {"from": None if before is None else asdict(before), "to": asdict(label)})
            if rewrite is not None:
                rewrite()
            self._put_in_place(before, label)
            self._empty_new()
        return tuple(name for name in before.files if name not in label.files) if before is not None else ()

    def close(self) -> None:
        """Let others write to it."""
        self._lock.release()

    def _refuse_foreign(self) -> None:
        names = {entry.name for entry in self.path.iterdir()} - {OWN}
        if names and VERSION not in names and MOVING not in names:
            reason = "is not empty, and has no VERSION that deltavc wrote; name an empty or new directory"
            raise BadCheckpoint(str(self.path), reason)

    def _read_moving(self) -> tuple[Label | None, Label] | None:
        item = self._read(MOVING)
        try:
            if item is None:
                return None
            return None if item["from"] is None else Label.parse(item["from"]), Label.parse(item["to"])
        except (ValueError, KeyError) as error:
            raise self._not_ours(MOVING, error) from error

    def _read_label(self) -> Label | None:
        item = self._read(VERSION)
        try:
            return None if item is None else Label.parse(item)
        except ValueError as error:
            raise self._not_ours(VERSION, error) from error

    def _read(self, name: str) -> dict[str, Any] | None:
        """What VERSION or MOVING says, or None where there is none."""
        try:
            return canonical.unsealed((self.path / name).read_bytes())
        except FileNotFoundError:
            return None
        except BadPayload as error:
            raise self._not_ours(name, error) from error

    def _not_ours(self, name: str, error: Exception) -> BadCheckpoint:
        reason = f"is not a {name} that deltavc wrote ({error}); name an empty or new directory"
        return BadCheckpoint(str(self.path / name), reason)

    def _write(self, name: str, item: dict[str, Any]) -> None:
        """Write VERSION or MOVING, wholly or not at all."""
        text = json.dumps(json.loads(canonical.sealed(item)), indent=2) + "\n"
        beside = self._own / name
        beside.write_text(text, encoding="utf-8")
        flush(beside)
        beside.replace(self.path / name)
        flush(self.path)

    def _put_in_place(self, before: Label | None, after: Label) -> None:
        """All of a move that comes after MOVING. It may have been done in part."""
        for name in before.files if before is not None else ():
            if name not in after.files:  # first: what is a file now may become a folder
                self._remove(name)
        changed = {self.path}
        for name in after.files:
            staged, place = self._new / name, self._place(name)
            if os.path.lexists(staged):
                place.parent.mkdir(parents=True, exist_ok=True)
                _remove_folder(place)
                staged.replace(place)
                changed |= {self.path / parent for parent in PurePosixPath(name).parents}
        for folder in changed:
            flush(folder)
        self._write(VERSION, asdict(after))
        self.label = after
        (self.path / MOVING).unlink()
        flush(self.path)

    def _in_the_way(self, name: str, ours: set[str]) -> Path | None:
        """What lies where a file or one of its folders belongs, and is not ours to replace."""
        place = self._place(name)
        for parent in list(PurePosixPath(name).parents)[:-1]:
            folder = self.path / parent
            if os.path.lexists(folder) and not folder.is_dir() and str(parent) not in ours:
                return folder
        if place.is_symlink() or not place.is_dir():
            return place if os.path.lexists(place) and name not in ours else None
        below = (Path(folder, name) for folder, _, names in os.walk(place) for name in names)
        return next((path for path in below if path.relative_to(self.path).as_posix() not in ours), None)

    def _remove(self, name: str) -> None:
        """Remove a file of ours, and the folders that only it was in."""
        place = self._place(name)
        with suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError):
            place.unlink()
        for parent in list(PurePosixPath(name).parents)[:-1]:
            with suppress(OSError):  # something else is in it
                (self.path / parent).rmdir()

    def _place(self, name: str) -> Path:
        """Where a file belongs. Raises BadCheckpoint where a link would lead out of the directory."""
        for parent in list(PurePosixPath(name).parents)[:-1]:
            if (self.path / parent).is_symlink():
                raise BadCheckpoint(str(self.path), f"cannot write {name!r}: {parent} is a link")
        return self.path / name

    def _empty_new(self) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self._new)


def stamp(path: Path) -> tuple[int, ...]:
    """What changes when somebody writes to a file or replaces it."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class _Lock:
    """A file that one process at a time holds, until it is released or forgotten, or the process ends somehow."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._close: Callable[[], object] | None = None

    def take(self) -> str | None:
        """Hold it from now on, or say who does. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._close = weakref.finalize(self, os.close, file := os.open(self._path, flags, 0o666))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.pread(file, 1000, 0).decode(errors="replace").strip() or "another process"
        os.truncate(file, 0)
        os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        return None

    def release(self) -> None:
        if self._close is not None:
            self._close()


def _remove_folder(path: Path) -> None:
    """Remove a folder with no files in it; something else of this name stays."""
    if path.is_dir() and not path.is_symlink():
        for folder, _, _ in os.walk(path, topdown=False):
            os.rmdir(folder)
