"""Tensors with more lanes than 32 bits can count."""

import pytest
import torch

from deltavc import kernels
from deltavc.change import Box


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

    # The same in memory that is not contiguous.
    square = old[: 2**31 + 2**16].view(2**15 + 1, 2**16).t()
    part = Box.whole(tuple(square.shape))
    one = Box((2**16 - 1, 2**15), (1, 1))
    strided, _ = kernels.diff(None, square[one.index] + 1, "add", one, part.lengths)
    held = kernels.fingerprint(square, part, part.lengths)
    step = kernels.apply(square[one.index], strided, one, part.lengths)
    assert kernels.fingerprint(square, part, part.lengths) == (held + step) % 2**64
    assert old[2**31 + 2**16 - 1] == 1
