"""Lanes for the kernel tests: every width, all kinds of strides, boxes near and far."""

import torch
from hypothesis import strategies as st

from deltavc.change import Box
from deltavc.kernels import Listed
from deltavc.lanes import LANE_DTYPES

DTYPES = list(LANE_DTYPES.values())
dtypes = st.sampled_from(DTYPES)
operations = st.sampled_from(["add", "xor"])
densities = st.sampled_from([0.0, 0.001, 0.02, 0.2, 0.3, 1.0])
seeds = st.integers(0, 2**32 - 1)
layouts = st.sampled_from(["contiguous", "transposed", "stepped", "offset"])
lengths = st.lists(st.integers(0, 9), max_size=4).map(tuple)


@st.composite
def boxes(draw, lengths=lengths):
    """A box and the shape it lies in, now and then so far out that its indices need 31, 40 or 60 bits."""
    size = draw(lengths)
    room = st.sampled_from([0, 0, 1, 5, 2**16, 2**31, 2**40, 2**58])
    offsets, shape, budget = [], [], 60
    for length in reversed(size):
        before, after = draw(room), draw(room)
        bits = (before + length + after).bit_length()
        if bits > budget:
            before = after = 0
            bits = length.bit_length()
        budget -= bits
        offsets.insert(0, before)
        shape.insert(0, before + length + after)
    return Box(tuple(offsets), size), tuple(shape)


def random_lanes(shape, dtype, seed, layout="contiguous"):
    """Lanes of any bits in memory of any strides."""
    bits = torch.randint(-(2**63), 2**63 - 1, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return laid_out(bits, layout)


def laid_out(lanes, layout):
    """The same lanes with other strides."""
    if lanes.dim() == 0 or layout == "contiguous":
        return lanes.clone()
    if layout == "transposed":
        return lanes.permute(*range(lanes.dim())[::-1]).contiguous().permute(*range(lanes.dim())[::-1])
    room = torch.full([2 * n + 1 for n in lanes.shape], 77, dtype=lanes.dtype, device=lanes.device)
    steps = slice(1, None, 2) if layout == "stepped" else slice(1, None)
    view = room[tuple(steps for _ in lanes.shape)][tuple(slice(n) for n in lanes.shape)]
    view.copy_(lanes)
    return view


def changed(lanes, density, seed, layout="contiguous"):
    """A copy in which about that share of the lanes has other values."""
    generator = torch.Generator().manual_seed(seed)
    hit = torch.rand(lanes.shape, generator=generator) < density
    noise = torch.randint(1, 128, lanes.shape, generator=generator).to(lanes.dtype)
    return laid_out(lanes + noise * hit, layout)


def listed(place, dtype, density, seed, gaps=False):
    """About that share of a box's lanes, before and after; with gaps, in memory that is not contiguous."""
    old = random_lanes(place[0].lengths, dtype, seed).flatten()
    new = changed(old, 0.5, seed + 1)
    positions = torch.nonzero(changed(torch.zeros_like(old), density, seed + 2)).view(-1)
    lists = positions, old[positions], new[positions]
    return Listed(*(laid_out(one, "stepped" if gaps else "contiguous") for one in lists), *place)


def whole(lanes):
    """The box and shape of a whole tensor."""
    shape = tuple(lanes.shape)
    return Box.whole(shape), shape


def mix64(index, value):
    """The definition, on Python integers."""
    mask = 2**64 - 1
    z = (index * 0x9E3779B97F4A7C15 & mask) ^ value
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
    return z ^ (z >> 31)


def global_index(position, box, shape):
    """The definition of a lane's index, on Python integers."""
    index, stride = 0, 1
    for offset, length, bound in zip(reversed(box.offsets), reversed(box.lengths), reversed(shape), strict=True):
        position, coordinate = divmod(position, length)
        index += (offset + coordinate) * stride
        stride *= bound
    return index


def fingerprint(lanes, box, shape):
    """The definition, lane by lane, on Python integers."""
    values = (value % 2 ** (8 * lanes.element_size()) for value in lanes.flatten().tolist())
    return sum(mix64(global_index(at, box, shape), value) for at, value in enumerate(values)) % 2**64
