"""Trying again: one policy for what passes by itself.

Waiting times grow exponentially and are drawn from zero up to their bound ("full jitter"), so that many clients
that were turned away together do not come back together.

Source: Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

from deltavc.errors import StoreError

_T = TypeVar("_T")
_log = logging.getLogger(__name__)
_once = ContextVar("once", default=False)


class Transient(Exception):
    """A failure that may pass by itself. `error` is what it is called if it does not."""

    def __init__(self, error: StoreError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how long to try.

    attempts: tries in all. seconds: no new try starts later than this after the first. first_wait, longest_wait:
    bounds of the first and of any waiting time, in seconds.
    """

    attempts: int = 7
    seconds: float = 60.0
    first_wait: float = 0.2
    longest_wait: float = 10.0

    def run(self, call: Callable[[], _T]) -> _T:
        """Return what `call` returns, trying again while it raises Transient.

        Raises:
            StoreError: that of the last try, when there are no more.
        """
        start = time.monotonic()
        attempts = 1 if _once.get() else self.attempts
        for attempt in range(1, attempts + 1):
            try:
                return call()
            except Transient as failure:
                wait = random.uniform(0, min(self.longest_wait, self.first_wait * 2 ** (attempt - 1)))
                if attempt == attempts or time.monotonic() + wait - start > self.seconds:
                    raise failure.error from failure.__cause__
                _log.warning("trying again after try %d of %d: %s", attempt, attempts, failure)
            time.sleep(wait)
        raise AssertionError("a policy makes at least one try")


@contextmanager
def once() -> Iterator[None]:
    """Let requests of this thread in this block be tried once: for a caller that has patience of its own."""
    before = _once.set(True)
    try:
        yield
    finally:
        _once.reset(before)
