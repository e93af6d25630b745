"""Following a ref into a directory: its files are always those of one version, the newest that could be had.

    ref moves ──> base walks there ──> proven ──> files that differ are staged ──> put in place (weights.followed)
                  a delta's bytes                 beside the others, on the disk    renames between MOVING and VERSION

The base is the lanes of the version that the directory is at, so that a move costs a delta and not a checkpoint. At
the start it is read from the files themselves, without the store, and proven: what VERSION says is not believed. If
it is lost (the store went away in the middle of a walk), it is read from there again.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, get_args

from deltavc import held
from deltavc.access import Access
from deltavc.base import Base
from deltavc.errors import BadCheckpoint, UnknownRef, WrongWeights
from deltavc.lineage.names import BRANCHES
from deltavc.lineage.resolve import resolve
from deltavc.moving import move_base
from deltavc.store.files import temporary_directory
from deltavc.version import Version
from deltavc.watch import Watch, branch_entry
from deltavc.weights.followed import MOVING, VERSION, FollowedDirectory, Label, stamp
from deltavc.written import VersionFiles

log = logging.getLogger(__name__)

Keep = Literal["host", "disk"]
"""Where the base lies between moves: in main memory, or in temporary files that are mapped into it."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A directory that was brought to a version.

    version, step: where it is now. before: where it was, or None. path: the directory. fetched_bytes: of the frames on
    the way. seconds: what it took. written, removed: relative names of files.
    """

    version: str
    step: int | None
    before: str | None
    path: str
    fetched_bytes: int
    seconds: float
    written: tuple[str, ...]
    removed: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """A JSON-able form, as `--json` prints it."""
        return asdict(self) | {"written": list(self.written), "removed": list(self.removed)}


class Follower:
    """Keeps a directory at the newest version of a ref. Make one with `repo.follow`.

    with repo.follow("main", "serving") as follower:
        for moved in follower:                      # until `stop`, from any thread
            reload(moved.path)
    """

    def __init__(
        self, access: Access, repository: str, ref: str, directory: str | Path, *, every: float, keep: Keep
    ) -> None:
        if keep not in get_args(Keep):
            raise ValueError(f"keep={keep!r} is none of {', '.join(get_args(Keep))}")
        self.ref = ref
        self._access = access
        self._repository = repository
        self._watch = Watch(access.index, ref, every=every)
        self._lock = threading.RLock()  # so that close, after an interrupt that left it taken, does not wait for itself
        self._directory = FollowedDirectory(directory)
        label = self._directory.label
        if label is not None and label.repository != repository:
            self._directory.close()
            reason = f"is at a version of another repository, {label.repository}; name an empty or new directory"
            raise BadCheckpoint(str(self._directory.path), reason)
        self._owed = self._directory.completed  # nobody was told of that move
        self._temporary = temporary_directory("deltavc-base-") if keep == "disk" else None
        allocate = held.on_disk(self._temporary) if self._temporary else held.fresh("cpu")
        self._base = Base(held.HeldLanes(allocate))
        self._contents: dict[str, str] | None = None
        """what the directory's files were seen to hold; None before anybody looked"""
        self._stamps: dict[str, tuple[int, ...]] = {}
        self._closed = False

    @property
    def path(self) -> Path:
        """The directory."""
        return self._directory.path

    @property
    def version(self) -> str | None:
        """Id of the version that the directory is at; None before the first move."""
        return self._directory.label.version if self._directory.label is not None else None

    def move(self) -> Moved | None:
        """Bring the directory to the newest version now; None if it is there already.

        Raises:
            UnknownRef, AmbiguousRef: the ref names nothing.
            Corruption, NoPath, StoreError, DatabaseError: the version cannot be had. The directory is as it was.
            BadCheckpoint: its weights cannot be written as .safetensors files; a file of others is in the way.
            StoreDenied, StoreFull: the directory may not be written to, or its disk is full.
        """
        return self._move_to(resolve(self._access.index, self.ref))

    def __iter__(self) -> Iterator[Moved]:
        """Move whenever the ref has moved, and yield each move, until `stop`.

        A store or a database that is away is waited for, as `deltavc.watch` says. Raises what `move` raises otherwise.
        """
        for version in self._watch:
            moved = None
            with self._watch.surviving():
                moved = self._move_to(version)
            if moved is not None:
                yield moved

    def stop(self) -> None:
        """End the iteration after the move that is on its way. May be called from any thread."""
        self._watch.stop()

    def close(self) -> None:
        """Stop, and let others follow into the directory. Its files stay."""
        self.stop()
        with self._lock:
            self._closed = True
            self._base.clear()
            self._directory.close()
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _move_to(self, version: str) -> Moved | None:
        with self._lock:
            if self._closed:
                raise ValueError("this follower is closed")
            started = time.perf_counter()
            before = self.version
            if self._contents is None or self._base.lost:
                self._look()
            fetched = move_base(self._access, self._base, version)
            files = self._files(version)
            contents = files.contents(self._base.fingerprints)
            stale = [name for name in files.names if not self._holds(name, contents[name])]
            removed: tuple[str, ...] = ()
            if stale or before != version:
                removed = self._put(version, files, contents, stale)
            elif not self._owed:
                return None
            self._owed = False
            step = self._access.index.version(version).record.step
            seconds = time.perf_counter() - started
            log.info("%s is at %s: %d files written, %.2f s", self.path, version[:12], len(stale), seconds)
            return Moved(version, step, before, str(self.path), fetched, seconds, tuple(stale), removed)

    def _look(self) -> None:
        """Read the base from the directory's files, and see which of them are what VERSION says."""
        self._owed |= self._directory.settle()
        self._base.clear()
        self._base.lost = False
        label, contents = self._directory.label, dict[str, str]()
        stamps = {name: stamp(self.path / name) for name in label.files} if label is not None else {}
        if label is not None:
            try:
                resolve(self._access.index, label.version)  # the database may not have heard of it yet
                files = self._files(label.version)
                values = files.read(self._base.lanes)
            except (UnknownRef, BadCheckpoint, WrongWeights) as error:
                log.warning("%s is not what its VERSION says, and is written anew: %s", self.path, error)
                self._base.clear()
            else:
                record = self._access.index.version(label.version).record
                self._base.version = label.version
                self._base.layout = self._access.objects.layout(record.layout, label.version)
                self._base.fingerprints = values
                contents = files.seen(values)
                for name in set(files.names) - contents.keys():
                    log.warning("%s is not what its VERSION says, and is written anew", self.path / name)
        self._contents, self._stamps = contents, stamps

    def _files(self, version: str) -> VersionFiles:
        record = self._access.index.version(version).record
        layout = self._access.objects.layout(record.layout, version)
        return VersionFiles(self.path, record, layout, leave_out=(VERSION, MOVING))

    def _holds(self, name: str, content: str) -> bool:
        """Whether a file holds this already, as far as can be told without reading it."""
        if self._contents is None or self._contents.get(name) != content:
            return False
        if self._stamps[name] == stamp(self.path / name):
            return True
        log.warning("%s was touched by somebody else, and is written anew", self.path / name)
        return False

    def _put(self, version: str, files: VersionFiles, contents: dict[str, str], stale: list[str]) -> tuple[str, ...]:
        """Write files that are stale and put them in place; those that were removed."""
        index = self._access.index
        entry = branch_entry(index, self.ref, version)
        known = Version.known(index.version(version), None if entry is None else entry.ref.removeprefix(BRANCHES))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        label = Label(version, known.step, known.branch, known.fingerprint, self._repository, now, files.names)
        try:
            files.write(self._directory.stage(files.names), stale, self._base.lanes, self._access.store)
            self._contents = None  # from here on, somebody has to look
            removed = self._directory.publish(label)
        except BaseException:
            with suppress(Exception):  # what failed is told; this is for what was interrupted
                self._owed |= self._directory.settle()
            raise
        self._contents = contents
        self._stamps = {name: stamp(self.path / name) for name in files.names}
        return removed
