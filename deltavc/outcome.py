"""Outcomes: what work on one thread gives to those who wait for it on others, whatever interrupts the waiting.

A `concurrent.futures.Future` is the same but for signals: like every `threading.Condition`, it takes and gives back its
lock in Python code. An interrupt that arrives there, as Ctrl-C may, keeps the lock for ever, and whoever does the work
then waits to say what came of it. Here locks are taken by `with` alone, and nothing comes in between.
"""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from typing import Generic, TypeVar

T = TypeVar("T")


class Outcome(Generic[T]):
    """What some work gives: nothing yet, a result or an error; or that it was cancelled before it began."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[threading.Lock] = []
        self._begun = self._done = False
        self._results: list[T] = []
        self._error: BaseException | None = None

    # --- for who does the work ---

    def begin(self) -> bool:
        """Whether the work is to be done; then it can be cancelled no longer."""
        with self._lock:
            self._begun = not self._done
            return self._begun

    def end(self, result: T) -> None:
        """Give the result."""
        self._results.append(result)
        self._finish()

    def fail(self, error: BaseException) -> None:
        """Give the error that the work ended with."""
        self._error = error
        self._finish()

    # --- for who waits ---

    def done(self) -> bool:
        """Whether there is a result or an error, or it was cancelled."""
        return self._done

    def cancel(self) -> bool:
        """Have the work not done if it has not begun. Returns whether that is so."""
        with self._lock:
            if self._begun or self._done:
                return not self._begun
            self._error = CancelledError()
        self._finish()
        return True

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it is done, or cancelled. Raises TimeoutError after so many seconds."""
        mine = threading.Lock()
        mine.acquire()
        with self._lock:
            if self._done:
                return
            self._waiting.append(mine)
        if not mine.acquire(timeout=-1 if timeout is None else max(timeout, 0)):
            with self._lock:
                self._waiting = [each for each in self._waiting if each is not mine]
            raise TimeoutError(f"not done within {timeout:g} seconds")

    def result(self, timeout: float | None = None) -> T:
        """Wait for the result. Raises TimeoutError, CancelledError, and what the work raised."""
        self.wait(timeout)
        try:
            if self._error is not None:
                raise self._error
            return self._results[0]
        finally:
            del self  # or the error's traceback would hold on to it, as it does to the error

    def _finish(self) -> None:
        with self._lock:
            self._done = True
            waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.release()
