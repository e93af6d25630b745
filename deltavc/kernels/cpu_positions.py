"""Loops over positions of sparse changes: whether they are sound, where they lie, and two changes merged."""

from __future__ import annotations

import numpy as np

from deltavc.kernels.cpu import Array, u64
from deltavc.kernels.cpu_compile import kernel


@kernel
def merge(
    positions_a: Array, values_a: Array, positions_b: Array, values_b: Array, positions: Array, values: Array, xor: bool
) -> int:
    """Merge two sparse changes in a row; lanes that end where they began are left out. Returns the count."""
    i, j, k = 0, 0, 0
    while i < len(positions_a) or j < len(positions_b):
        take_a = j == len(positions_b) or (i < len(positions_a) and positions_a[i] <= positions_b[j])
        take_b = i == len(positions_a) or (j < len(positions_b) and positions_b[j] <= positions_a[i])
        x = u64(values_a[i]) if take_a else u64(0)
        y = u64(values_b[j]) if take_b else u64(0)
        positions[k] = positions_a[i] if take_a else positions_b[j]
        values[k] = x ^ y if xor else x + y
        i += take_a
        j += take_b
        k += values[k] != 0
    return k


@kernel
def ascend(positions: Array, num_lanes: int) -> bool:
    """Whether positions lie in a box of so many lanes and rise strictly."""
    falls = 0
    for q in range(len(positions) - 1):
        falls += positions[q] >= positions[q + 1]
    return falls == 0 and (len(positions) == 0 or (positions[0] >= 0 and positions[-1] < num_lanes))


@kernel
def storage_offsets(positions: Array, lengths: Array, strides: Array) -> Array:
    """Where the lanes at these row-major positions lie in the storage of a strided tensor."""
    offsets = np.empty(len(positions), np.int64)
    for q in range(len(positions)):
        rest, offset = positions[q], 0
        for dim in range(len(lengths) - 1, -1, -1):
            up = rest // lengths[dim]
            offset += (rest - up * lengths[dim]) * strides[dim]
            rest = up
        offsets[q] = offset
    return offsets
