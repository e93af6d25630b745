"""The committer: lands drafts on a branch, one after another, on a thread of its own.

    queued ──> finishing ──> landed
       │           └──> failed ──> drafts behind it are abandoned with it
       └──> superseded (a newer draft took its place)

It never touches the base. After a failure the writer asks for the drafts to take back and goes on.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from deltavc import landing
from deltavc.access import Access
from deltavc.draft import Draft
from deltavc.errors import BranchMoved, CommitAbandoned, CommitInDoubt, NoPath, TooLate
from deltavc.lineage.names import BRANCHES
from deltavc.lineage.records import RefEntry
from deltavc.lineage.standing import stands, take_back
from deltavc.version import Version

log = logging.getLogger(__name__)

OnBusy = Literal["wait", "coalesce", "error"]


class CommitFuture(Future[Version]):
    """A future that knows whether anybody has asked how it ended."""

    heard = False

    def result(self, timeout: float | None = None) -> Version:
        self.exception(timeout)
        return super().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        error = super().exception(timeout)
        self.heard = True
        return error


@dataclass
class _Flight:
    """A draft on its way, and everyone who waits for it."""

    draft: Draft
    futures: list[CommitFuture]
    state: Literal["queued", "finishing", "landed", "failed", "superseded"] = "queued"
    entry: RefEntry | None = None
    error: BaseException | None = None

    @property
    def unheard(self) -> bool:
        """Whether it failed, and nobody has asked any of its futures."""
        return self.error is not None and not any(future.heard for future in self.futures)


class Committer:
    """Lands drafts in order. `entry` is the branch's last ref entry as far as this writer knows."""

    def __init__(self, access: Access, branch: str, entry: RefEntry | None) -> None:
        self._access = access
        self.branch = branch
        self.entry = entry
        self._changed = threading.Condition()
        self._flights: deque[_Flight] = deque()
        self._failure: BaseException | None = None
        self._stopping = False
        self._doubtful_move: RefEntry | None = None
        self._thread: int | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="deltavc-committer")

    @property
    def head(self) -> str | None:
        """Where the branch is as far as this writer knows; None when it has to be created."""
        return self.entry.new if self.entry is not None else None

    @property
    def in_flight(self) -> int:
        """Drafts that have neither landed nor failed."""
        with self._changed:
            return sum(flight.state in ("queued", "finishing") for flight in self._flights)

    def submit(self, draft: Draft, superseded: list[CommitFuture]) -> CommitFuture:
        """Queue a draft. Its future, and those of drafts it took the place of, resolve when it has landed."""
        future = CommitFuture()
        future.set_running_or_notify_cancel()
        flight = _Flight(draft, [*superseded, future])
        with self._changed:
            self._flights.append(flight)
        self._executor.submit(self._finish, flight)
        return future

    def has(self, draft: Draft) -> bool:
        """Whether a draft was handed over: it is on its way or has landed."""
        with self._changed:
            return self.head == draft.record.id or any(flight.draft is draft for flight in self._flights)

    def take_queued(self) -> tuple[Draft, list[CommitFuture]] | None:
        """Take the newest draft out of the queue if its landing has not begun."""
        with self._changed:
            if not self._flights or self._flights[-1].state != "queued":
                return None
            flight = self._flights.pop()
            flight.state = "superseded"
            self._changed.notify_all()
        flight.draft.abandon()
        return flight.draft, flight.futures

    def wait(self, at_most: int = 0) -> None:
        """Wait until at most this many drafts are in flight, or one has failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or self.in_flight <= at_most)

    def drain(self) -> None:
        """Wait until everything in flight has landed. Raises CommitAbandoned if something failed."""
        self.wait()
        self._check_open()

    def settle(self) -> list[Draft] | None:
        """After a failure, the drafts that did not land, newest first; None if there was no failure.

        Those that nobody has heard of are logged.

        Raises:
            CommitInDoubt: the store still does not say whether a draft, or a move, landed.
        """
        if self._doubtful_move is not None:
            if self._access.refs.settle(self._doubtful_move):
                self._moved(self._doubtful_move)
            self._doubtful_move = None
        with self._changed:
            if self._failure is None:
                return None
            self._changed.wait_for(lambda: self.in_flight == 0)
            failed = [flight for flight in self._flights if flight.state == "failed"]
        doubtful = next((flight for flight in failed if flight.entry is not None), None)
        if doubtful is not None and doubtful.entry is not None:
            if landing.settle(self._access, doubtful.draft, doubtful.entry):
                log.warning("commit %s to %s, in doubt before, has landed", doubtful.draft.record.id, self.branch)
                self._landed(doubtful, doubtful.entry)
                failed.remove(doubtful)
            else:
                doubtful.entry = None
                self._look()
        for flight in failed:
            if flight.unheard:
                log.warning(
                    "the commit of step %s to %s failed: %s", flight.draft.record.step, self.branch, flight.error
                )
        with self._changed:
            self._flights.clear()
            self._failure = None
        return [flight.draft for flight in reversed(failed)]

    def move(self, new: str, reason: str) -> None:
        """Move the branch to another version, once nothing is in flight.

        Raises:
            BranchMoved: somebody else moved it.
            NoPath: the version's weights were dropped at the same time, and the branch is where it was.
            CommitInDoubt: the store does not say; `settle` finds out.
        """
        entry = self._access.refs.next_entry(BRANCHES + self.branch, self.entry, new, self._access.author, reason)
        try:
            self._access.refs.create(entry)
        except CommitInDoubt:
            self._doubtful_move = entry
            raise
        if not stands(self._access.index, new):
            why = f"the weights of {new} were dropped meanwhile"
            self.entry = take_back(self._access.index, self._access.refs, entry, self._access.author, why)
            raise NoPath(new)
        self._moved(entry)

    def stop(self) -> None:
        """Give up everything that has not begun to move the branch."""
        self._stopping = True

    def close(self) -> BaseException | None:
        """Wait for everything in flight and end the thread. Returns a failure that nobody has heard of."""
        self._executor.shutdown()
        return next((flight.error for flight in self._flights if flight.unheard), None)

    @property
    def on_its_thread(self) -> bool:
        """Whether the caller is a callback of one of the futures, for which everything behind it waits."""
        return threading.get_ident() == self._thread

    def _finish(self, flight: _Flight) -> None:
        with self._changed:
            if flight.state == "superseded":
                return
            flight.state = "finishing"
        self._thread = threading.get_ident()
        try:
            self._check_open()
            flight.draft.wait()
            self._check_open()
            self._land(flight)
        except BaseException as error:
            flight.draft.abandon()
            with self._changed:
                flight.state, flight.error = "failed", error
                self._failure = self._failure or error
                self._changed.notify_all()
            for future in flight.futures:
                future.set_exception(error)
        else:
            version = flight.draft.version(self.branch)
            for future in flight.futures:
                future.set_result(version)

    def _check_open(self) -> None:
        if self._failure is not None:
            raise CommitAbandoned(self.branch, str(self._failure))
        if self._stopping:
            raise CommitAbandoned(self.branch, "the writer was stopped")

    def _land(self, flight: _Flight) -> None:
        draft = flight.draft
        if draft.expected != self.head:
            raise BranchMoved(self.branch, draft.expected, self.head)
        entry = self._access.refs.next_entry(
            BRANCHES + self.branch, self.entry, draft.record.id, self._access.author, "commit"
        )
        with draft.timings.stage("upload"):
            try:
                landing.land(self._access, draft, entry)
            except CommitInDoubt:
                flight.entry = entry
                raise
            except (TooLate, NoPath):
                self._look()
                raise
        with draft.timings.stage("index"):
            self._landed(flight, entry)

    def _look(self) -> None:
        """See where the branch is after an entry of ours was taken back, or another took its place."""
        self.entry = self._access.refs.newest(BRANCHES + self.branch, self.entry)

    def _moved(self, entry: RefEntry) -> None:
        self.entry = entry
        self._access.index.note([entry])
        self._access.refs.write_hint(entry)

    def _landed(self, flight: _Flight, entry: RefEntry) -> None:
        self.entry = entry
        with self._changed:
            flight.state = "landed"
            if flight in self._flights:
                self._flights.remove(flight)
            self._changed.notify_all()
        draft = flight.draft
        self._access.index.note([entry], versions=[draft.record], layouts=[draft.layout], edges=draft.edges)
        with contextlib.suppress(RuntimeError):  # the interpreter is ending, and starts no more threads
            self._access.transfers.submit(self._access.refs.write_hint, entry)
