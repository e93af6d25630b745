"""The writer of many ranks: commits what they hold together to a branch, one state after another.

    commit_async(state) ── this thread, with the other ranks: what each holds, diff, encode ── returns
                                └─ background: sums, edge, version, uploads, ref entry (see `commit`)

Every rank calls the same methods in the same order, whatever they raise. Each keeps a base of the boxes that it writes,
and of nothing else. Rank 0 knows the branch; where it is, it tells the others at the start of every commit, and a rank
that finds itself elsewhere goes there first (see `stance`).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NoReturn, Self, Unpack

import torch

from deltavc.access import Access
from deltavc.committer import CommitFuture
from deltavc.delta import codecs
from deltavc.draft import Request
from deltavc.errors import BadState, BranchMoved, DeltavcError, WriterClosed
from deltavc.files import check_files
from deltavc.lineage.names import BRANCHES
from deltavc.lineage.records import FileRef
from deltavc.lineage.resolve import resolve
from deltavc.metadata import Metadata
from deltavc.ranks.council import Call, Council
from deltavc.ranks.exchange import Exchange
from deltavc.sharded import outcome
from deltavc.sharded.commit import Commit, Lead, Part
from deltavc.sharded.going import go
from deltavc.sharded.pieces import Pieces
from deltavc.sharded.roll_call import RollCall
from deltavc.sharded.stance import Stance
from deltavc.sharded.words import Facts
from deltavc.version import Version
from deltavc.writer import Told, WriterOptions

log = logging.getLogger(__name__)

RankState = Mapping[str, Any] | torch.nn.Module
"""What a rank can commit: names to tensors, DTensors and `deltavc.Shard`s, or a module that has such."""


class GroupWriter:
    """Commits the states of many ranks to one branch. Make one with `repo.writer(branch, group=...)`, on every rank."""

    def __init__(
        self,
        access: Access,
        branch: str,
        council: Council,
        tip: str | None,
        lead: Lead | None,
        files: Mapping[str, FileRef],
        options: WriterOptions,
    ) -> None:
        """
        Args:
            tip: the version that the branch is at, or is to start from. lead, files: on rank 0; the tip's files.
        """
        self.branch = branch
        self._access = access
        self._council = council
        self._exchange = Exchange(council)
        self._options = options
        self._codec = None if options.codec is None else codecs.codec(options.codec)
        self._stance = Stance(access, branch, council.rank, tip, lead, files, options.keep)
        self._roll = RollCall(self._exchange)
        self._flight: CommitFuture | None = None
        self._last: Call | None = None
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._closed = False
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="deltavc-group-committer")

    @property
    def version(self) -> str | None:
        """Id of the version that the next commit will be a child of, as this rank knows; None before the first."""
        return self._stance.tip

    @property
    def rank(self) -> int:
        """Which of the group's ranks this is."""
        return self._council.rank

    def commit(
        self, state: RankState, message: str = "", *, parents: Sequence[str] | None = None, **told: Unpack[Told]
    ) -> Version:
        """Commit what all ranks hold together, and return once it is committed. Every rank calls it.

        Takes what `commit_async` takes, and raises what it and its future raise.
        """
        return self.commit_async(state, message, parents=parents, **told).result()

    def commit_async(
        self, state: RankState, message: str = "", *, parents: Sequence[str] | None = None, **told: Unpack[Told]
    ) -> Future[Version]:
        """Commit in the background. Returns once this rank's state was read, so that it may change.

        One commit is on its way at most: the next call waits until it has ended.

        Args:
            state: what this rank holds; each value a tensor, a DTensor or a `deltavc.Shard`. Together the ranks hold
                every tensor once, or in equal copies.
            message, parents, told: as for `Writer.commit_async`, without partial. Rank 0's message, parents, metrics,
                meta, snapshot and author count. A step has to be the same on all ranks that name one. Files are kept of
                all ranks; of those that several name, the first rank's.

        Returns:
            A future that gives the Version once it is committed, on every rank, or raises
            BranchMoved: somebody else moved the branch. Nothing was committed.
            CommitInDoubt: neither the other ranks nor the store say whether it was committed; the next call settles it.
            CopiesDiffer: ranks hold different values in the same part of a tensor. Nothing was committed.
            PeerFailed, GroupBroken: another rank failed, or did not answer. Nothing was committed.
            WrongWeights: the ranks' copies of the last version were damaged; they are read again for the next commit.
            StoreError: the store failed. Nothing was committed.

        Raises:
            BadState: what the ranks hold is no state: a tensor of which parts are missing, overlap, or differ in dtype
                or shape. Names the tensor and the ranks.
            InputError: something that this rank passed in cannot be committed.
            BranchMoved: on rank 0, the first of `parents` is not `version`.
            PeerFailed, GroupBroken, CommitInDoubt, WriterClosed
        """
        with self._alone():
            self._land()
            call = self._council.call("commit")
            claim = threading.Lock()
            part = None
            try:
                with call:
                    part = self._read(call, state, message, parents, told)
                commit = Commit(
                    self._access,
                    self.branch,
                    self._council,
                    self._exchange,
                    call,
                    self._stance.base,
                    part,
                    self._stance.lead,
                )
                future = CommitFuture()
                future.set_running_or_notify_cancel()
                self._flight = future
                self._executor.submit(self._finish, commit, future, claim)
            except BaseException as error:
                if part is None:
                    self._exchange.drop()
                elif claim.acquire(blocking=False):  # otherwise it has begun in the background, and goes on
                    self._flight = None
                    call.stop(error)
                    self._exchange.drop()
                    self._stance.failed(part)
                raise
            return future

    def refuse(self, error: BaseException) -> NoReturn:
        """Take part in a commit that this rank has no state for: it fails on all ranks, here with this error."""
        with self._alone():
            self._land()
            self._exchange.drop()  # as the others do
            with self._council.call("commit"):
                raise error

    def move(self, ref: str, into: RankState | None = None) -> Version:
        """Go on from another version, on all ranks, and write it to what they hold live; the next commit is its child.

        The branch stays where it is: the next commit raises BranchMoved unless the version is its head.

        Args:
            ref: rank 0's counts, and is resolved on this branch. into: what each rank holds live; on all ranks or none.

        Raises:
            UnknownRef, AmbiguousRef, NoPath: on rank 0.
            LayoutMismatch: what is live does not fit; nothing was written.
            PeerFailed, GroupBroken, Corruption, CommitInDoubt
        """
        return self._go("move", ref, into, lambda target: self._stance.arrive(target, self._stance.newest()))

    def rollback(self, to: str, reason: str = "", into: RankState | None = None) -> Version:
        """Move the branch back to an earlier version, and with it all ranks and what they hold live.

        Nothing is lost: the versions left behind keep their ids, and the reflog keeps the reason.

        Raises:
            BranchMoved: on rank 0, somebody else moved the branch; nothing was changed.
            and what `move` raises.
        """
        return self._go("rollback", to, into, lambda target: self._stance.roll_back(target, reason))

    def close(self) -> None:
        """Wait for what is on its way on this rank, and let go of the base. May be called twice.

        Raises:
            what a commit in the background failed with, if nobody has asked its future.
        """
        if os.getpid() != self._pid:
            return  # a forked child's copy: threads and connections are the parent's
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._executor.shutdown()
            self._exchange.drop()
            self._stance.close()
            if self._flight is not None and not self._flight.heard and (error := self._flight.exception()) is not None:
                raise error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except DeltavcError as unheard:
            if kind is None:
                raise
            log.warning("a commit to %s failed as well: %s", self.branch, unheard)

    # --- on the caller's thread ---

    def _go(self, verb: str, ref: str, into: RankState | None, lead_there: Callable[[str], None]) -> Version:
        with self._alone():
            self._land()
            try:
                with self._council.call(verb) as call:
                    target = go(self._access, self._council, self._exchange, call, self._stance, ref, into, lead_there)
            except BaseException:
                self._exchange.drop()
                raise
            return Version.known(self._access.index.version(target), self.branch)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let one call at a time go on, and none in a forked child."""
        if os.getpid() != self._pid:
            raise WriterClosed(self.branch)
        with self._lock:
            if self._closed:
                raise WriterClosed(self.branch)
            yield

    def _land(self) -> None:
        """Wait until the commit before has ended."""
        if self._flight is not None and not self._flight.heard and (error := self._flight.exception()) is not None:
            log.warning("a commit to %s failed: %s", self.branch, error)
        self._flight = None

    def _read(self, call: Call, state: RankState, message: str, parents: Sequence[str] | None, told: Told) -> Part:
        """Read this rank's state, together with the other ranks."""
        if unknown := told.keys() - Told.__annotations__.keys():
            raise TypeError(f"commit has no argument {min(unknown)!r}; it has {', '.join(Told.__annotations__)}")
        if told.get("partial"):
            raise BadState("a commit of many ranks is of all tensors: partial= is for the writer of one")
        metadata = Metadata.of(
            message,
            told.get("step"),
            told.get("metrics"),
            told.get("meta"),
            told.get("author") or self._access.author,
        )
        files = told.get("files") or {}
        check_files(files)
        name = told.get("codec")
        codec = self._codec if name is None else codecs.codec(name)
        pieces = Pieces.of(state, told.get("dtype") or self._options.dtype)
        for device in {tensor.device for tensor in pieces.tensors.values() if tensor.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
        lead = self._stance.lead
        if lead is not None:
            self._stance.settle()
        call.agree()
        if self._last is not None and lead is not None:
            outcome.forget(self._council, self._last)
        self._last = call
        snapshot = told.get("snapshot")
        if snapshot is None:
            snapshot = lead is not None and lead.trail.due(self._options.snapshots)
        here = Facts(self._stance.tip, metadata.step, snapshot)
        arrangement, first = self._roll.call(call, pieces.description(files), here)
        self._stance.go_to(first.tip)
        request = Request(
            metadata=metadata,
            parents=self._parent_ids(parents) if lead is not None else (),
            files=files,
            parent_files={},
            codec=codec,
            snapshot=first.snapshot,
            partial=False,
            memory=self._options.memory,
        )
        self._stance.hold(pieces, arrangement)
        return self._stance.take(pieces, arrangement, request)

    def _parent_ids(self, parents: Sequence[str] | None) -> tuple[str, ...]:
        tip, index = self._stance.tip, self._access.index
        if parents is None:
            return (tip,) if tip else ()
        if any(ref != tip for ref in parents):
            index.catch_up([BRANCHES + self.branch])
        ids = tuple(ref if ref == tip else resolve(index, ref, branch=self.branch) for ref in parents)
        if (ids[0] if ids else None) != tip:
            raise BranchMoved(self.branch, ids[0] if ids else None, tip)
        return ids

    # --- in the background ---

    def _finish(self, commit: Commit, future: CommitFuture, claim: threading.Lock) -> None:
        if not claim.acquire(blocking=False):
            return
        part = commit.part
        try:
            announced = commit.run()
        except BaseException as error:
            self._stance.failed(part, error)
            future.set_exception(error)
            return
        try:
            self._stance.committed(part, announced)
        except BaseException as error:
            future.set_exception(error)
        else:
            num_lanes = part.arrangement.layout.num_lanes
            future.set_result(announced.version(self.branch, num_lanes, part.timings.as_dict()))
