"""Watching a ref: the newest version whenever it has moved, and patience while the store or the database is away.

    for version in watch:                # at once, then whenever the ref has moved, until watch.stop()
        with watch.surviving():          # an outage in here is waited out, and the version told again
            ...

A branch that has not moved costs one small request: for the entry after the last one known. Versions that came and
went between two looks are passed over; a branch that moves back is followed back.

An outage is logged once when it begins and once when it is over. Between two tries the waiting time doubles up to a
bound and is drawn from its upper half, so that followers that were cut off together do not come back together.

Source: Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015 ("equal jitter").
"""

from __future__ import annotations

import logging
import random
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from deltavc.errors import DatabaseUnavailable, DeltavcError, StoreUnavailable
from deltavc.lineage.index import Index
from deltavc.lineage.names import BRANCHES
from deltavc.lineage.records import RefEntry
from deltavc.lineage.resolve import resolve
from deltavc.store import retry

log = logging.getLogger(__name__)

T = TypeVar("T")

AWAY = (StoreUnavailable, DatabaseUnavailable)
"""Errors that pass when a server is back. Everything else is for somebody to look at, and is raised."""

LONGEST_WAIT = 60.0
"""Seconds between two tries in a long outage, unless `every` is more."""

_MOST_DOUBLINGS = 32  # beyond any bound that somebody could wait for


class Looking(Generic[T]):
    """Looks at a ref again and again. Iterate over it in one thread; `stop` may be called from any.

    Args:
        index: of the repository.
        ref: what is looked at, for the log.
        every: seconds from one look to the next.
        longest_wait: seconds between two tries, at most, while something is away.
    """

    def __init__(self, index: Index, ref: str, *, every: float = 2.0, longest_wait: float = LONGEST_WAIT) -> None:
        if not every > 0:
            raise ValueError(f"every={every}: seconds between two looks, more than 0")
        self.ref = ref
        self._index = index
        self._every = every
        self._longest_wait = max(every, longest_wait)
        self._stopped = threading.Event()
        self._failures = 0
        self._away_since = 0.0

    @abstractmethod
    def look(self) -> T | None:
        """Look once: what is new, or None. One of AWAY is raised as it comes, and nothing is lost by it."""

    def __iter__(self) -> Iterator[T]:
        """Yield what is new, first at once and then whenever there is something, until `stop`.

        Raises:
            DeltavcError: whatever is not one of AWAY.
        """
        while not self._stopped.is_set():
            started, failures = time.monotonic(), self._failures
            new = None
            try:
                new = self.look()
            except AWAY as error:
                self._away(error)
            if new is not None:
                yield new
            if self._failures == failures:
                self._back()
            self._stopped.wait(self._pause(started))

    def stop(self) -> None:
        """End the iteration, also while it waits. A request that is on its way comes to its end first."""
        self._stopped.set()

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped.is_set()

    def _away(self, error: DeltavcError) -> None:
        self._failures += 1
        if self._failures == 1:
            self._away_since = time.monotonic()
            log.warning("%s; trying again until it is back", error)

    def _back(self) -> None:
        if self._failures:
            log.warning("following %s again, after %.0f seconds", self.ref, time.monotonic() - self._away_since)
        self._failures = 0

    def _pause(self, started: float) -> float:
        """Seconds to wait now, after a look that started then."""
        if not self._failures:
            return max(0.0, started + self._every - time.monotonic())
        bound = min(self._longest_wait, self._every * 2 ** min(self._failures, _MOST_DOUBLINGS))
        return random.uniform(bound / 2, bound)


class Watch(Looking[str]):
    """Tells the id of the newest version of a ref whenever it has moved.

    `ref` is what `repo.resolve` takes; a branch is cheapest. Iterating raises UnknownRef or AmbiguousRef when the ref
    names nothing, or nothing any more.
    """

    def __init__(self, index: Index, ref: str, *, every: float = 2.0, longest_wait: float = LONGEST_WAIT) -> None:
        super().__init__(index, ref, every=every, longest_wait=longest_wait)
        self._entry: RefEntry | None = None
        self._told: str | None = None
        self._again = True

    def look(self) -> str | None:
        """Look once: the id of the version that the ref names now, or None if that is the one that was told last.

        Raises:
            UnknownRef, AmbiguousRef: the ref names nothing, or nothing any more.
            StoreError, DatabaseError, Corruption
        """
        with retry.once():  # whoever watches comes back anyhow
            version = self._told if self._unmoved() else None
            if version is None:
                version = resolve(self._index, self.ref)
                self._entry = branch_entry(self._index, self.ref, version)
        if version == self._told and not self._again:
            return None
        self._told, self._again = version, False
        return version

    @contextmanager
    def surviving(self) -> Iterator[None]:
        """Let an outage end this block instead of the watch; the version that it was about is then told again."""
        try:
            yield
        except AWAY as error:
            self._again = True
            self._away(error)

    def _unmoved(self) -> bool:
        """Whether the branch is at the entry where it was; False for refs that are no branches."""
        return self._entry is not None and self._index.refs.newest(self._entry.ref, self._entry) == self._entry


def branch_entry(index: Index, ref: str, version: str) -> RefEntry | None:
    """The last entry of the branch that a ref is, if it is one, and the entry led to this version."""
    entry = index.head(ref if ref.startswith(BRANCHES) else BRANCHES + ref)
    return entry if entry is not None and entry.new == version else None
