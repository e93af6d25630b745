"""A directory on which one version after another is tried: its weights are moved where they lie.

    files ══ mapped into memory ══ live tensors of a replica ──> a move writes the lanes that differ, and no others

So a move costs a delta, and not a checkpoint: not fetched, not in memory, and not on the disk. It is proven as that of
any replica is. Where two versions have other tensors, or lay them out in other files, all is written anew.

The directory says which version it is as a followed one does (`weights.followed`), and is not believed: its weights are
proven when it is opened, and again when somebody touched its files in between.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from deltavc.access import Access
from deltavc.base import Base
from deltavc.bindings import bind
from deltavc.errors import BadCheckpoint, ForeignWrite, InputError, UnknownRef, WrongWeights
from deltavc.held import HeldLanes, fresh
from deltavc.lineage.resolve import resolve
from deltavc.moving import move_base
from deltavc.patterns import matching
from deltavc.replica import Applied, Replica
from deltavc.version import Version
from deltavc.weights.followed import MOVING, VERSION, FollowedDirectory, Label, stamp
from deltavc.written import VersionFiles

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Brought:
    """What it took to bring weights to a version.

    fetched_bytes: of frames. whole: all weights were written, and not only those that differ.
    """

    seconds: float
    fetched_bytes: int
    whole: bool


class Workbench:
    """A directory whose weights are at one version after another. This process alone may move it, until `close`.

    Args:
        directory: new, empty, or one that a workbench or a follower has left.
        leave_out: names, or patterns of names, of kept files that have no place there: optimizer state may take more
            than the weights, and no delta.

    Raises:
        BadCheckpoint: it holds files of others, or a version of another repository.
        DirectoryInUse: another process moves it.
        StoreDenied, StoreFull: it may not be written to, or its disk is full.
    """

    def __init__(self, access: Access, repository: str, directory: str | Path, leave_out: Sequence[str] = ()) -> None:
        self._access = access
        self._leave_out = (VERSION, MOVING, *leave_out)
        self._repository = repository
        self._live: tuple[VersionFiles, Replica] | None = None
        self._others: dict[str, str] = {}
        """what the directory's files that are no weights were written with; one that is not here is written anew"""
        self._stamps: dict[str, tuple[int, ...]] = {}
        self._directory = FollowedDirectory(directory)
        label = self._directory.label
        if label is not None and label.repository != repository:
            self.close()
            reason = f"is at a version of another repository, {label.repository}; name an empty or new directory"
            raise BadCheckpoint(str(self.path), reason)

    @property
    def path(self) -> Path:
        """The directory."""
        return self._directory.path

    def move(self, version: str) -> Brought:
        """Bring the directory to a version, whatever is in its files.

        Raises:
            NoPath, Corruption, StoreError: the version's weights cannot be had.
            BadCheckpoint: they cannot be written as .safetensors files; a file of others is in the way.
            StoreDenied, StoreFull
        """
        started = time.perf_counter()
        if self._live is not None:
            self._look()
        if self._live is None:
            self._open()
        files = self._files(version)
        fetched, whole = None, self._live is None or not files.laid_out_as(self._live[0])
        if not whole:
            fetched = self._patch(version, files)
        if fetched is None:
            whole, fetched = True, self._write(version, files)
        self._others = files.others()
        self._stamps = {name: stamp(self.path / name) for name in files.names}
        return Brought(time.perf_counter() - started, fetched, whole)

    def close(self) -> None:
        """Let others move the directory. Its files stay."""
        self._let_go()
        self._directory.close()

    # --- what is there ---

    def _open(self) -> None:
        """Take the weights that are there, if they are the version that the directory says."""
        self._directory.settle()
        self._others, label = {}, self._directory.label
        if label is None:
            return
        try:
            resolve(self._access.index, label.version)
            files = self._files(label.version)
            record = self._access.index.version(label.version).record
            layout = self._access.objects.layout(record.layout, label.version)
            self._live = (files, Replica(self._access, bind(files.mapped(), layout), record))
        except (UnknownRef, InputError, WrongWeights) as error:
            log.warning("%s is not what its VERSION says, and is written anew: %s", self.path, error)

    def _look(self) -> None:
        """See what somebody did to the files since the last move."""
        assert self._live is not None
        touched = {name for name, was in self._stamps.items() if stamp(self.path / name) != was}
        if touched - self._others.keys():
            log.warning("%s was touched by somebody else; its weights are proven anew", self.path)
            self._let_go()
        self._others = {name: content for name, content in self._others.items() if name not in touched}

    def _let_go(self) -> None:
        if self._live is not None:
            self._live[1].close()
            self._live = None

    def _files(self, version: str) -> VersionFiles:
        record = self._access.index.version(version).record
        layout = self._access.objects.layout(record.layout, version)
        left_out = {name for pattern in self._leave_out for name in matching(pattern, record.files.keys())}
        return VersionFiles(self.path, record, layout, left_out)

    # --- moving ---

    def _patch(self, version: str, files: VersionFiles) -> int | None:
        """Write what differs into the files that are there. None: they are not what they should be."""
        assert self._live is not None
        replica = self._live[1]
        move: Callable[[], Applied] = partial(replica.rewrite, version)
        try:
            if replica.fits(version):
                replica.stage(version).wait()
                move = replica.apply
        except WrongWeights as error:
            log.warning("%s was written to by somebody else, and is written anew: %s", self.path, error)
            self._let_go()
            return None
        stale = [name for name, content in files.others().items() if self._others.get(name) != content]
        applied: list[Applied] = []
        try:
            self._publish(version, files, stale, HeldLanes(fresh("cpu")), lambda: applied.append(move()))
        except (ForeignWrite, WrongWeights) as error:
            log.warning("%s was written to by somebody else, and is written anew: %s", self.path, error)
            return None
        self._live = (files, replica)
        return sum(each.nbytes for each in applied)

    def _write(self, version: str, files: VersionFiles) -> int:
        """Write all files anew."""
        self._let_go()
        base = Base(HeldLanes(fresh("cpu")))
        fetched = move_base(self._access, base, version)
        self._publish(version, files, files.names, base.lanes)
        base.clear()
        self._open()
        return fetched

    def _publish(
        self,
        version: str,
        files: VersionFiles,
        names: Collection[str],
        lanes: HeldLanes,
        rewrite: Callable[[], object] | None = None,
    ) -> None:
        known = Version.known(self._access.index.version(version))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        label = Label(version, known.step, known.branch, known.fingerprint, self._repository, now, files.names)
        try:
            files.write(self._directory.stage(files.names), names, lanes, self._access.store)
            self._directory.publish(label, rewrite)
        except BaseException:
            self._let_go()  # from here on, somebody has to look
            if not (self.path / MOVING).exists():  # else it stays, and says that the files are no version
                with suppress(Exception):
                    self._directory.settle()
            raise
