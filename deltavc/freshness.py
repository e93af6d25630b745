"""Freshness: how old what a writer uploaded may be when it is published.

    mark ── packs, edge, version ── check ── ref entry ── landed         all times by the store's clock
      └───── at most grace / 2 ───────┘                      │
      └───── at most grace ──────────────────────────────────┘ or it is read back

Clean-up deletes what nobody names once it is older than the grace. So that it never deletes what somebody is about
to name, a writer refuses to publish what is older than half of it: a process that was stopped, a machine that was
suspended, an upload that took for ever. The store's clock decides, since it also stamps the objects; clocks of this
machine only tell how long the last step took, and whichever of them went furthest is believed.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from datetime import datetime, timedelta

from deltavc.errors import StoreError, TooLate
from deltavc.lineage.settings import SettingsRef
from deltavc.store.objects import Store
from deltavc.store.transfers import Transfers

_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on while a machine is suspended


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment that has passed by the store's clock, and how many settings had been made by then."""

    at: datetime
    settings: int


class Pass:
    """Leave to publish, for half the grace."""

    def __init__(self, mark: Mark, grace: timedelta) -> None:
        self.mark = mark
        self.grace = grace
        self._watch = _Watch()

    @property
    def expired(self) -> bool:
        """Whether so much time has gone by since it was given that what was published has to be read back."""
        return self._watch.elapsed > self.grace / 2


class Freshness:
    """Tells a repository's writers the time, and whether they are in time. Safe to use from many threads."""

    def __init__(self, store: Store, transfers: Transfers, settings: SettingsRef) -> None:
        self._store = store
        self._transfers = transfers
        self._settings = settings
        self._lock = threading.Lock()
        self._last: tuple[Mark, _Watch] | None = None

    def mark(self) -> Mark:
        """A moment before which nothing of what is uploaded from now on is uploaded; it may be somewhat earlier.

        Raises:
            StoreError: the store has never told its time yet, and does not now.
            CorruptObject, MissingObject: of the repository's settings.
        """
        with self._lock:
            last = self._last
        if last is not None:
            mark, watch = last
            if watch.elapsed < self._settings.policy(mark.settings).grace / 16:
                return mark
        try:
            return self._look()
        except StoreError:
            if last is None:
                raise
            return last[0]

    def check(self, mark: Mark, what: str) -> Pass:
        """Ask the store whether what was uploaded since `mark` may be published; `what` it is, for the error.

        Raises:
            TooLate: it is older than half the grace, or than half of a shorter one that held in between.
            StoreError; CorruptObject, MissingObject: of the repository's settings.
        """
        now = self._look()
        grace = min(self._settings.policy(number).grace for number in range(mark.settings, now.settings + 1))
        age = now.at - mark.at
        if age > grace / 2:
            raise TooLate(what, age.total_seconds(), grace.total_seconds() / 2)
        return Pass(mark, grace)

    def _look(self) -> Mark:
        watch = _Watch()  # before the question, so that it never shows less than has gone by
        if self._store.remote:
            try:
                asked = self._transfers.submit(self._settings.follow)
            except RuntimeError:  # the interpreter is ending, and starts no more threads
                mark = Mark(self._store.now(), self._settings.follow())
            else:
                mark = Mark(self._store.now(), asked.result())
        else:
            mark = Mark(self._store.now(), self._settings.follow())
        with self._lock:
            self._last = (mark, watch)
        return mark


class _Watch:
    """Time since it was made, by the clock of this machine that shows most."""

    def __init__(self) -> None:
        self._started = self._clocks()

    @property
    def elapsed(self) -> timedelta:
        return timedelta(seconds=max(now - then for now, then in zip(self._clocks(), self._started, strict=True)))

    @staticmethod
    def _clocks() -> tuple[float, float]:
        return time.time(), time.clock_gettime(_SINCE_BOOT)
