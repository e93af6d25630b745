"""The threads that kernels and codecs run on.

One pool for the process, as wide as the CPUs it may use. Work that is started from inside a worker runs
right there, so a task may call anything that would spread over the pool by itself, and nothing waits for a
thread that waits for it. A forked child has none of its parent's threads; it makes its own pool when it
first needs one.

    results = run([partial(encode, frame) for frame in frames])      # in order, all cores
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from deltavc.outcome import Outcome

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

MAX_THREADS = 16
"""More than this adds nothing: memory, not arithmetic, is what the kernels wait for."""

_GROUP_COST = 4 << 20
_MAX_GROUP = 256
_MAX_AHEAD = 256

_Queue = SimpleQueue[Callable[[], Any]]

_local = threading.local()
_lock = threading.Lock()
_queue: _Queue | None = None


def size() -> int:
    """Threads in the pool: the CPUs this process may run on, at most MAX_THREADS."""
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), MAX_THREADS)
    return min(os.cpu_count() or 1, MAX_THREADS)


def inside() -> bool:
    """Whether the caller is one of the pool's threads, so that what it starts runs inline."""
    return getattr(_local, "worker", False)


def run(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Run tasks on the pool and wait for all of them.

    If one raises, those not yet started never are, and the first error is raised once none is running any
    more. The same holds when the waiting thread is interrupted. Inline inside a worker, on a single CPU
    and for a single task.

    Returns:
        Their results, in the order of the tasks.
    """
    threads = min(size(), len(tasks))
    if threads < 2 or inside():
        return [task() for task in tasks]
    batch = _Batch(tasks)
    try:
        for _ in range(threads):
            _tasks().put(batch.work)
        return batch.wait()
    except BaseException:
        batch.stop()
        raise


def in_order(
    tasks: Iterable[tuple[int, Callable[[], T]]], budget: int, threads: int | None = None
) -> Generator[T, None, None]:
    """Run tasks on the pool, ahead of the caller, and yield their results in order.

    When one raises, and when the caller closes it or is interrupted, those not yet started never are, and none is
    running any more.
    Small tasks run several together on one thread: handing each over alone would take longer than running it.

    Args:
        tasks: each with its cost in bytes of memory.
        budget: what running and waiting tasks may cost together; one always runs.
        threads: how many may be running; None for all there are.
    """
    most = _MAX_AHEAD if threads is None else threads
    running: deque[tuple[int, Outcome[list[T]]]] = deque()
    held = 0
    try:
        for cost, group in _grouped(tasks, min(_GROUP_COST, budget // (2 * size()))):
            while running and (held + cost > budget or len(running) >= most):
                yield from running[0][1].result()  # and stays: the wait may be interrupted
                held -= running.popleft()[0]
            outcome: Outcome[list[T]] = Outcome()
            running.append((cost, outcome))  # before it starts: no interrupt comes between
            _start(group, outcome)
            held += cost
        while running:
            yield from running[0][1].result()
            running.popleft()
    finally:
        # What runs still works on what its caller gave it; nobody may touch that before it has ended.
        for _, outcome in running:
            outcome.cancel()
        for _, outcome in running:
            outcome.wait()


def _grouped(tasks: Iterable[tuple[int, Callable[[], T]]], most: int) -> Iterator[tuple[int, Callable[[], list[T]]]]:
    """Groups of tasks in a row that together cost up to `most`, or one that costs more."""
    group: list[Callable[[], T]] = []
    held = 0
    for cost, task in tasks:
        if group and (held + cost > most or len(group) >= _MAX_GROUP):
            yield held, _together(group)
            group, held = [], 0
        group.append(task)
        held += cost
    if group:
        yield held, _together(group)


def _together(group: Sequence[Callable[[], T]]) -> Callable[[], list[T]]:
    return lambda: [task() for task in group]


def apart(device: torch.device, work: Callable[[], T]) -> T:
    """Do work of torch's on one of the pool's threads, when it is for the CPU, and wait for it.

    What torch spreads over threads of its own (OpenMP's) never ends in a forked child, on the thread that
    forked, when its parent did the same. On another thread it does.
    """
    if device.type != "cpu":
        return work()  # here, on the caller's stream
    (result,) = in_order([(0, work)], 0)
    return result


def _start(task: Callable[[], T], outcome: Outcome[T]) -> None:
    """Have a worker do it, or do it here when this is one."""

    def work() -> None:
        if not outcome.begin():
            return
        try:
            result = task()
        except BaseException as error:
            outcome.fail(error)
        else:
            outcome.end(result)

    if inside():
        work()
    else:
        _tasks().put(work)


class _Batch(Generic[T]):
    """Tasks that several workers take from, one after another, and one thread that waits for them."""

    def __init__(self, tasks: Sequence[Callable[[], T]]) -> None:
        self._tasks = tasks
        self._results: dict[int, T] = {}
        self._next = 0
        self._running = 0
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._over: Outcome[None] = Outcome()

    def work(self) -> None:
        while (place := self._take()) is not None:
            error = None
            try:
                self._results[place] = self._tasks[place]()
            except BaseException as raised:
                error = raised
            self._finish(error)

    def wait(self) -> list[T]:
        self._over.wait()
        if self._error is not None:
            raise self._error
        return [self._results[place] for place in range(len(self._tasks))]

    def stop(self) -> None:
        """Start no more tasks, and wait for those that run."""
        with self._lock:
            self._next = len(self._tasks)
            if self._is_over():
                return
        self._over.wait()

    def _is_over(self) -> bool:
        return self._running == 0 and self._next == len(self._tasks)

    def _take(self) -> int | None:
        with self._lock:
            if self._next == len(self._tasks):
                return None
            self._next += 1
            self._running += 1
            return self._next - 1

    def _finish(self, error: BaseException | None) -> None:
        with self._lock:
            self._running -= 1
            if error is not None:
                self._next = len(self._tasks)
                self._error = self._error or error
            if self._is_over():
                self._over.end(None)


def _tasks() -> _Queue:
    global _queue
    with _lock:
        if _queue is None:
            _queue = SimpleQueue()
            for number in range(size()):
                # Daemons, so that work can still be done while the interpreter shuts down: a writer that is
                # closed by an exit handler has changes to encode.
                threading.Thread(target=_work, args=(_queue,), name=f"deltavc-{number}", daemon=True).start()
        return _queue


def _work(queue: _Queue) -> None:
    _local.worker = True
    while True:
        # No name is kept for the task: it would hold on to the tensors of the last one while idle.
        queue.get()()


def _forget() -> None:
    """After a fork, in the child: the threads are gone, and whoever held the lock is gone too."""
    global _local, _lock, _queue
    _local, _lock, _queue = threading.local(), threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
