"""Seconds per stage of an operation, summed over the threads that worked on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Timings:
    """Collects seconds by stage; safe to use from many threads.

    with timings.stage("decode"):
        ...
    """

    def __init__(self, *stages: str) -> None:
        self._lock = threading.Lock()
        self._seconds = dict.fromkeys(stages, 0.0)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - start)

    def add(self, name: str, seconds: float) -> None:
        with self._lock:
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def as_dict(self) -> dict[str, float]:
        with self._lock:
            return dict(self._seconds)
