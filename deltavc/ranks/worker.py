"""A thread that does one job after another, for a replica or a rank.

Everything that touches live weights or what is staged happens on one thread, one job after another. Signals
reach the main thread, never this one, so an interrupt ends somebody's waiting and not a swap.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from deltavc.errors import ReplicaClosed
from deltavc.outcome import Outcome

T = TypeVar("T")

_Queue = SimpleQueue[Callable[[], Any] | None]


class Worker:
    """A thread that does jobs in order, until it is closed or forgotten."""

    def __init__(self, name: str) -> None:
        self._queue: _Queue = SimpleQueue()
        self._lock = threading.Lock()  # so that no job comes to lie behind the end of the queue
        self._pid = os.getpid()
        self._closed = False
        self._thread = threading.Thread(target=_work, args=(self._queue,), name=name, daemon=True)
        self._thread.start()
        self._stop = weakref.finalize(self, self._queue.put, None)

    @property
    def inside(self) -> bool:
        """Whether the caller is this thread."""
        return threading.current_thread() is self._thread

    def submit(self, job: Callable[[], T]) -> Outcome[T]:
        """Have a job done after those before it.

        Raises:
            ReplicaClosed: also in a forked child, which has no such thread.
        """
        if os.getpid() != self._pid:
            raise ReplicaClosed
        outcome: Outcome[T] = Outcome()

        def run() -> None:
            try:
                result = job()
            except BaseException as error:
                outcome.fail(error)
            else:
                outcome.end(result)

        with self._lock:
            if self._closed:
                raise ReplicaClosed
            self._queue.put(run)
        return outcome

    def run(self, job: Callable[[], T]) -> T:
        """Have a job done and wait for it. A first interrupt is raised when the job has ended; a second one at once.

        On this thread itself, it is done at once.
        """
        if self.inside:
            return job()
        outcome = self.submit(job)
        try:
            outcome.wait()
        except BaseException:
            outcome.wait()
            raise
        return outcome.result()

    def close(self) -> None:
        """Take no more jobs. Those before it are done first."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            self._stop()
        if not self.inside:
            self._thread.join()


def _work(queue: _Queue) -> None:
    while (job := queue.get()) is not None:
        job()
        del job  # it holds on to live tensors
