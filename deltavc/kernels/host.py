"""Kernels on the CPU: work cut into tasks for the pool, each task a loop of `cpu`.

Results are put together in the order of the tasks, so they do not depend on the number of threads.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from torch import Tensor

from deltavc.change import Box, Change, Dense, Sparse
from deltavc.kernels import cpu, cpu_positions, pieces, pool
from deltavc.kernels.cpu import ADD, SUBTRACT, XOR
from deltavc.kernels.host_swap import Swap, gather, within
from deltavc.kernels.part import Listed
from deltavc.kernels.pieces import Lanes, Storage
from deltavc.kernels.runs import Runs
from deltavc.kernels.scan import diff

__all__ = [
    "Swap",
    "apply",
    "ascend",
    "densify",
    "diff",
    "fingerprint",
    "gather",
    "memory_offsets",
    "merge",
    "moved",
    "within",
    "zero_fingerprint",
]


def apply(lanes: Tensor, change: Change, box: Box, shape: tuple[int, ...], sign: int) -> int:
    """`kernels.apply`, of a change that was checked."""
    runs = cpu.pack_runs(Runs.of(box, shape))
    how = XOR if change.operation == "xor" else ADD if sign == 1 else SUBTRACT
    if isinstance(change, Sparse):
        return _apply_sparse(Storage(lanes), change, runs, how)
    return _apply_dense(Lanes(lanes), change, runs, how)


def merge(first: Sparse, second: Sparse) -> Sparse:
    """`kernels.compose` of two sparse changes."""
    longer, shorter = (first, second) if first.num_changes >= second.num_changes else (second, first)
    positions, others = pieces.indices(longer.positions), pieces.indices(shorter.positions)
    values, other_values = pieces.unsigned(longer.values), pieces.unsigned(shorter.values)

    merged = np.empty(len(positions) + len(others), np.int64)
    merged_values = np.empty(len(merged), values.dtype)

    # Both operations commute, so it does not matter which came first. Cut at positions of the longer one;
    # equal positions of the other then fall into the same part.
    def part(first: int, last: int) -> slice:
        low = 0 if first == 0 else int(np.searchsorted(others, positions[first]))
        high = len(others) if last == len(positions) else int(np.searchsorted(others, positions[last]))
        count = cpu_positions.merge(
            positions[first:last],
            values[first:last],
            others[low:high],
            other_values[low:high],
            merged[first + low : last + high],
            merged_values[first + low : last + high],
            longer.operation == "xor",
        )
        return slice(first + low, first + low + count)

    # Parts are shorter than the room for them by the lanes that both changed: close the gaps.
    total = 0
    for found in pool.run([partial(part, first, last) for first, last in pieces.cut(len(positions))]):
        kept = slice(total, total + found.stop - found.start)
        merged[kept], merged_values[kept] = merged[found], merged_values[found]
        total = kept.stop
    merged.resize(total, refcheck=False)
    merged_values.resize(total, refcheck=False)
    return Sparse(first.operation, pieces.tensor(merged), pieces.tensor(merged_values))


def fingerprint(lanes: Tensor, box: Box, shape: tuple[int, ...]) -> int:
    """`kernels.fingerprint`."""
    runs = cpu.pack_runs(Runs.of(box, shape))
    source = Lanes(lanes)
    return pieces.total(
        lambda first, last: cpu.fingerprint(source.read(first, last), first, runs),
        source.cut(),
    )


def zero_fingerprint(box: Box, shape: tuple[int, ...]) -> int:
    """`kernels.zero_fingerprint`."""
    runs = cpu.pack_runs(Runs.of(box, shape))
    return pieces.total(
        lambda first, last: cpu.zero_fingerprint(first, last, runs), pieces.cut_lanes(box.num_lanes, contiguous=True)
    )


def moved(listed: Listed) -> int:
    """`kernels.moved`, of a list that was checked."""
    runs = cpu.pack_runs(Runs.of(listed.box, listed.shape))
    positions = pieces.indices(listed.positions)
    old, new = pieces.unsigned(listed.old), pieces.unsigned(listed.new)
    return pieces.total(
        lambda first, last: cpu.moved(old[first:last], new[first:last], positions[first:last], runs),
        pieces.cut(len(positions)),
    )


def densify(change: Sparse, num_lanes: int) -> Dense:
    """`kernels.densify`, of a change that was checked."""
    source = pieces.unsigned(change.values)
    values = np.zeros(num_lanes, source.dtype)
    values[pieces.indices(change.positions)] = source
    return Dense(change.operation, pieces.tensor(values))


def ascend(positions: Tensor, num_lanes: int) -> bool:
    """Whether positions lie in a box of so many lanes and rise strictly."""
    return cpu_positions.ascend(pieces.indices(positions), num_lanes)


def memory_offsets(lanes: Tensor, positions: Tensor) -> Tensor:
    """`kernels.offsets_of`."""
    return pieces.tensor(Storage(lanes).offsets(pieces.indices(positions)))


def _apply_sparse(storage: Storage, change: Sparse, runs: cpu.PackedRuns, how: int) -> int:
    positions, values = pieces.indices(change.positions), pieces.unsigned(change.values)

    def part(first: int, last: int) -> int:
        at = positions[first:last]
        return cpu.change_some(storage.array, storage.offsets(at), at, values[first:last], runs, how)

    return pieces.total(part, pieces.cut(len(positions)))


def _apply_dense(lanes: Lanes, change: Dense, runs: cpu.PackedRuns, how: int) -> int:
    values = pieces.unsigned(change.values)

    def part(first: int, last: int) -> int:
        piece = lanes.read(first, last)
        delta = cpu.change_all(piece, values[first:last], first, runs, how)
        lanes.write_back(first, piece)
        return delta

    return pieces.total(part, lanes.cut())
