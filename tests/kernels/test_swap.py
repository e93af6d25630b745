"""Gather and swap on the CPU: equal to plain torch, all or nothing, undone from anywhere."""

import _thread
import signal
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deltavc import kernels
from deltavc.kernels import Segment, SwapTable, reference
from tests.kernels import samples
from tests.kernels.staged import drawn_segments, moved_to
from tests.kernels.test_threads import in_a_fork


@given(lengths=samples.lengths, dtype=samples.dtypes, layout=samples.layouts, seed=samples.seeds)
def test_offsets_say_where_positions_lie_in_a_tensors_memory(lengths, dtype, layout, seed):
    lanes = samples.random_lanes(lengths, dtype, seed, layout)
    positions = torch.randperm(lanes.numel(), generator=torch.Generator().manual_seed(seed))
    at = kernels.offsets_of(lanes, positions)
    assert torch.equal(at, reference.memory_offsets(lanes, positions))
    memory = kernels.memory_of(lanes)
    assert torch.equal(kernels.gather(memory, at), lanes.flatten()[positions])
    if lanes.numel():
        assert memory.data_ptr() == lanes.data_ptr()
        assert len(memory) == 1 + int(at.max())


@given(size=st.sampled_from([0, 1, 70_000, 600_000]), dtype=samples.dtypes, seed=samples.seeds)
def test_gather(size, dtype, seed):
    memory = samples.random_lanes((70_000,), dtype, seed)
    at = torch.randint(70_000, (size,), generator=torch.Generator().manual_seed(seed))
    assert torch.equal(kernels.gather(memory, at), memory[at])
    values = kernels.gather_all([memory, memory.view(torch.int8)], [at, at])
    assert torch.equal(values[0], memory[at])
    assert torch.equal(values[1], memory.view(torch.int8)[at])


@given(data=st.data())
def test_a_swap_writes_all_or_nothing_and_says_where_it_failed(data):
    segments, damaged = data.draw(drawn_segments())
    placed = [moved_to(segment, "cpu") for segment in segments]
    mismatches = reference.Swap(segments).swap()
    assert SwapTable(placed).compare() == mismatches
    assert SwapTable(placed).swap() == mismatches
    assert any(mismatches) == damaged
    for segment, one in zip(segments, placed, strict=True):
        assert torch.equal(one.memory, segment.memory)


@given(dtype=samples.dtypes, layout=samples.layouts, seed=samples.seeds)
def test_a_staged_change_of_a_tensor_is_the_change(dtype, layout, seed):
    lanes = samples.random_lanes((30, 40), dtype, seed, layout)
    new = samples.changed(lanes, 0.1, seed + 1)
    change, _ = kernels.diff(lanes, new, "add", *samples.whole(lanes), prefer="sparse")
    memory, at = kernels.memory_of(lanes), kernels.offsets_of(lanes, change.positions)
    assert kernels.swap(memory, at, kernels.gather(memory, at), new.flatten()[change.positions]) == 0
    assert torch.equal(lanes, new)
    assert kernels.swap(memory, at, kernels.gather(memory, at) + 1, new.flatten()[change.positions]) == len(at)
    assert torch.equal(lanes, new)


class Interrupted(BaseException):
    pass


def test_a_swap_interrupted_anywhere_is_undone_by_its_old_lanes_and_finished_by_its_new_ones():
    before = samples.random_lanes((4_000_000,), torch.int16, 1)
    memory = before.clone()
    at = torch.arange(0, 4_000_000, 2)
    old = before[at]
    block = memory[:0].clone()
    table = SwapTable([Segment(memory, at, old, old + 1), Segment(memory, 5, block, block)])
    after = before.clone()
    after[at] += 1

    def interrupt(signum, frame):
        raise Interrupted

    handler, interrupted = signal.signal(signal.SIGINT, interrupt), 0
    try:
        for attempt in range(30):
            timer = threading.Timer(attempt * 0.0002, _thread.interrupt_main)
            try:
                timer.start()
                table.swap()
                timer.join()
            except Interrupted:
                interrupted += 1
            (table.write_old if attempt % 2 else table.write_new)()
            assert torch.equal(memory, before if attempt % 2 else after)
            table.write_old()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert interrupted


def test_any_part_of_a_swap_is_undone_and_finished():
    for number in range(20):
        generator = torch.Generator().manual_seed(number)
        memory = samples.random_lanes((1000,), torch.int32, number)
        at = torch.randperm(900, generator=generator)[:300]
        segments = [
            Segment(memory, at, memory[at], memory[at] * 3 + 1),
            Segment(memory, 900, memory[900:].clone(), ~memory[900:]),
        ]
        before, table = memory.clone(), SwapTable(segments)
        assert table.swap() == [0, 0]
        after = memory.clone()
        reached = torch.rand(1000, generator=generator) < 0.5
        for write, whole in ((table.write_old, before), (table.write_new, after)):
            memory.copy_(torch.where(reached, after, before))
            assert any(table.compare()) == bool((memory != before).any())
            write()
            assert torch.equal(memory, whole)


def test_a_forked_child_may_swap():
    memory = torch.zeros(500_000, dtype=torch.int8)
    table = SwapTable([Segment(memory, 0, memory.clone(), memory + 1)])
    assert table.swap() == [0]
    table.write_old()
    assert in_a_fork(lambda: table.swap() == [0] and table.compare() == [500_000])
    assert not memory.any()


LANES = torch.zeros(10, dtype=torch.int16)
AT = torch.tensor([1, 2])
TWO = LANES[:2]


@pytest.mark.parametrize(
    "segment",
    [
        Segment(LANES, torch.tensor([1, 10]), TWO, TWO),
        Segment(LANES, torch.tensor([-1, 1]), TWO, TWO),
        Segment(LANES, torch.tensor([1]), TWO, TWO),
        Segment(LANES, AT.int(), TWO, TWO),
        Segment(LANES, AT, TWO.int(), TWO.int()),
        Segment(LANES, AT, TWO, LANES[:3]),
        Segment(LANES, AT, LANES[:4:2], TWO),
        Segment(LANES, 9, TWO, TWO),
        Segment(LANES, -1, TWO, TWO),
        Segment(LANES[::2], 0, TWO, TWO),
        Segment(LANES.view(2, 5), 0, TWO, TWO),
        Segment(LANES.float(), 0, TWO.float(), TWO.float()),
        Segment(LANES, AT.to("meta"), TWO, TWO),
    ],
)
def test_segments_that_do_not_fit_are_refused(segment):
    with pytest.raises(ValueError, match=r"offsets|lanes|memory|device"):
        SwapTable([segment])


def test_offsets_and_positions_outside_are_refused():
    for at in ([10], [-1], [0, 2**40]):
        with pytest.raises(ValueError, match="outside"):
            kernels.gather(LANES, torch.tensor(at))
        with pytest.raises(ValueError, match="outside"):
            kernels.offsets_of(LANES, torch.tensor(at))


def test_nothing_to_swap():
    assert SwapTable([]).swap() == []
    SwapTable([]).write_old()
    assert kernels.swap(LANES, AT[:0], TWO[:0], TWO[:0]) == 0
