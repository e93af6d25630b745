"""The gate between readers and a pause: many read at a time, or nobody does.

A pause that waits goes first: readers that come later wait for it, so a busy server cannot keep it off for
ever. A thread that reads already may read again inside.
"""

from __future__ import annotations

import threading


class Gate:
    """Lets readers through, or one pause.

    A read is whatever object stands for it, so that it can be ended on any thread, as that of a generator may be, and
    twice, or before it began, as after an interrupt.
    """

    def __init__(self) -> None:
        # Blocks take the lock itself: the ways in and out of a condition are Python, and an interrupt in them keeps it.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._reads: dict[object, int] = {}  # the thread that began each
        self._pauser: int | None = None

    @property
    def reading(self) -> bool:
        """Whether the calling thread is reading."""
        with self._lock:
            return threading.get_ident() in self._reads.values()

    def enter(self, read: object) -> None:
        """Begin to read, once there is no pause."""
        thread = threading.get_ident()
        with self._lock:
            if thread not in self._reads.values():
                self._changed.wait_for(lambda: self._pauser in (None, thread))
            self._reads[read] = thread

    def leave(self, read: object) -> None:
        """Stop reading. Does nothing if this was not begun, or has ended."""
        with self._lock:
            self._reads.pop(read, None)
            self._changed.notify_all()

    def close(self, timeout: float | None = None) -> None:
        """Begin a pause: wait until nobody reads, and let nobody begin.

        Raises:
            TimeoutError: somebody still reads after so many seconds. The pause has begun nevertheless.
        """
        with self._lock:
            self._pauser = threading.get_ident()
            if not self._changed.wait_for(lambda: not {*self._reads.values()} - {self._pauser}, timeout):
                raise TimeoutError(f"readers did not leave within {timeout:g} seconds")

    def open(self) -> None:
        """End the pause. Does nothing if there is none."""
        with self._lock:
            self._pauser = None
            self._changed.notify_all()
