"""Live versions: tensors at a version, and the steps by which they get to another.

A step is a method that the replica's own thread runs. Staging ends with something `_ready`; the pause begins when the
gate is closed and ends in `_settle`, whatever happens in between:

    gate closed ─> fence ─> compare, write ─> on_apply ─> agree ─> position taken ─> gate opened
                            └─── until here, whatever interrupts: the old values go back ───┘

`Replica` is one that decides for itself. Those of a `ReplicaGroup` decide together, at `_agree`.
"""

from __future__ import annotations

import contextlib
import logging
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

from deltavc import walk
from deltavc.access import Access
from deltavc.bound import Bound
from deltavc.errors import CopiesDiffer, ForeignWrite, HookFailed, NothingStaged, ReplicaUnusable, WrongWeights
from deltavc.fingerprints import MODULUS
from deltavc.lineage.plan import Plan, plan
from deltavc.lineage.records import VersionRecord
from deltavc.lineage.replan import replanning
from deltavc.proof import check_layout, prove, shares
from deltavc.ranks.worker import Worker
from deltavc.replica.applied import Applied, Span, Staged
from deltavc.replica.gate import Gate
from deltavc.replica.position import History, Journal, Position, Ready
from deltavc.replica.staging import Staging, default_bytes
from deltavc.replica.streams import Beside, fence
from deltavc.replica.swaps import Swap, swap_all, undo_all
from deltavc.rewriting import rewrite
from deltavc.routing import Router
from deltavc.timings import Timings

log = logging.getLogger(__name__)

ReplicaState = Literal["serving", "staged", "applying", "unusable"]


class LiveVersion:
    """Live tensors at a version, and what there is to know of them."""

    _patience: float | None = None
    """Seconds that a pause waits for readers to leave; None for as long as it takes."""

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
    ) -> None:
        """
        Args:
            record: the version that the live tensors are to be at; they are read and compared.

        Raises:
            WrongWeights: the live tensors are not this version.
        """
        self._access = access
        self._bound = bound
        self._streams = streams
        self._on_apply = on_apply
        self._router = Router(bound)
        self._devices = list(dict.fromkeys(cell.device for cell in bound.cells))
        self._beside = Beside(self._devices)
        nbytes = default_bytes(bound.nbytes) if staging_bytes is None else staging_bytes
        self._staging = Staging(bound, self._router, nbytes, access.objects.memory, threads)
        self._gate = Gate()
        self._staged: Staged | None = None
        self._stages: list[Staged] = []
        self._ready: Ready | None = None
        self._journal: Journal | None = None
        self._broken: str | None = None
        held = shares(bound)
        self._prove(record, held)
        self._history = History(Position.at(record.id, held))
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
        return self._history.spans()

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
        read = object()
        try:
            try:
                self._gate.enter(read)
                self.check_usable()
                yield self.version
            finally:
                self._gate.leave(read)
        except BaseException:
            self._gate.leave(read)  # whatever came in between
            raise

    def close(self) -> None:
        """Let go of the live tensors and the staging memory. What is being staged is cancelled, and a pause that has
        begun is waited for, so do not call it inside `reading`. May be called twice."""
        self.check_outside("close", reading=False)
        for staged in self._stages:
            staged.cancel()
        self._worker.close()
        self._ready = None
        self._bound = Bound(self._bound.layout, {}, frozenset(), frozenset())
        self._router = Router(self._bound)
        self._staging = Staging(self._bound, self._router, 0, 0, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<deltavc.{type(self).__name__} at {self.version[:12]}, {self.state}>"

    def check_outside(self, verb: str, *, reading: bool = True) -> None:
        """Raise RuntimeError inside `on_apply` and, unless reading is False, inside `reading`, for what waits for them
        to end."""
        if self._worker.inside:
            raise RuntimeError(f"{verb} was called inside on_apply, which it would wait for: call it afterwards")
        if reading and self._gate.reading:
            raise RuntimeError(f"{verb} was called inside reading(), which it would wait for: leave that first")

    def _begin(self, staged: Staged, job: Callable[[], int]) -> None:
        """Have a version staged by a job, after those before it."""
        future = self._worker.submit(job)
        self._stages = [*(each for each in self._stages if not each.done), staged]
        self._staged = staged.of(future)

    @property
    def _position(self) -> Position:
        return self._history.position

    # --- on the worker's thread: staging ---

    def _stage(self, staged: Staged) -> int:
        self.check_usable()
        ready, self._ready = self._ready, None
        try:
            with self._beside.work():
                return self._prepare(staged, ready)
        except BaseException as error:
            self._staging.clear()
            traceback.clear_frames(error.__traceback__)  # which hold on to what was fetched
            raise

    def _prepare(self, staged: Staged, ready: Ready | None) -> int:
        begin = time.perf_counter()
        record = self._record(staged.version)
        attempts = iter([ready, None])  # the second one begins at what is live
        nbytes, ready = replanning(self._access.index, lambda: self._walk(staged, next(attempts)))
        moved = self._staging.moved()
        after = [(value + moved.get(cell, 0)) % MODULUS for cell, value in enumerate(self._position.shares)]
        try:
            self._prove(record, after)
        except (WrongWeights, CopiesDiffer):
            self._verify()  # raises, if it is the live tensors that are wrong
            raise
        swaps = self._staging.swaps()
        self._staging.check_cancelled()
        self._beside.wait()
        self._agree(final=False)
        seconds = time.perf_counter() - begin
        in_all = (nbytes, seconds) if ready is None else (nbytes + ready.nbytes, seconds + ready.seconds)
        self._ready = Ready(staged, after, swaps, self._staging.num_lanes, *in_all)
        return nbytes

    def _walk(self, staged: Staged, ready: Ready | None) -> tuple[int, Ready | None]:
        """Walk to a version. Returns the bytes fetched, and what was ready before, if it went on from there."""
        way = self._plan(staged.version, [self.version] if ready is None else [self.version, ready.version])
        if ready is not None and way.start != ready.version:
            ready = None
        if ready is None:
            self._staging.clear()
        self._staging.cancelled = staged.cancelled
        timings = Timings("fetch", "decode", "gather")
        legs = walk.legs(way, self._access.objects, self._router.names)
        nbytes = self._staging.walk(legs, self._access.objects, timings)
        log.info("walked to %s: %d edges, %d bytes, %s", staged.version[:12], len(legs), nbytes, timings.as_dict())
        return nbytes, ready

    def _plan(self, version: str, held: Sequence[str]) -> Plan:
        return plan(self._access.index, version, held)

    def _record(self, version: str) -> VersionRecord:
        record = self._access.index.version(version).record
        if record.layout != self._bound.layout.id:
            check_layout(self._bound, self._access.objects.layout(record.layout, version))
        return record

    def _prove(self, record: VersionRecord, held: Sequence[int]) -> None:
        """Show that the fingerprints of the cells are a version's, or raise."""
        prove(self._access, self._bound, record, held)

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
            try:
                self._settle()  # whatever came in between
            finally:
                self._give_up()
            raise

    def _swap(self, ready: Ready) -> Applied:
        timings = Timings("fence", "swap", "hook")
        self._gate.close(self._patience)
        begin = time.perf_counter()
        with timings.stage("fence"):
            fence(self._devices, self._streams)
        target = Position.at(ready.version, ready.shares)
        self._journal = journal = Journal(ready.swaps, target)
        with timings.stage("swap"):
            foreign = self._write(ready.swaps)
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
        self._agree(final=True)
        self._take(target)
        return replace(applied, pause_seconds=time.perf_counter() - begin, timings=timings.as_dict())

    def _write(self, swaps: Sequence[Swap]) -> tuple[str, ...]:
        """Write what is staged over the live lanes, or nothing. Returns the tensors that somebody else wrote to."""
        return swap_all(swaps)

    def _agree(self, *, final: bool) -> None:
        """Go on, to the next step or, if final, to the new version. Raises if others cannot; alone, there are none."""

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

    def _give_up(self) -> None:
        """Leave the pause, which could not be settled twice, with weights that nobody may read."""
        if self._journal is not None:
            self._broken = self._broken or f"a move to {self._journal.target.version} could not be settled"
            # Whatever is written from here on, this must not be undone over it.
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
            undo_all(journal.swaps)
        except BaseException as error:
            self._broken = f"a move to {journal.target.version} could not be taken back: {error}"
            raise

    def _take(self, position: Position) -> None:
        """Be at a position; from here on a move is made."""
        self._history.take(position)

    # --- on the worker's thread: everything else ---

    def _verify(self) -> None:
        position = self._position
        compared = zip(self._bound.cells, shares(self._bound), position.shares, strict=True)
        wrong = tuple(sorted({cell.name for cell, found, expected in compared if found != expected}))
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
        self._agree(final=False)

        def write() -> Applied:
            self._gate.close(self._patience)
            begin = time.perf_counter()
            fence(self._devices, self._streams)
            if legs:
                self._broken = f"a long move to {version} did not end"
            rewrite(self._bound, self._router, legs, self._access.objects, timings)
            found = shares(self._bound)
            self._prove(record, found)
            num_lanes = sum(leg.step.edge.changes for leg in legs)
            paused = time.perf_counter() - begin
            applied = Applied(version, paused, num_lanes, timings.as_dict(), nbytes=way.nbytes)
            if self._on_apply is not None:
                with timings.stage("hook"):
                    self._on_apply(applied)
            self._agree(final=True)
            self._take(Position.at(version, found))
            self._broken = None
            return replace(applied, pause_seconds=time.perf_counter() - begin, timings=timings.as_dict())

        return self._paused(write)
