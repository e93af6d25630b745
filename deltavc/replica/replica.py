"""A replica: live tensors at a known version, that move to others with almost no pause.

    serving ──stage──> serving, and staging beside it ──> staged ──apply──> applying ──> serving
       │                                                                        │
       └───────────── what is live is found to be no version ──> unusable <─────┘ neither done nor undone

Staging reads live tensors and writes none. Applying compares the live lanes that change with what they are
expected to be, writes all of them or none, and is the only time that nobody may read. Both happen on the
replica's own thread, one after the other, so that an interrupt ends a caller's waiting and never a swap.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

import torch

from deltavc import walk
from deltavc.access import Access
from deltavc.bound import Bound
from deltavc.errors import (
    ForeignWrite,
    HookFailed,
    LayoutMismatch,
    NothingStaged,
    ReplicaUnusable,
    StagingTooSmall,
    WrongWeights,
)
from deltavc.fingerprints import MODULUS
from deltavc.layout import Layout, TensorSpec
from deltavc.lineage.plan import Plan, plan
from deltavc.lineage.records import VersionRecord
from deltavc.lineage.resolve import resolve
from deltavc.replica.applied import Applied, Span, Staged
from deltavc.replica.following import ReplicaFollower, When
from deltavc.replica.gate import Gate
from deltavc.replica.proof import prove, shares
from deltavc.replica.rewriting import rewrite
from deltavc.replica.routing import Router
from deltavc.replica.staging import Staging, Swap
from deltavc.replica.worker import Worker
from deltavc.timings import Timings

log = logging.getLogger(__name__)

ReplicaState = Literal["serving", "staged", "applying", "unusable"]
Prove = Callable[[VersionRecord, Mapping[str, int]], None]
"""Shows that fingerprints of what is held are a version's; raises if they are not."""

MAX_HISTORY = 1 << 16
"""Moves that a replica remembers."""


@dataclass(frozen=True, slots=True)
class _Position:
    """Where the replica is: the version, and the fingerprint of what is held of each tensor."""

    version: str
    shares: Mapping[str, int]
    span: Span


@dataclass(frozen=True, slots=True)
class _Ready:
    """A version that is staged and proven. nbytes, seconds: what that took, in all where it went on from another."""

    staged: Staged
    shares: Mapping[str, int]
    swaps: Sequence[Swap]
    num_lanes: int
    nbytes: int
    seconds: float

    @property
    def version(self) -> str:
        return self.staged.version


@dataclass(slots=True)
class _Journal:
    """A swap that has begun: what undoes it, the position that is taken when it is done, and what on_apply was told."""

    swaps: Sequence[Swap]
    target: _Position
    told: Applied | None = None


class Replica:
    """Live tensors at a version. Make one with `repo.replica`. Safe to call from several threads."""

    def __init__(
        self,
        access: Access,
        bound: Bound,
        record: VersionRecord,
        *,
        staging_bytes: int | None = None,
        threads: int | None = None,
        streams: Sequence[Any] | None = None,
        on_apply: Callable[[Applied], object] | None = None,
        proof: Prove | None = None,
    ) -> None:
        """
        Args:
            record: the version that the live tensors are to be at; they are read and compared.
            proof: how fingerprints are shown to be a version's; None where this process holds whole tensors.

        Raises:
            WrongWeights: the live tensors are not this version.
        """
        self._access = access
        self._bound = bound
        self._streams = streams
        self._on_apply = on_apply
        self._prove: Prove = proof if proof is not None else partial(prove, access, bound)
        self._router = Router(bound)
        self._devices = list(dict.fromkeys(cell.device for cell in bound.cells))
        nbytes = default_staging_bytes(bound.nbytes) if staging_bytes is None else staging_bytes
        self._staging = Staging(bound, self._router, nbytes, access.objects.memory, threads)
        self._gate = Gate()
        self._staged: Staged | None = None
        self._ready: _Ready | None = None
        self._follower: ReplicaFollower | None = None
        self._journal: _Journal | None = None
        self._broken: str | None = None
        self._past: deque[Span] = deque(maxlen=MAX_HISTORY)
        held = shares(bound)
        self._prove(record, held)
        self._position = _Position(record.id, held, _span(record.id))
        self._worker = Worker(f"deltavc-replica-{record.id[:8]}")

    # --- what it is ---

    @property
    def version(self) -> str:
        """The id of the version that the live tensors are at."""
        return self._position.version

    @property
    def state(self) -> ReplicaState:
        """serving; staged, when a version can be applied; applying, during the pause; unusable, when the live
        tensors may be no version."""
        if self._broken is not None:
            return "unusable"
        if self._journal is not None:
            return "applying"
        return "serving" if self._ready is None else "staged"

    @property
    def history(self) -> list[Span]:
        """Which version from when to when, oldest first; the last one lasts."""
        spans = {span.begin: span for span in (*self._past, self._position.span)}
        return list(spans.values())

    def check_usable(self) -> None:
        """Raise ReplicaUnusable if the live tensors may be no version. Costs next to nothing."""
        if self._broken is not None:
            raise ReplicaUnusable(self._broken)

    @contextlib.contextmanager
    def reading(self) -> Iterator[str]:
        """Let no apply happen inside, and give the id of the version read.

        Waits while one is happening. A thread may nest it.

        Raises:
            ReplicaUnusable: the live tensors may be no version.
        """
        self._gate.enter()
        try:
            self.check_usable()
            yield self.version
        finally:
            self._gate.leave()

    # --- moving ---

    def stage(self, ref: str = "main") -> Staged:
        """Begin to prepare a move, beside serving. Live tensors are read, and not written.

        If a version is staged already, or being staged, staging goes on from there when that is less work.

        Raises:
            UnknownRef, AmbiguousRef: of the ref.
            ReplicaUnusable, ReplicaClosed
            and, from the `Staged` that is returned: StagingTooSmall, StageCancelled; LayoutMismatch, when the version
            has other tensors; WrongWeights, CorruptObject, MissingObject, NoPath, StoreError. Then nothing is staged.
        """
        self.check_usable()
        version = resolve(self._access.index, ref)
        staged = Staged(version)
        self._staged = staged.of(self._worker.submit(partial(self._stage, staged)))
        return staged

    def apply(self) -> Applied:
        """Move to the version that is staged: the pause.

        Waits until staging is done and nobody is inside `reading`. An interrupt is raised when the move is over,
        done or not; `version` tells.

        Raises:
            NothingStaged, and what staging failed with.
            ForeignWrite: live lanes are not what the version has there. Nothing was written, and the replica is
                unusable until `verify` finds it at its version again, or it is written anew.
            HookFailed: on_apply raised; the old values went back, and it ran again for the old version.
            ReplicaUnusable, ReplicaClosed
        """
        if self._gate.reading:
            raise RuntimeError("apply was called inside reading(), which it would wait for: leave that first")
        self.check_usable()
        staged = self._staged
        if staged is None:
            raise NothingStaged(self.version)
        staged.wait()
        return self._worker.run(self._apply)

    def move(self, ref: str, *, allow_long_pause: bool = False) -> Applied:
        """Stage and apply.

        Args:
            allow_long_pause: when the change does not fit into the staging memory, or the replica is unusable, write
                to the live tensors edge by edge while nobody may read. Interrupted, the replica is unusable.

        Raises:
            what `stage` and `apply` raise.
        """
        if self._broken is None:
            staged = self.stage(ref)
            try:
                staged.wait()
            except StagingTooSmall:
                if not allow_long_pause:
                    raise
            else:
                return self.apply()
        elif not allow_long_pause:
            raise ReplicaUnusable(self._broken)
        if self._gate.reading:
            raise RuntimeError("move was called inside reading(), which it would wait for: leave that first")
        version = resolve(self._access.index, ref)
        return self._worker.run(partial(self._rewrite, version))

    def verify(self) -> None:
        """Read all live tensors and compare their fingerprints with those of the version.

        A replica that was found to hold something else, and holds its version again, is usable again.

        Raises:
            WrongWeights: the tensors named hold something else. The replica is unusable.
            ReplicaClosed
        """
        self._worker.run(self._verify)

    def follow(
        self,
        ref: str = "main",
        *,
        every: float = 1.0,
        apply: When = "auto",
        on_error: Callable[[Exception], object] | None = None,
    ) -> ReplicaFollower:
        """Stay at the newest version of a ref: stage it whenever the ref has moved, forwards or back, and apply it.

        Outages of the store and the database are waited out. A version that cannot be reached (a change larger than the
        staging memory, other tensors, a damaged object) is passed over. Moves of one's own do no harm meanwhile.

        Args:
            every: seconds from one look at the ref to the next. A look at a branch that has not moved is one small
                request.
            apply: "auto", as soon as it is staged and nobody is inside `reading`; "manual", when a serving loop calls
                `safe_point`.
            on_error: called with what went wrong, on the thread on which it did, when a version is passed over and when
                following ends.

        Raises:
            UnknownRef, AmbiguousRef: of the ref.
            RuntimeError: it is following already: close that first.
            ReplicaUnusable
        """
        if self._follower is not None and self._follower.running:
            raise RuntimeError(f"the replica is following {self._follower.ref!r} already: close that first")
        self._follower = ReplicaFollower(self, self._access.index, ref, every=every, apply=apply, on_error=on_error)
        return self._follower

    def close(self) -> None:
        """Let go of the live tensors and the staging memory. What is being staged is cancelled. May be called twice."""
        if self._follower is not None:
            self._follower.close()
        if self._staged is not None:
            self._staged.cancel()
        self._worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<deltavc.Replica at {self.version[:12]}, {self.state}>"

    # --- on the worker's thread: staging ---

    def _stage(self, staged: Staged) -> int:
        self.check_usable()
        ready, self._ready = self._ready, None
        try:
            with self._beside():
                return self._prepare(staged, ready)
        except BaseException:
            self._staging.clear()
            raise

    def _prepare(self, staged: Staged, ready: _Ready | None) -> int:
        begin = time.perf_counter()
        record = self._record(staged.version)
        way = self._plan(staged.version, [self.version] if ready is None else [self.version, ready.version])
        before: Mapping[str, int] = self._position.shares
        if ready is not None and way.start != ready.version:
            ready = None
        if ready is None:
            self._staging.clear()
        self._staging.cancelled = staged.cancelled
        timings = Timings("fetch", "decode", "gather")
        legs = walk.legs(way, self._access.objects, self._router.names)
        nbytes = self._staging.walk(legs, self._access.objects, timings)
        moved = self._staging.moved()
        after = {name: (value + moved.get(name, 0)) % MODULUS for name, value in before.items()}
        self._prove(record, after)
        swaps = self._staging.swaps()
        self._staging.check_cancelled()
        for device in self._devices:
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
        log.info("staged %s: %d edges, %d bytes, %s", record.id[:12], len(legs), nbytes, timings.as_dict())
        seconds = time.perf_counter() - begin
        in_all = (nbytes, seconds) if ready is None else (nbytes + ready.nbytes, seconds + ready.seconds)
        self._ready = _Ready(staged, after, swaps, self._staging.num_lanes, *in_all)
        return nbytes

    def _plan(self, version: str, held: Sequence[str]) -> Plan:
        return plan(self._access.index, version, held)

    def _record(self, version: str) -> VersionRecord:
        record = self._access.index.version(version).record
        if record.layout != self._bound.layout.id:
            name, reason = _difference(self._bound, self._access.objects.layout(record.layout, version))
            raise LayoutMismatch(name, reason)
        return record

    @contextlib.contextmanager
    def _beside(self) -> Iterator[None]:
        """Work on streams of its own, so that serving's do not wait."""
        with contextlib.ExitStack() as stack:
            for device in self._devices:
                if device.type == "cuda":
                    stack.enter_context(torch.cuda.stream(torch.cuda.Stream(device)))  # type: ignore[no-untyped-call]
            yield

    # --- on the worker's thread: the pause ---

    def _apply(self) -> Applied:
        ready = self._ready
        if ready is None:
            raise NothingStaged(self.version)
        self._ready = None
        if self._staged is ready.staged:
            self._staged = None
        self.check_usable()
        try:
            return self._paused(partial(self._swap, ready))
        finally:
            self._staging.clear()

    def _paused(self, work: Callable[[], Applied]) -> Applied:
        """Do work that begins a pause, and leave the pause however it ends."""
        try:
            try:
                return work()
            finally:
                self._settle()
        except BaseException:
            self._settle()  # whatever came in between
            raise

    def _swap(self, ready: _Ready) -> Applied:
        timings = Timings("fence", "swap", "hook")
        self._gate.close()
        begin = time.perf_counter()
        with timings.stage("fence"):
            self._fence()
        target = _Position(ready.version, ready.shares, _span(ready.version))
        self._journal = journal = _Journal(ready.swaps, target)
        with timings.stage("swap"):
            foreign = _swap_all(ready.swaps)
        if foreign:
            self._journal = None
            self._broken = f"others wrote to {', '.join(foreign)}"
            raise ForeignWrite(self.version, foreign)
        paused = time.perf_counter() - begin
        applied = Applied(
            ready.version, paused, ready.num_lanes, timings.as_dict(), nbytes=ready.nbytes, stage_seconds=ready.seconds
        )
        if self._on_apply is not None:
            with timings.stage("hook"):
                journal.told = applied
                try:
                    self._on_apply(applied)
                except Exception as error:
                    raise HookFailed(applied.version, f"{type(error).__name__}: {error}") from error
            paused = time.perf_counter() - begin
            applied = replace(applied, pause_seconds=paused, timings=timings.as_dict())
        self._take(target)
        return applied

    def _settle(self) -> None:
        """Leave the pause: at the target if its position was taken, else as before it. Does no harm twice.

        Raises:
            ReplicaUnusable: on_apply was told of the target, and failed for the old version as well.
        """
        journal = self._journal
        if journal is not None:
            if self._position is not journal.target:
                self._undo()
                if journal.told is not None:
                    self._tell(replace(journal.told, version=self.version))
            self._journal = None
        self._gate.open()

    def _tell(self, old: Applied) -> None:
        """Run on_apply for the version that the weights went back to."""
        assert self._on_apply is not None
        try:
            self._on_apply(old)
        except BaseException as error:
            self._broken = f"on_apply failed for version {old.version}, to which the weights went back: {error}"
            self._journal = None
            raise ReplicaUnusable(self._broken) from error

    def _undo(self) -> None:
        journal = self._journal
        if journal is None:
            return
        try:
            for swap in journal.swaps:
                swap.table.write_old()
        except BaseException as error:
            self._broken = f"a move to {journal.target.version} could not be taken back: {error}"
            raise

    def _take(self, position: _Position) -> None:
        """Be at a position; from here on a move is made."""
        last = self._position.span
        # Said before it is so: a span that goes on counts as the one that lasts.
        self._past.append(replace(last, until=position.span.since, end=position.span.begin))
        self._position = position

    def _fence(self) -> None:
        """Wait until the devices have done what serving asked of them."""
        if self._streams is not None:
            for stream in self._streams:
                stream.synchronize()
            return
        for device in self._devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)

    # --- on the worker's thread: everything else ---

    def _verify(self) -> None:
        position = self._position
        found = shares(self._bound)
        wrong = tuple(sorted(name for name, value in found.items() if value != position.shares[name]))
        if wrong:
            self._broken = f"{', '.join(wrong[:5])} {'is' if len(wrong) == 1 else 'are'} not as the version has it"
            raise WrongWeights(position.version, wrong)
        self._broken = None

    def _rewrite(self, version: str) -> Applied:
        record = self._record(version)
        held = [] if self._broken is not None else [self.version]
        self._ready = self._staged = None
        self._staging.clear()
        timings = Timings("fetch", "decode", "apply", "hook")
        way = self._plan(version, held)
        legs = walk.legs(way, self._access.objects, self._router.names)

        def write() -> Applied:
            self._gate.close()
            begin = time.perf_counter()
            self._fence()
            self._broken = f"a long move to {version} did not end"
            rewrite(self._bound, self._router, legs, self._access.objects, timings)
            found = shares(self._bound)
            self._prove(record, found)
            num_lanes = sum(leg.step.edge.changes for leg in legs)
            paused = time.perf_counter() - begin
            applied = Applied(version, paused, num_lanes, timings.as_dict(), nbytes=way.nbytes)
            if self._on_apply is not None:
                self._on_apply(applied)
            self._take(_Position(version, found, _span(version)))
            self._broken = None
            return applied

        return self._paused(write)


def default_staging_bytes(nbytes: int) -> int:
    """Staging memory for live tensors of so many bytes: enough for 2 % of bf16 lanes changed."""
    return max(64 << 20, nbytes // 8)


def _span(version: str) -> Span:
    return Span(version, datetime.now(UTC), time.monotonic())


def _swap_all(swaps: Sequence[Swap]) -> tuple[str, ...]:
    """Write all new lanes if all live ones are the old ones. Returns the names of tensors that have others."""
    if len(swaps) == 1:
        counts = [swaps[0].table.swap()]
    else:
        counts = [swap.table.compare() for swap in swaps]
        if not any(map(any, counts)):
            for swap in swaps:
                swap.table.write_new()
    foreign = {
        name
        for swap, found in zip(swaps, counts, strict=True)
        for name, count in zip(swap.names, found, strict=True)
        if count
    }
    return tuple(sorted(foreign))


def _difference(bound: Bound, other: Layout) -> tuple[str, str]:
    """The first tensor in which a version's layout is not the one that the live tensors are bound to, and how."""
    for name in sorted({*bound.layout.place, *other.place}):
        here, there = (
            layout.tensors[layout.place[name]] if name in layout.place else None for layout in (bound.layout, other)
        )
        if here is None:
            return name, "is in the version that was asked for, but not in the one the replica is at"
        if there is None:
            return name, "is not in the version that was asked for"
        if here != there:
            return name, f"is {_form(there)} in the version that was asked for, {_form(here)} in the live state"
    raise AssertionError("equal layouts have equal ids")


def _form(tensor: TensorSpec) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}" + (f", tied to {tensor.tie!r}" if tensor.tie else "")
