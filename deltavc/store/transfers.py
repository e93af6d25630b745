"""Transfers: many requests to a store at once, with bounded memory, results in order.

A store call waits for a network or a disk, so threads are all that parallel transfers need. `ahead` keeps
requests going while earlier results are used, up to a number of bytes on their way:

    for pack, body in transfers.ahead(packs, fetch, nbytes=lambda pack: pack.nbytes, budget=256 << 20):
        ...
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Item = TypeVar("_Item")

DEFAULT_MEMORY = 1 << 30
"""Bytes that a commit or checkout may take beyond the state and the kept base, unless it is told otherwise."""

MAX_REQUESTS = 16
"""Requests on their way at once. S3-likes answer one in tens of milliseconds; 16 fill a 10 Gbit/s link."""


class Transfers:
    """Threads for store calls; started at first use and again in a forked child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._pid = 0

    def submit(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Run a store call on a thread of its own."""
        with self._lock:
            if self._executor is None or self._pid != os.getpid():
                self._executor = ThreadPoolExecutor(MAX_REQUESTS, thread_name_prefix="deltavc-transfer")
                self._pid = os.getpid()
            return self._executor.submit(call, *args, **kwargs)

    def ahead(
        self, items: Iterable[_Item], call: Callable[[_Item], _T], nbytes: Callable[[_Item], int], budget: int
    ) -> Iterator[tuple[_Item, _T]]:
        """Yield each item with `call(item)`, in order, keeping calls going for items further on.

        Args:
            nbytes: what an item's result will hold, in bytes.
            budget: results on their way or waiting hold at most this many bytes (one item always goes).

        An exception of a call is raised when its turn comes; what is behind it is then cancelled.
        """
        waiting: deque[tuple[_Item, int, Future[_T]]] = deque()
        held = 0
        try:
            for item in items:
                size = nbytes(item)
                while waiting and (held + size > budget or len(waiting) >= 2 * MAX_REQUESTS):
                    done, done_size, future = waiting.popleft()
                    yield done, future.result()
                    held -= done_size
                waiting.append((item, size, self.submit(call, item)))
                held += size
            while waiting:
                done, _, future = waiting.popleft()
                yield done, future.result()
        finally:
            for _, _, future in waiting:
                future.cancel()

    def close(self) -> None:
        """Wait for what is on its way and stop the threads."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None and self._pid == os.getpid():
            executor.shutdown()
