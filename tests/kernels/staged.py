"""Staged changes for the tests of swaps."""

import torch
from hypothesis import strategies as st

from deltavc.kernels import Segment
from tests.kernels import samples


@st.composite
def drawn_segments(draw, damage=True):
    """Segments, listed and blocks, of several widths; and whether a live lane of one is not the old one."""
    segments = []
    for _ in range(draw(st.integers(1, 4))):
        dtype, seed = draw(samples.dtypes), draw(samples.seeds)
        num_lanes = draw(st.sampled_from([0, 1, 7, 300, 20_000, 70_000]))
        room = draw(st.sampled_from([0, 1, 16, 1000]))
        memory = samples.random_lanes((num_lanes + 2 * room,), dtype, seed)
        if draw(st.booleans()):
            at = torch.randperm(len(memory), generator=torch.Generator().manual_seed(seed))[:num_lanes]
            old = memory[at]
        else:
            at = room
            old = memory[room : room + num_lanes].clone()
        segments.append(Segment(memory, at, old, samples.changed(old, 0.7, seed + 1)))
    damaged = False
    hit = draw(st.sampled_from(segments))
    if damage and hit.num_lanes and draw(st.booleans()):
        place = draw(st.integers(0, hit.num_lanes - 1))
        hit.memory[hit.at + place if isinstance(hit.at, int) else hit.at[place]] ^= 1
        damaged = True
    return segments, damaged


def moved_to(segment, device):
    """A copy of a segment and its memory on a device."""
    at = segment.at if isinstance(segment.at, int) else segment.at.to(device)
    return Segment(segment.memory.to(device, copy=True), at, segment.old.to(device), segment.new.to(device))
