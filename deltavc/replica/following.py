"""Following: a replica that stays at the newest version of a ref by itself.

    the ref moved ──> stage, beside serving ──proven──> auto:   apply
         ^                 │        │                   manual: offered ──> the serving loop's safe_point() applies it
         │                 │        └─ cannot be: told, and passed over
         └── meanwhile ────┘
             from there on, or, where that is no way, cancelled

What is newest decides, so versions that came and went are passed over, and a branch that went back is followed back.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from deltavc.errors import DeltavcError, NothingStaged, RefError, ReplicaClosed, StageCancelled
from deltavc.lineage.index import Index
from deltavc.lineage.plan import plan
from deltavc.lineage.resolve import resolve
from deltavc.replica.applied import Applied, Staged
from deltavc.store import retry
from deltavc.watch import AWAY, LONGEST_WAIT, Watch

if TYPE_CHECKING:
    from deltavc.replica.replica import Replica

log = logging.getLogger(__name__)

When = Literal["auto", "manual"]
OnError = Callable[[Exception], object]

_SLICE = 0.1
"""Seconds that waiting for something goes on before it is asked whether to go on at all."""


class ReplicaFollower:
    """Keeps a replica at the newest version of a ref, on a thread of its own. Make one with `replica.follow`.

    ref: what is followed. newest: the id of the version that it named when it was last looked at. error: the last thing
    that went wrong; None again when the newest version is reached. An outage of the store or the database is none: it
    is logged, and waited out.
    """

    def __init__(
        self,
        replica: Replica,
        index: Index,
        ref: str,
        moving: threading.Lock,
        *,
        every: float,
        apply: When,
        on_error: OnError | None,
    ) -> None:
        """
        Args:
            moving: what everybody holds who stages and applies, so that moves do not get into each other.
        """
        if apply not in ("auto", "manual"):
            raise ValueError(f"apply={apply!r}: 'auto', or 'manual' for a serving loop that calls safe_point()")
        self.ref = ref
        self.newest: str | None = None
        self.error: Exception | None = None
        self._replica = replica
        self._index = index
        self._every = every
        self._auto = apply == "auto"
        self._on_error = on_error
        self._failed: str | None = None  # the version that `error` is about
        self._offered: str | None = None  # the version that is staged for safe_point
        self._moving = moving
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._stopped = threading.Event()
        self._watch = Watch(index, ref, every=every)
        replica.check_usable()
        with retry.once(), contextlib.suppress(*AWAY):
            resolve(index, ref)
        self._thread = threading.Thread(target=self._run, name=f"deltavc-follow-{ref}", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether it follows still. It ends when it is closed, when the ref names nothing any more, and when the
        replica is closed or unusable; `error` then says so."""
        return self._thread.is_alive() and not self._stopped.is_set()

    @property
    def offered(self) -> str | None:
        """The id of the version that the next `safe_point` will apply, if there is one."""
        return self._offered

    def safe_point(self) -> Applied | None:
        """Apply what is staged and proven, if there is something: for a serving loop, wherever a pause does no harm.

        Costs next to nothing otherwise: no lock, no I/O, and no waiting for what is still being staged. With
        apply="auto" there never is something.

        Returns:
            What was applied; None if there was nothing, or it failed and the replica serves the version it was at
            (`error` tells, as does `on_error`).

        Raises:
            ForeignWrite, ReplicaUnusable: the live tensors may be no version: stop serving. Following has ended.
            ReplicaClosed
        """
        if self._offered is None:
            self._replica.check_usable()
            return None
        if self._moving.locked():  # another thread applies it, or it is being taken back
            return None
        self._replica.check_outside("safe_point")
        try:
            return self._apply_offered()
        except DeltavcError as error:
            self._offered = None
            self._end(error)
            raise
        finally:
            self._notify()

    def wait_for(self, ref: str, timeout: float | None = None) -> None:
        """Wait until the replica is at a version, or has been since this was called.

        Not for the thread that calls `safe_point`, which would wait for itself.

        Raises:
            TimeoutError: not within so many seconds, or following was ended first.
            UnknownRef, AmbiguousRef: of the ref.
            StagingTooSmall, ForeignWrite, CorruptObject and so on: what the version could not be reached for, or
                what ended the following.
        """
        version = resolve(self._index, ref)
        begin = time.monotonic()
        with self._lock:
            while not self._was_at(version, begin):
                error = self.error
                if error is not None and (self._failed == version or not self.running):
                    raise error
                left = _SLICE if timeout is None else begin + timeout - time.monotonic()
                if left <= 0 or not self.running:
                    at = self._replica.version
                    raise TimeoutError(f"the replica is at version {at}, and did not come to {version}")
                self._changed.wait(min(left, _SLICE))

    def close(self) -> None:
        """Stop following. What is being staged is cancelled, and an apply that has begun is waited for, so do not call
        it inside `reading` or `on_apply`. The replica stays where it is. May be called twice."""
        self._stop()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._withdraw()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<deltavc.ReplicaFollower of {self.ref}, {'running' if self.running else 'ended'}>"

    # --- on the thread ---

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                for version in self._watch:
                    with self._watch.surviving():
                        self._go(version)
            except Exception as error:
                if not isinstance(error, DeltavcError):
                    log.exception("following %s", self.ref)
                if isinstance(error, RefError | ReplicaClosed) or self._replica.state == "unusable":
                    self._end(error)
                    return
                # Credentials or a record in the bucket: somebody may mend it, and has to be told of it once.
                if str(error) != str(self.error):
                    self._tell(error)
                self._stopped.wait(max(self._every, LONGEST_WAIT))
                self._watch = Watch(self._index, self.ref, every=self._every)

    def _go(self, version: str | None) -> None:
        """Go to a version, and on to newer ones if the ref moves meanwhile."""
        cancelled = False
        while version is not None and not self._stopped.is_set():
            self.newest = version
            if version == self._offered:
                return
            self._withdraw()
            if version == self._replica.version:
                self._arrived()
                return
            # Not twice in a row, or a branch that moves to and fro faster than can be staged would never be reached.
            version, cancelled = self._reach(version, cancel=not cancelled)

    def _reach(self, version: str, *, cancel: bool) -> tuple[str | None, bool]:
        """Stage a version, then apply or offer it. Returns a newer one, if there is one by now, and whether this one
        was cancelled for it."""
        newer = None
        try:
            with self._moving:
                staged = self._replica.stage(version)
                newer = self._newer_while(staged, cancel=cancel)
                staged.wait()
                if self._auto:
                    with contextlib.suppress(NothingStaged):  # somebody else has applied it
                        self._replica.apply()
            if self._auto:
                self._arrived()
            else:
                self._offer(version)
        except StageCancelled:
            return newer, True
        except (*AWAY, ReplicaClosed):
            raise
        except Exception as error:
            if self._replica.state == "unusable":
                raise
            self._pass_over(version, error)
        return newer, False

    def _newer_while(self, staged: Staged, *, cancel: bool) -> str | None:
        """Wait until staging has ended, well or not, and look for newer versions meanwhile."""
        newer = None
        next_look = time.monotonic() + self._every
        while not staged.done:
            with contextlib.suppress(Exception):  # what it failed with is raised when it is asked for
                staged.wait(_SLICE)
            if self._stopped.is_set():
                staged.cancel()
            elif time.monotonic() >= next_look and not staged.done:
                with contextlib.suppress(DeltavcError):  # the watch meets it again, and deals with it
                    newer = self._watch.look() or newer
                    if cancel and newer is not None and not self._leads_to(staged.version, newer):
                        log.info("%s is staged no further: %s is newer", staged.version[:12], newer[:12])
                        staged.cancel()
                next_look = time.monotonic() + self._every
        return newer

    def _leads_to(self, version: str, newer: str) -> bool:
        """Whether a version is on the cheapest way from where the replica is to a newer one."""
        return plan(self._index, newer, [self._replica.version, version]).start == version

    def _offer(self, version: str) -> None:
        """Let `safe_point` apply what is staged, and wait for that, though not longer than from one look to the next:
        then there may be a newer version to stage on top of it."""
        self._offered = version
        with self._lock:
            self._changed.wait_for(lambda: self._offered is None or self._stopped.is_set(), self._every)

    def _withdraw(self) -> None:
        with self._moving:
            self._offered = None

    # --- on any thread ---

    def _apply_offered(self) -> Applied | None:
        """Apply what was offered. Returns None if that failed and the replica serves the version it was at.

        Raises:
            ForeignWrite, ReplicaUnusable, ReplicaClosed
        """
        version = self._offered
        try:
            with self._moving:
                version = self._offered
                if version is None:
                    return None
                applied = self._replica.apply()
                self._offered = None
        except ReplicaClosed:
            raise
        except DeltavcError as error:
            if self._replica.state == "unusable":
                raise
            self._offered = None
            if version is not None and not isinstance(error, NothingStaged):  # that is, somebody else has applied it
                self._pass_over(version, error)
            return None
        self._arrived()
        return applied

    def _arrived(self) -> None:
        if self._replica.version == self.newest:
            self.error = self._failed = None
        self._notify()

    def _pass_over(self, version: str, error: Exception) -> None:
        self._failed = version
        self._tell(error, f"version {version} is passed over: ")

    def _end(self, error: Exception) -> None:
        self._stop()
        self._tell(error, f"{self.ref} is followed no longer: ")

    def _tell(self, error: Exception, what: str = "") -> None:
        self.error = error
        report(error, what, self._on_error)
        self._notify()

    def _stop(self) -> None:
        self._stopped.set()
        self._watch.stop()
        self._notify()

    def _was_at(self, version: str, begin: float) -> bool:
        spans = reversed(self._replica.history)
        return any(span.version == version for span in spans if span.end is None or span.end >= begin)

    def _notify(self) -> None:
        with self._lock:
            self._changed.notify_all()


def report(error: Exception, what: str, on_error: OnError | None) -> None:
    """Log what a follower met, `what` first, and have its user told, whose own errors are logged too."""
    log.warning("%s%s", what, error)
    if on_error is not None:
        try:
            on_error(error)
        except Exception:
            log.exception("on_error")
