"""Which codec: each is tried on a few thousand lanes of the change, unless their entropy settles it.

A sparse change is sampled as the dense one it stands for, so that a change gets the same codec in either form.
"""

from __future__ import annotations

import numpy as np
import torch

from deltavc.change import Change, Dense, Sparse
from deltavc.delta.codecs.planes import Lanes, Planes, best_split, dense_lanes, sample, sample_starts
from deltavc.delta.codecs.sparse import SparseGaps, signs_nbits

_SAMPLE = 16384

_SURELY_SPARSE = 0.05
"""Below this density planes, at a bit a lane or nearly, never win."""

_SURELY_DENSE = 0.97
"""Above this density planes of the lanes that are not zero save less than `_ADVANTAGE` over planes of all."""

_FEW = 1024
"""Lanes that settle it for most snapshots."""

_ADVANTAGE = 0.97
"""What another codec has to save before it is taken: sparse takes more memory than planes, and planes more time
than raw."""


_TINY = 256
"""Bytes of lanes up to which trying would take longer than reading and writing them. Models have many of these."""


def choose(change: Change, num_lanes: int) -> str:
    """Name the codec: see `deltavc.delta.codecs.choose`."""
    lane_bytes = change.values.element_size()
    if num_lanes * lane_bytes <= _TINY:
        changed = change.num_changes if isinstance(change, Sparse) else int(change.values.count_nonzero())
        return "sparse" if changed * (lane_bytes + 1) < num_lanes * lane_bytes else "raw"
    if isinstance(change, Sparse) and change.num_changes < _SURELY_SPARSE * num_lanes:
        return "sparse"
    lanes = _dense_sample(change, num_lanes) if isinstance(change, Sparse) else sample(dense_lanes(change), _SAMPLE)
    few = sample(lanes, _FEW)
    pointless = np.count_nonzero(lanes) > _SURELY_DENSE * lanes.size and _wide(few[few != 0])
    if pointless and best_split(few)[1] < 8 * _ADVANTAGE * few.nbytes:
        return "planes"  # trying would take ten times as long
    name, best = "raw", float(lanes.nbytes)
    tried = len(Planes().encode(Dense("add", torch.from_numpy(lanes)), lanes.size))
    if tried < _ADVANTAGE * best:
        name, best = "planes", tried
    if pointless:
        return name
    positions = np.flatnonzero(lanes)
    changes = Sparse("add", torch.from_numpy(positions), torch.from_numpy(lanes[positions]))
    return "sparse" if len(SparseGaps().encode(changes, lanes.size)) < _ADVANTAGE * best else name


def _wide(values: Lanes) -> bool:
    """Whether values would take more one by one than they do as they are, so that sparse writes them in planes too."""
    return bool(signs_nbits(values) > 8 * values.nbytes)


def _dense_sample(change: Sparse, num_lanes: int) -> Lanes:
    """What `sample` would take of the dense change."""
    positions, values = change.positions.numpy(), change.values.numpy()
    starts, length = sample_starts(num_lanes, _SAMPLE)
    lanes = np.zeros(len(starts) * length, values.dtype)
    for number, start in enumerate(starts):
        first, end = np.searchsorted(positions, (start, start + length))
        lanes[positions[first:end] - start + number * length] = values[first:end]
    return lanes
