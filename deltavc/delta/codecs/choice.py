"""Which codec: the size that each would reach, estimated from a few thousand lanes.

A sparse change is sampled as the dense one it stands for, so that a change gets the same codec in either form.
"""

from __future__ import annotations

import numpy as np

from deltavc.change import Change, Dense, Sparse
from deltavc.delta.codecs.planes import Lanes, best_split, planes_nbits, sample, sample_starts, split_lanes
from deltavc.delta.codecs.sparse import gaps_nbits, values_nbits

_SAMPLE = 16384
_SURELY_SPARSE = 0.05
"""Below this density planes, at a bit a lane or more, never win."""

_SMALL = 64
"""Bytes of lanes up to which a table of planes is not worth its own size."""


def choose(change: Change, num_lanes: int) -> str:
    """Name the codec: see `deltavc.delta.codecs.choose`."""
    if isinstance(change, Sparse) and change.num_changes < _SURELY_SPARSE * num_lanes:
        return "sparse"
    lanes = sample(change.values.numpy(), _SAMPLE) if isinstance(change, Dense) else _dense_sample(change, num_lanes)
    stored = 8.0 * lanes.nbytes
    planes = planes_nbits(split_lanes(lanes, best_split(lanes)))
    positions = np.flatnonzero(lanes)
    sparse = gaps_nbits(positions) + values_nbits(lanes[positions]) if positions.size else 0.0
    if sparse < min(planes, stored):
        return "sparse"
    return "raw" if num_lanes * lanes.itemsize <= _SMALL or planes > 0.98 * stored else "planes"


def _dense_sample(change: Sparse, num_lanes: int) -> Lanes:
    """What `sample` would take of the dense change."""
    positions, values = change.positions.numpy(), change.values.numpy()
    starts, length = sample_starts(num_lanes, _SAMPLE)
    lanes = np.zeros(len(starts) * length, values.dtype)
    for number, start in enumerate(starts):
        first, end = np.searchsorted(positions, (start, start + length))
        lanes[positions[first:end] - start + number * length] = values[first:end]
    return lanes
