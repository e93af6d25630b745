"""Samples on the device under test, and what plain torch makes of them on the CPU."""

import os

import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st

from deltavc.change import Dense, Sparse
from deltavc.kernels import Part
from tests.kernels import samples

DEVICE = torch.device("cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda")

few = settings(max_examples=25, phases=(Phase.explicit, Phase.reuse, Phase.generate))
"""The interpreter takes a tenth of a millisecond for every operation of every program: to shrink what failed would
take minutes."""

# Some longer than a block, some than a program's chunk.
long_lengths = st.sampled_from([(17_000,), (3, 33_000), (300, 3, 50), (70_001,), (32_768,)])
places = st.one_of(samples.boxes(), samples.boxes(long_lengths))


@st.composite
def tables(draw):
    """Boxes, shapes, dtypes, strides and seeds of a few tensors."""
    row = st.tuples(places, samples.dtypes, samples.layouts, samples.layouts, samples.seeds)
    return draw(st.lists(row, min_size=1, max_size=4))


def put(lanes, layout="contiguous"):
    """A copy on the device under test, with those strides there."""
    return samples.laid_out(lanes.to(DEVICE, copy=True), layout)


def part(lanes, place):
    return Part(lanes, *place)


def put_change(change):
    if isinstance(change, Dense):
        return Dense(change.operation, change.values.to(DEVICE))
    return Sparse(change.operation, change.positions.to(DEVICE), change.values.to(DEVICE))


def back(change):
    """A change on the CPU."""
    if isinstance(change, Dense):
        return Dense(change.operation, change.values.cpu())
    return Sparse(change.operation, change.positions.cpu(), change.values.cpu())
