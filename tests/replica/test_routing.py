"""What a frame says of a cell is what applying the frame to the whole tensor does there, whatever the boxes."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from deltavc import kernels
from deltavc.change import Box, Sparse
from deltavc.replica.arena import ALIGNMENT, Arena
from deltavc.routing import backwards, change_in


@st.composite
def boxes_in(draw, shape):
    offsets = [draw(st.integers(0, length - 1)) for length in shape]
    lengths = [draw(st.integers(1, length - offset)) for length, offset in zip(shape, offsets, strict=True)]
    return Box(tuple(offsets), tuple(lengths))


@st.composite
def meetings(draw):
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=0, max_size=4)))
    return shape, draw(boxes_in(shape)), draw(boxes_in(shape))


@given(
    meetings(),
    st.sampled_from([torch.int8, torch.int16, torch.int32, torch.int64]),
    st.sampled_from(["add", "xor"]),
    st.sampled_from(["sparse", "dense"]),
    st.booleans(),
    st.integers(0, 2**16),
)
def test_a_part_of_a_change_does_to_a_cell_what_the_change_does_there(met, dtype, operation, form, back, seed):
    shape, frame, cell = met
    random = torch.Generator().manual_seed(seed)
    whole = torch.randint(-100, 100, shape, generator=random).to(dtype)
    other = whole.clone()
    part = other[frame.index] if shape else other
    part += torch.randint(0, 3, part.shape, generator=random).to(dtype)
    place = frame, shape
    old = (whole[frame.index] if shape else whole).clone()
    change, _ = kernels.diff(old, part.clone(), operation, *place, prefer=form)
    before, after = (other, whole) if back else (whole, other)
    found = change_in(backwards(change) if back else change, frame, cell)
    expected = (after[cell.index] if shape else after).clone()
    lanes = (before[cell.index] if shape else before).clone()
    if found is None:
        assert frame.meet(cell) is None
    else:
        assert not isinstance(found, Sparse) or bool((found.positions.diff() > 0).all())
        kernels.apply(lanes, found, cell, shape)
    assert torch.equal(lanes, expected)


@given(
    st.integers(0, 1500),
    st.lists(
        st.tuples(
            st.integers(0, 5),
            st.lists(
                st.tuples(st.sampled_from([torch.int8, torch.int64, torch.int16]), st.integers(0, 40)), max_size=4
            ),
        ),
        max_size=25,
    ),
)
def test_an_arena_keeps_what_was_placed_until_it_is_full(nbytes, placements):
    arena = Arena(torch.device("cpu"), nbytes)
    held = {}
    for number, (key, rows) in enumerate(placements):
        values = [torch.full((count,), number, dtype=dtype) for dtype, count in rows]
        room = arena.nbytes - sum(extent(rows) for other, rows in held.items() if other != key)
        assert arena.place(key, values) == (extent(values) <= room)
        held.pop(key, None)
        if extent(values) <= room:
            held[key] = values
        assert set(arena) == held.keys()
        assert arena.used == sum(map(extent, held.values()))
        for other, expected in held.items():
            found = arena[other]
            assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(found, expected, strict=True))
            assert all(row.data_ptr() % row.element_size() == 0 for row in found)
        if number % 7 == 6 and held:
            gone = min(held)
            arena.free(gone)
            del held[gone]


def extent(rows):
    return sum(-(-row.nbytes // ALIGNMENT) * ALIGNMENT for row in rows)
