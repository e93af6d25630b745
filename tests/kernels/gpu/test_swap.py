"""Gather and swap in Triton equal plain torch: many tensors, widths and kinds of segments in one table."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deltavc.kernels import Segment, gpu, reference
from tests.kernels import samples
from tests.kernels.gpu.placed import DEVICE, few, put
from tests.kernels.staged import drawn_segments, moved_to


@few
@given(sizes=st.lists(st.sampled_from([0, 1, 5, 20_000, 70_000]), min_size=1, max_size=4), seed=samples.seeds)
def test_gather(sizes, seed):
    generator = torch.Generator().manual_seed(seed)
    memories = [samples.random_lanes((200,), samples.DTYPES[n % 4], seed + n) for n in range(len(sizes))]
    offsets = [torch.randint(200, (size,), generator=generator) for size in sizes]
    found = gpu.gather_all([put(memory) for memory in memories], [at.to(DEVICE) for at in offsets])
    for values, memory, at in zip(found, memories, offsets, strict=True):
        assert torch.equal(values.cpu(), reference.gather(memory, at))


@few
@given(data=st.data())
def test_a_swap_writes_all_or_nothing_and_says_where_it_failed(data):
    segments, damaged = data.draw(drawn_segments())
    placed = [moved_to(segment, DEVICE) for segment in segments]
    mismatches = reference.Swap(segments).swap()
    assert gpu.Swap(placed).compare() == mismatches
    assert gpu.Swap(placed).swap() == mismatches
    assert any(mismatches) == damaged
    for segment, one in zip(segments, placed, strict=True):
        assert torch.equal(one.memory.cpu(), segment.memory)


@few
@given(data=st.data())
def test_writing_every_old_lane_undoes_any_part_of_a_swap(data):
    segments, _ = data.draw(drawn_segments(damage=False))
    placed = [moved_to(segment, DEVICE) for segment in segments]
    before = [one.memory.clone() for one in placed]
    table = gpu.Swap(placed)
    assert all(torch.equal(one.memory, held) for one, held in zip(placed, before, strict=True))
    assert not any(table.swap())
    after = [one.memory.clone() for one in placed]
    for done, undone in ((True, after), (False, before)):
        # As if it had been interrupted after any number of lanes.
        for one, old, new in zip(placed, before, after, strict=True):
            reached = torch.arange(len(old), device=DEVICE) < len(old) // 3
            one.memory.copy_(torch.where(reached, new, old))
        table.write(old=not done)
        assert all(torch.equal(one.memory, wanted) for one, wanted in zip(placed, undone, strict=True))


@pytest.mark.parametrize("dtype", samples.DTYPES)
def test_a_swap_twice_changes_nothing_the_second_time(dtype):
    memory = put(torch.arange(100, dtype=dtype))
    at = torch.tensor([3, 50, 7], device=DEVICE)
    old, new = memory[at], memory[at] + 9
    table = gpu.Swap([Segment(memory, at, old, new)])
    assert table.swap() == [0]
    assert memory[at].tolist() == new.tolist()
    assert table.swap() == [3]
    assert memory[at].tolist() == new.tolist()
    assert table.compare() == [3]


def test_offsets_and_blocks_beyond_31_bits():
    memory = torch.empty(2**31 + 100, dtype=torch.int8, device=DEVICE)  # asked for, and hardly touched
    memory[2**31 : 2**31 + 10] = torch.arange(10, dtype=torch.int8, device=DEVICE)
    at = torch.tensor([2**31 + 3, 2**31 + 1], device=DEVICE)
    assert gpu.gather_all([memory], [at])[0].tolist() == [3, 1]
    old, new = memory[at], memory[at] + 50
    block = memory[2**31 + 5 : 2**31 + 9].clone()
    table = gpu.Swap([Segment(memory, at, old, new), Segment(memory, 2**31 + 5, block, block + 70)])
    assert table.swap() == [0, 0]
    assert memory[2**31 : 2**31 + 10].tolist() == [0, 51, 2, 53, 4, 75, 76, 77, 78, 9]
