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
from dataclasses import dataclass, field
from typing import Literal

from deltavc.access import Access
from deltavc.draft import Draft
from deltavc.errors import BranchMoved, CommitAbandoned, CommitInDoubt
from deltavc.lineage.names import BRANCHES
from deltavc.lineage.records import RefEntry
from deltavc.version import Version

log = logging.getLogger(__name__)

OnBusy = Literal["wait", "coalesce", "error"]


@dataclass
class _Flight:
    """A draft on its way, and everyone who waits for it."""

    draft: Draft
    futures: list[Future[Version]]
    state: Literal["queued", "finishing", "landed", "failed", "superseded"] = "queued"
    entry: RefEntry | None = field(default=None)


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

    def submit(self, draft: Draft, superseded: list[Future[Version]]) -> Future[Version]:
        """Queue a draft. Its future, and those of drafts it took the place of, resolve when it has landed."""
        future: Future[Version] = Future()
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

    def take_queued(self) -> tuple[Draft, list[Future[Version]]] | None:
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
            self._changed.wait_for(
                lambda: (
                    self._failure is not None
                    or sum(flight.state in ("queued", "finishing") for flight in self._flights) <= at_most
                )
            )

    def drain(self) -> None:
        """Wait until everything in flight has landed. Raises CommitAbandoned if something failed."""
        self.wait()
        self._check_open()

    def settle(self) -> list[Draft] | None:
        """After a failure, the drafts that did not land, newest first; None if there was no failure.

        Raises:
            CommitInDoubt: the store still does not say whether a draft landed.
        """
        with self._changed:
            if self._failure is None:
                return None
            self._changed.wait_for(lambda: not any(f.state in ("queued", "finishing") for f in self._flights))
            failed = [flight for flight in self._flights if flight.state == "failed"]
        doubtful = next((flight for flight in failed if flight.entry is not None), None)
        if doubtful is not None and doubtful.entry is not None:
            if self._access.refs.settle(doubtful.entry):
                log.warning("commit %s to %s, in doubt before, has landed", doubtful.draft.record.id, self.branch)
                self._landed(doubtful, doubtful.entry)
                failed.remove(doubtful)
            else:
                doubtful.entry = None
        with self._changed:
            self._flights.clear()
            self._failure = None
        return [flight.draft for flight in reversed(failed)]

    def move(self, new: str, reason: str) -> None:
        """Move the branch to another version, once nothing is in flight.

        Raises:
            BranchMoved: somebody else moved it.
            CommitInDoubt: the store does not say; the move is tried again when asked again.
        """
        entry = self._access.refs.move(BRANCHES + self.branch, self.entry, new, self._access.author, reason)
        self.entry = entry
        self._index(entry, None)

    def stop(self) -> None:
        """Give up everything that has not begun to move the branch."""
        self._stopping = True

    def close(self) -> None:
        """Wait for everything in flight and end the thread."""
        self._executor.shutdown()

    def _finish(self, flight: _Flight) -> None:
        with self._changed:
            if flight.state == "superseded":
                return
            flight.state = "finishing"
        try:
            self._check_open()
            flight.draft.wait()
            self._check_open()
            self._land(flight)
        except BaseException as error:
            flight.draft.abandon()
            log.info("commit %s to %s failed: %s", flight.draft.record.id[:12], self.branch, error)
            with self._changed:
                flight.state = "failed"
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
                self._access.refs.create(entry)
            except CommitInDoubt:
                flight.entry = entry
                raise
        with draft.timings.stage("index"):
            self._landed(flight, entry)

    def _landed(self, flight: _Flight, entry: RefEntry) -> None:
        self.entry = entry
        with self._changed:
            flight.state = "landed"
            if flight in self._flights:
                self._flights.remove(flight)
            self._changed.notify_all()
        self._index(entry, flight.draft)
        with contextlib.suppress(RuntimeError):  # the interpreter is ending, and starts no more threads
            self._access.transfers.submit(self._access.refs.write_hint, entry)

    def _index(self, entry: RefEntry, draft: Draft | None) -> None:
        """Bring the database up to the entry. It has happened already: a failure here is made good later."""
        try:
            if draft is None:
                self._access.index.record([entry])
            else:
                self._access.index.record([entry], versions=[draft.record], layouts=[draft.layout], edges=draft.edges)
        except Exception as error:  # whatever it is, what has happened must not be told as a failure
            log.warning("committed, but the database is behind and will catch up: %s", error)
