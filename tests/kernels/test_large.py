"""Tensors with more lanes than 32 bits can count."""

import pytest
import torch

from deltavc import kernels
from deltavc.change import Box, Sparse


@pytest.mark.long
def test_positions_beyond_two_to_the_31():
    num_lanes = 2**31 + 100_003
    box = Box.whole((num_lanes,))
    places = torch.tensor([0, 7, 2**31 - 1, 2**31, 2**31 + 5, num_lanes - 1])
    old = torch.zeros(num_lanes, dtype=torch.int8)
    new = torch.zeros(num_lanes, dtype=torch.int8)
    new[places] = torch.tensor([1, -1, 2, -2, 3, -3], dtype=torch.int8)

    change, moved = kernels.diff(old, new, "add", box, box.lengths)
    assert change.positions.tolist() == places.tolist()
    assert change.values.tolist() == [1, -1, 2, -2, 3, -3]
    zero = kernels.zero_fingerprint(box, box.lengths)
    assert kernels.fingerprint(old, box, box.lengths) == zero
    assert kernels.fingerprint(new, box, box.lengths) == (zero + moved) % 2**64
    assert kernels.apply(old, change, box, box.lengths) == moved
    assert torch.equal(old, new)

    # The same in memory that is not contiguous: positions and storage offsets are both large, and differ.
    old.zero_()
    square = old[: 2**31 + 2**16].view(2**15 + 1, 2**16).t()
    part = Box.whole(tuple(square.shape))
    last = square.numel() - 1
    far = Sparse("add", torch.tensor([last - 2, last - 1, last]), torch.tensor([5, 6, 7], dtype=torch.int8))
    corner = Box((2**16 - 64, 2**15 - 63), (64, 64))
    held = kernels.fingerprint(square[corner.index], corner, part.lengths)
    moved = kernels.apply(square, far, part, part.lengths)
    assert square[-1, -3:].tolist() == [5, 6, 7]
    assert kernels.fingerprint(square[corner.index], corner, part.lengths) == (held + moved) % 2**64
