"""Whatever ranks hold, all of them come to one arrangement, in which every lane is written by one that holds it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deltavc import Shard
from deltavc.errors import BadState
from deltavc.sharded.arrangement import Arrangement
from deltavc.sharded.pieces import Pieces, Told
from tests.sharded import parts

STATE = {
    "rows": torch.zeros(7, 3, dtype=torch.bfloat16),
    "square": torch.zeros(4, 6),
    "vector": torch.zeros(5),
    "number": torch.zeros(()),
    "none": torch.zeros(0, 3),
    "complex": torch.zeros(3, dtype=torch.complex128),
}


def told(states):
    return Told.read([Pieces.of(state).description([f"file.{rank}"]) for rank, state in enumerate(states)])


def arranged(states):
    """What each rank finds out by itself."""
    heard = told(states)
    return [Arrangement.of(heard, rank) for rank in range(len(states))]


def written(arrangements, name):
    """How often each lane of a tensor is written."""
    layout = arrangements[0].layout
    times = torch.zeros(layout.tensors[layout.place[name]].lane_shape, dtype=torch.int64)
    for each in arrangements:
        for box in each.owned.get(name, ()):
            times[box.index] += 1
    return times


@given(st.integers(1, 6), st.lists(st.sampled_from(parts.WAYS), min_size=len(STATE), max_size=len(STATE)))
def test_every_lane_is_written_by_one_rank_and_all_ranks_agree(size, ways):
    states = [{} for _ in range(size)]
    for way, (name, tensor) in zip(ways, STATE.items(), strict=True):
        way = parts.by_rows if way is parts.in_blocks and size % 2 else way  # blocks are for pairs of ranks
        for rank, state in enumerate(states):
            state |= way(rank, size, {name: tensor})
    found = arranged(states)
    first = found[0]
    assert all((each.layout, each.copied, each.files) == (first.layout, first.copied, first.files) for each in found)
    assert first.files == {f"file.{rank}": rank for rank in range(size)}
    for name in first.layout.stored_names:
        assert (written(found, name) == 1).all()
    for rank, each in enumerate(found):
        for name, boxes in each.owned.items():
            held = Pieces.of(states[rank]).pieces[name].box
            assert all(box.meet(held) == box for box in boxes)


@given(st.lists(st.integers(1, 4000), min_size=1, max_size=12), st.integers(2, 5))
def test_what_all_hold_is_shared_out_by_bytes(lengths, size):
    state = {f"{number}": torch.zeros(length) for number, length in enumerate(lengths)}
    loads = [
        sum(4 * box.num_lanes for boxes in each.owned.values() for box in boxes) for each in arranged([state] * size)
    ]
    assert sum(loads) == 4 * sum(lengths)
    assert max(loads) - min(loads) <= 4 * max(lengths)


def test_tensors_are_tied_where_all_that_hold_them_tie_them():
    tensor = torch.zeros(4, 2)
    tied = {"a": tensor, "b": tensor}
    apart = {"a": tensor, "b": tensor.clone()}
    ties = [{spec.name: spec.tie for spec in arranged([tied, other])[0].layout.tensors} for other in (tied, apart)]
    assert ties == [{"a": None, "b": "a"}, {"a": None, "b": None}]


def test_one_rank_that_differs_among_many_is_named():
    states = [{"a": Shard(torch.zeros(1, 3), (8, 3), (rank, 0)), "b": torch.zeros(2)} for rank in range(8)]
    states[5]["b"] = torch.zeros(3)
    with pytest.raises(BadState, match=r"'b' is float32 \[2\] on rank 0, and float32 \[3\] on rank 5"):
        arranged(states)
    states[5] = {"a": Shard(torch.zeros(2, 3), (8, 3), (5, 0)), "b": torch.zeros(2)}
    with pytest.raises(BadState, match=r"'a' is held in parts .*: \[2, 3\] at \[5, 0\] on rank 5, .* on rank 6"):
        arranged(states)
    del states[5]["a"]
    with pytest.raises(BadState, match=r"'a' has 3 of 24 lanes that no rank holds"):
        arranged(states)
