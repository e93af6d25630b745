"""Gather, and the swap of a staged change, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from torch import Tensor

from deltavc.kernels import cpu_swap, pieces, pool
from deltavc.kernels.cpu import Array
from deltavc.kernels.segment import Segment

_STRETCH = 1 << 11
"""Lanes in a row of the table at most: the caches still hold the first when the last was compared."""

_SHARE = 1 << 16
"""Lanes in a task, so that threads share the work evenly."""


def gather(memory: Tensor, offsets: Tensor) -> Tensor:
    """`kernels.gather`."""
    source, at = pieces.unsigned(memory), pieces.indices(offsets)
    values = np.empty(len(at), source.dtype)

    def part(first: int, last: int) -> None:
        cpu_swap.gather(source, at[first:last], values[first:last])

    pool.run([partial(part, first, last) for first, last in pieces.cut(len(at))])
    return pieces.tensor(values)


def within(offsets: Tensor, bound: int) -> bool:
    """Whether all offsets lie in a memory of so many lanes."""
    at = pieces.indices(offsets)
    return len(at) == 0 or (int(at.min()) >= 0 and int(at.max()) < bound)


class Swap:
    """`kernels.SwapTable` of CPU memory. Nothing is allocated after this but a few small numbers."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments  # whose memory the rows point to
        self._tasks: list[_Task] = []
        for lane_bytes in sorted({segment.memory.element_size() for segment in segments}):
            rows = [
                (n, *row)
                for n, segment in enumerate(segments)
                if segment.memory.element_size() == lane_bytes
                for row in _rows(segment)
            ]
            self._tasks += _tasks(rows, lane_bytes)

    def compare(self) -> list[int]:
        pool.run([task.compare for task in self._tasks])
        return self._found()

    def swap(self) -> list[int]:
        pool.run([task.compare_and_write for task in self._tasks])
        found = self._found()
        if any(found):
            pool.run([task.write_back for task in self._tasks])
        return found

    def write(self, old: bool) -> None:
        pool.run([partial(task.write, cpu_swap.OLD if old else cpu_swap.NEW) for task in self._tasks])

    def _found(self) -> list[int]:
        found = np.zeros(len(self._segments), np.int64)
        for task in self._tasks:
            np.add.at(found, task.segments, task.counts)
        return [int(count) for count in found]


class _Task:
    """Rows that one thread walks; of each, how many lanes were not the old ones, and whether it was written."""

    def __init__(self, rows: Array, lane_bytes: int) -> None:
        self.segments = rows[:, 0]
        self.counts = np.zeros(len(rows), np.int64)
        self._rows = np.ascontiguousarray(rows[:, 1:])
        self._written, self._all = np.zeros(len(rows), np.bool_), np.ones(len(rows), np.bool_)
        self._like = np.empty(0, f"u{lane_bytes}")
        # The pause must not wait for a compiler.
        cpu_swap.compare(self._rows[:0], self.counts, self._like)
        cpu_swap.compare_and_write(self._rows[:0], self.counts, self._written, self._like)
        cpu_swap.write(self._rows[:0], self._all, cpu_swap.OLD, self._like)

    def compare(self) -> None:
        cpu_swap.compare(self._rows, self.counts, self._like)

    def compare_and_write(self) -> None:
        cpu_swap.compare_and_write(self._rows, self.counts, self._written, self._like)

    def write_back(self) -> None:
        cpu_swap.write(self._rows, self._written, cpu_swap.OLD, self._like)

    def write(self, values: int) -> None:
        cpu_swap.write(self._rows, self._all, values, self._like)


def _rows(segment: Segment) -> list[tuple[int, ...]]:
    width = segment.memory.element_size()
    found: list[tuple[int, ...]] = []
    for first in range(0, segment.num_lanes, _STRETCH):
        memory, offsets = segment.memory.data_ptr(), 0
        if isinstance(segment.at, Tensor):
            offsets = segment.at.data_ptr() + 8 * first
        else:
            memory += (segment.at + first) * width
        old, new = segment.old.data_ptr() + first * width, segment.new.data_ptr() + first * width
        found.append((memory, offsets, old, new, min(_STRETCH, segment.num_lanes - first)))
    return found


def _tasks(rows: list[tuple[int, ...]], lane_bytes: int) -> list[_Task]:
    table = np.array(rows, np.int64).reshape(len(rows), 6)
    lanes = table[:, -1]
    # Rows to a task by the lanes before them, so that tasks are about equal, whatever the tensors are.
    share = (np.cumsum(lanes) - lanes) // max(int(lanes.sum()) // (4 * pool.size()), _SHARE)
    cuts = np.flatnonzero(np.diff(share)) + 1
    return [_Task(part, lane_bytes) for part in np.split(table, cuts) if len(part)]
