"""The writer: commits one state after another to a branch, keeping the last one to take changes from.

    w.commit_async(state) ── caller's thread: read, diff, encode (the base advances) ── returns
                                     └─ committer: uploads done → edge, version, files → ref entry → index

The ref entry is the commit; before it nothing has happened, after it everything has. A commit that fails is
taken back from the base, newest first, and those queued behind it are abandoned with it. When the store does
not say whether the entry landed, the writer is in doubt and settles it at its next call.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack, get_args

import torch
from torch import Tensor

from deltavc.access import Access
from deltavc.base import Base, Keep, Room
from deltavc.committer import CommitFuture, Committer, OnBusy
from deltavc.delta import codecs
from deltavc.delta.codecs.base import Codec
from deltavc.draft import Draft, Request, draft
from deltavc.errors import (
    BranchMoved,
    CommitAbandoned,
    CommitInDoubt,
    DeltavcError,
    WriterBusy,
    WriterClosed,
    WrongWeights,
)
from deltavc.files import FileInput, check_files
from deltavc.held import HeldLanes
from deltavc.lineage.names import BRANCHES
from deltavc.lineage.records import FileRef, RefEntry
from deltavc.lineage.resolve import resolve
from deltavc.live import Live
from deltavc.metadata import Metadata
from deltavc.moving import move_base, trail_to
from deltavc.snapshots import DEFAULT_POLICY, SnapshotPolicy, Trail
from deltavc.store.transfers import DEFAULT_MEMORY
from deltavc.version import Version
from deltavc.weights.state import State, StateView, open_state

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """How a writer works.

    keep: where the base lies. "device": beside each tensor, fastest. "host": in main memory. "disk": in a
        temporary file.
    memory: bytes that a commit may take beyond the state and the base, for frames and packs on their way.
    codec, dtype: for every commit that does not name its own.
    snapshots: when to write snapshots inline.
    max_in_flight: commits that may be on their way when `commit_async` returns.
    on_busy: what `commit_async` does when that many are. "wait" for one to end; "error": raise WriterBusy;
        "coalesce": let the newest one that is still queued be replaced by this one, whose version its future
        then gives.
    """

    keep: Keep = "device"
    memory: int = DEFAULT_MEMORY
    codec: str | None = None
    dtype: torch.dtype | str | None = None
    snapshots: SnapshotPolicy = DEFAULT_POLICY
    max_in_flight: int = 1
    on_busy: OnBusy = "wait"

    def __post_init__(self) -> None:
        if self.keep not in get_args(Keep):
            raise ValueError(f"keep={self.keep!r} is none of {', '.join(get_args(Keep))}")
        if self.on_busy not in get_args(OnBusy):
            raise ValueError(f"on_busy={self.on_busy!r} is none of {', '.join(get_args(OnBusy))}")
        if self.max_in_flight < 1:
            raise ValueError(f"max_in_flight={self.max_in_flight}: at least one commit has to be allowed")


class Told(TypedDict, total=False):
    """What a commit may be told, all of it optional.

    step, author: what it is and who it is by. metrics: numbers by name; non-finite ones are kept, and
    ignored by best: and worst:. meta: JSON-able facts. files: name to bytes or path; kept with the version.
    snapshot: True writes one beside the delta, False does not, None asks the policy.
    codec: for every frame; None chooses per frame by size. dtype: floating tensors are cast to it as they are read.
    partial: tensors that the state lacks are unchanged; otherwise they are dropped.
    """

    step: int | None
    metrics: Mapping[str, Any] | None
    meta: Mapping[str, Any] | None
    files: Mapping[str, FileInput] | None
    snapshot: bool | None
    codec: str | None
    dtype: torch.dtype | str | None
    partial: bool
    author: str | None


class Writer:
    """Commits to one branch, each call after the other. Make one with `repo.writer`."""

    def __init__(
        self, access: Access, branch: str, entry: RefEntry | None, start: str | None, options: WriterOptions
    ) -> None:
        """
        Args:
            entry: the branch's last ref entry. start: the version it is at, or is to start from.
        """
        self.branch = branch
        self._access = access
        self._options = options
        self._codec = None if options.codec is None else codecs.codec(options.codec)
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._committer = Committer(access, branch, entry)
        self._room = Room(options.keep)
        self._base = Base(HeldLanes(self._room.allocate))
        self._closed = False
        self._tip = start
        self._files: Mapping[str, FileRef] = access.index.version(start).record.files if start else {}
        self._trail = trail_to(access, start)

    @property
    def version(self) -> str | None:
        """Id of the version that the next commit will be a child of; None before the first."""
        return self._tip

    def commit(
        self, state: State, message: str = "", *, parents: Sequence[str] | None = None, **told: Unpack[Told]
    ) -> Version:
        """Commit a state and return once it is committed. Takes what `commit_async` takes.

        Raises:
            BranchMoved: somebody else moved the branch; the base is back at `version`, `move` goes on from there.
            CommitInDoubt: the store did not say whether the commit landed; the next call settles it.
            StoreError: the store failed; nothing was committed.
            and what `commit_async` raises.
        """
        future = self.commit_async(state, message, parents=parents, **told)
        try:
            return future.result()
        except CommitInDoubt:
            raise
        except DeltavcError:
            with self._lock, contextlib.suppress(DeltavcError):
                self._settle()
            raise

    def commit_async(
        self, state: State, message: str = "", *, parents: Sequence[str] | None = None, **told: Unpack[Told]
    ) -> Future[Version]:
        """Commit a state in the background. Returns once it has been read, so that the caller may change it.

        Args:
            state: a mapping of names to tensors, a module, an iterable of pairs, or a checkpoint's path.
            parents: refs; the first has to be `version`. Others make this version a merge.
            told: step, metrics, meta, files, snapshot, codec, dtype, partial and author, as in `Told`.

        Returns:
            A future that gives the Version once it is committed, or raises as `commit` does.

        Raises:
            InputError: something passed in cannot be committed; the base is where it was.
            TypeError: told something that is not in `Told`.
            UnknownRef, AmbiguousRef: of `parents`.
            BranchMoved: the first of `parents` is not `version`.
            WriterBusy: with on_busy="error".
            CommitInDoubt: an earlier commit is still in doubt.
        """
        if unknown := told.keys() - Told.__annotations__.keys():  # a misspelt metrics= must not get lost
            raise TypeError(f"commit has no argument {min(unknown)!r}; it has {', '.join(Told.__annotations__)}")
        metadata = Metadata.of(
            message,
            told.get("step"),
            told.get("metrics"),
            told.get("meta"),
            told.get("author") or self._access.author,
        )
        check_files(told.get("files") or {})
        name = told.get("codec")
        codec = self._codec if name is None else codecs.codec(name)
        with self._alone():
            self._settle()
            if self._options.on_busy == "error" and self._busy:
                raise WriterBusy(self.branch, self._committer.in_flight)
            view = open_state(state, told.get("dtype") or self._options.dtype)
            _await_devices(view)
            superseded = self._make_room()
            made: Draft | None = None
            try:
                try:
                    made = self._read(view, metadata, codec, parents, told)
                except WrongWeights as error:
                    log.warning("the writer's copy of the last version was damaged; it is read again: %s", error)
                    made = self._read(view, metadata, codec, parents, told)
                future = self._committer.submit(made, superseded)
            except BaseException as error:
                if made is not None and self._committer.has(made):  # an interrupt after it was handed over: it goes on
                    self._tip, self._trail, self._files = made.record.id, made.trail, made.record.files
                    raise
                if made is not None:
                    made.abandon()
                    self._base.take_back(made.undo)
                for waiting in superseded:
                    waiting.set_exception(CommitAbandoned(self.branch, f"the commit in its place failed: {error}"))
                raise
            self._tip, self._trail, self._files = made.record.id, made.trail, made.record.files
            return future

    def move(self, ref: str, into: Mapping[str, Tensor] | torch.nn.Module | None = None) -> Version:
        """Move the base, and the live tensors `into`, to any version; the next commit will be its child.

        The branch stays where it is: the next commit raises BranchMoved unless the version is its head.

        Raises:
            UnknownRef, AmbiguousRef, NoPath, Corruption; LayoutMismatch before anything is changed.
        """
        with self._alone():
            self._idle()
            target = self._resolve(ref)
            live = self._live(into, target)
            self._committer.entry = self._access.refs.newest(BRANCHES + self.branch, self._committer.entry)
            self._arrive(target, self._approach(target), live)
            return Version.known(self._access.index.version(target), self.branch)

    def rollback(
        self, to: str, reason: str = "", into: Mapping[str, Tensor] | torch.nn.Module | None = None
    ) -> Version:
        """Move the branch back to an earlier version, and with it the base and the live tensors `into`.

        Nothing is lost: the versions left behind keep their ids, and the reflog keeps the reason.

        Raises:
            BranchMoved: somebody else moved the branch; nothing was changed.
            UnknownRef, AmbiguousRef, NoPath, Corruption; LayoutMismatch before anything is changed.
        """
        with self._alone():
            self._idle()
            target = self._resolve(to)
            live = self._live(into, target)
            found = self._approach(target)
            try:
                self._committer.move(target, reason)
            except BaseException:
                self._base.lost = True  # it is not at the branch's head; read that again when it is needed
                raise
            self._arrive(target, found, live)
            return Version.known(self._access.index.version(target), self.branch)

    def close(self) -> None:
        """Wait for what is on its way, and let go of the base. May be called twice.

        Raises:
            what a commit in the background failed with, if nobody has asked its future.
        """
        if os.getpid() != self._pid:
            return  # a forked child's copy: threads and files are the parent's
        with self._alone():
            if self._closed:
                return
            self._closed = True
            unheard = self._committer.close()
            self._base.clear()
            self._room.close()
            if unheard is not None:
                raise unheard

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        if not issubclass(kind, Exception):  # Ctrl-C: do not wait for uploads
            self._committer.stop()
        try:
            self.close()
        except DeltavcError as unheard:  # the caller has an error of its own to deal with
            log.warning("a commit to %s failed as well: %s", self.branch, unheard)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Let one call at a time go on, none in a forked child, and none that would wait for itself."""
        if os.getpid() != self._pid:
            raise WriterClosed(self.branch)
        if self._committer.on_its_thread:
            raise RuntimeError("a writer cannot be called from a callback of its own commits: use another thread")
        with self._lock:
            yield

    def _read(
        self, view: StateView, metadata: Metadata, codec: Codec | None, parents: Sequence[str] | None, told: Told
    ) -> Draft:
        """Read a state into the base, which then is at the version drafted."""
        self._room.devices = {name: tensor.device for name, tensor in view.tensors.items()}
        if self._base.lost:
            self._idle()
        move_base(self._access, self._base, self._tip)
        snapshot = told.get("snapshot")
        request = Request(
            metadata=metadata,
            parents=self._parent_ids(parents),
            files={**view.extras, **(told.get("files") or {})},
            parent_files=self._files,
            codec=codec,
            snapshot=self._trail.due(self._options.snapshots) if snapshot is None else snapshot,
            partial=told.get("partial", False),
            memory=self._options.memory,
        )
        # In this order: a commit that lands in between leaves no gap.
        expected = self._tip if self._committer.in_flight or self._committer.head is not None else None
        return draft(self._access, self._base, self._trail, view, request, expected, self._committer.drain)

    def _parent_ids(self, parents: Sequence[str] | None) -> tuple[str, ...]:
        """What the next version names as its parents: each is known to be there, the tip at least to be on its way."""
        if parents is None:
            return (self._tip,) if self._tip else ()
        ids = tuple(ref if ref == self._tip else self._resolve(ref) for ref in parents)
        if (ids[0] if ids else None) != self._tip:
            raise BranchMoved(self.branch, ids[0] if ids else None, self._tip)
        return ids

    def _settle(self) -> None:
        """Take back what failed, so that the base is at the last version that was committed."""
        if self._closed:
            raise WriterClosed(self.branch)
        failed = self._committer.settle()
        if failed is None:
            return
        for made in failed:
            self._take_back(made)

    @property
    def _busy(self) -> bool:
        return self._committer.in_flight >= self._options.max_in_flight

    def _make_room(self) -> list[CommitFuture]:
        """Wait, or take the place of a queued commit; the futures of those it replaces."""
        if not self._busy:
            return []
        if self._options.on_busy == "coalesce":
            if (taken := self._committer.take_queued()) is not None:
                replaced, futures = taken
                self._take_back(replaced)
                return futures
            return []
        self._committer.wait(at_most=self._options.max_in_flight - 1)
        self._settle()
        return []

    def _take_back(self, made: Draft) -> None:
        self._base.take_back(made.undo)
        self._tip, self._trail, self._files = made.undo.before.version, made.trail_before, made.files_before

    def _idle(self) -> None:
        """Wait until nothing is in flight and nothing is left to take back."""
        self._settle()
        self._committer.wait()
        self._settle()

    def _resolve(self, ref: str) -> str:
        self._access.index.catch_up([BRANCHES + self.branch])
        return resolve(self._access.index, ref, branch=self.branch)

    def _live(self, into: Mapping[str, Tensor] | torch.nn.Module | None, target: str) -> Live | None:
        """The live tensors, checked against the version's layout."""
        if into is None:
            return None
        live = Live.of(into)
        layout = self._access.objects.layout(self._access.index.version(target).record.layout, target)
        live.buffers(layout, [tensor.name for tensor in layout.tensors], complete=True)
        self._room.devices = {name: tensor.device for name, tensor in live.tensors.items()}
        return live

    def _approach(self, target: str) -> tuple[Trail, Mapping[str, FileRef]]:
        """Bring the base to a version, and look up what the next commit has to know of it."""
        move_base(self._access, self._base, target)
        return trail_to(self._access, target), self._access.index.version(target).record.files

    def _arrive(self, target: str, found: tuple[Trail, Mapping[str, FileRef]], live: Live | None) -> None:
        """Go on from a version, and write it to the live tensors."""
        self._tip = target
        self._trail, self._files = found
        if live is not None and self._base.layout is not None:
            live.write(target, self._base.layout, self._base.lanes)


def _await_devices(view: StateView) -> None:
    """Wait for what the caller's streams still have to do to the state: other threads are going to read it."""
    for device in {tensor.device for tensor in view.tensors.values()}:
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
