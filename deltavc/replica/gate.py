"""The gate between readers and a pause: many read at a time, or nobody does.

A pause that waits goes first: readers that come later wait for it, so a busy server cannot keep it off for
ever. A thread that reads already may read again inside.
"""

from __future__ import annotations

import threading


class Gate:
    """Lets readers through, or one pause."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers: dict[int, int] = {}  # how deep each thread is in
        self._pauser: int | None = None

    @property
    def reading(self) -> bool:
        """Whether the calling thread is reading."""
        return threading.get_ident() in self._readers

    def enter(self) -> None:
        """Begin to read, once there is no pause."""
        thread = threading.get_ident()
        with self._changed:
            if thread not in self._readers:
                self._changed.wait_for(lambda: self._pauser in (None, thread))
            self._readers[thread] = self._readers.get(thread, 0) + 1

    def leave(self) -> None:
        """Stop reading."""
        thread = threading.get_ident()
        with self._changed:
            self._readers[thread] -= 1
            if not self._readers[thread]:
                del self._readers[thread]
                self._changed.notify_all()

    def close(self, timeout: float | None = None) -> None:
        """Begin a pause: wait until nobody reads, and let nobody begin.

        Raises:
            TimeoutError: somebody still reads after so many seconds. The pause has begun nevertheless.
        """
        with self._changed:
            self._pauser = threading.get_ident()
            if not self._changed.wait_for(lambda: not self._readers.keys() - {self._pauser}, timeout):
                raise TimeoutError(f"readers did not leave within {timeout:g} seconds")

    def open(self) -> None:
        """End the pause. Does nothing if there is none."""
        with self._changed:
            self._pauser = None
            self._changed.notify_all()
