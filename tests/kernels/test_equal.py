"""The compiled kernels equal plain torch bit for bit, whatever the lanes, strides and boxes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deltavc import kernels
from deltavc.change import Box, Dense, Sparse, same
from deltavc.kernels import host, reference
from tests.kernels import samples

# Longer than a block, so that blocks, their tails and several pieces of a strided tensor take part.
long_lengths = st.sampled_from([(40_000,), (3, 33_000), (700, 3, 50), (70_001,), (8, 8, 32, 33)])
any_boxes = st.one_of(samples.boxes(), samples.boxes(long_lengths))
limits = st.sampled_from([None, "sparse", "dense"])


@given(
    place=any_boxes,
    dtype=samples.dtypes,
    operation=samples.operations,
    density=samples.densities,
    seed=samples.seeds,
    layouts=st.tuples(samples.layouts, samples.layouts),
    prefer=limits,
    advance=st.booleans(),
)
def test_diff(place, dtype, operation, density, seed, layouts, prefer, advance):
    old = samples.random_lanes(place[0].lengths, dtype, seed, layouts[0])
    new = samples.changed(old, density, seed + 1, layouts[1])
    limit = {"sparse": new.numel(), "dense": -1, None: new.numel() // 4}[prefer]
    expected = reference.diff(old.clone(), new, operation, *place, limit, False)
    before = old.clone()
    change, moved = kernels.diff(old, new, operation, *place, prefer=prefer, advance=advance)
    assert same(change, expected[0])
    assert moved == expected[1]
    assert torch.equal(old, new if advance else before)
    if prefer is None:
        assert isinstance(change, Dense) == (4 * int((before != new).sum()) > new.numel())
    if isinstance(change, Sparse):
        assert bool((change.values != 0).all())


@pytest.mark.parametrize("share", [0.1, 0.2, 0.24, 0.26, 0.5])
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
@pytest.mark.parametrize("prefer", [None, "sparse", "dense"])
def test_diff_of_lanes_that_changed_in_one_part_only(share, layout, prefer):
    old = samples.random_lanes((1500, 1000), torch.int16, 1, layout)
    place = samples.whole(old)
    rows = int(1500 * share)
    new = old.clone()
    new[900 : 900 + rows] = samples.changed(old[900 : 900 + rows], 0.99, 2)
    limit = {"sparse": new.numel(), "dense": -1, None: new.numel() // 4}[prefer]
    expected = reference.diff(old, new, "add", *place, limit, False)
    change, moved = kernels.diff(old, new, "add", *place, prefer=prefer, advance=True)
    assert same(change, expected[0])
    assert moved == expected[1]
    assert torch.equal(old, new)


@given(
    place=any_boxes,
    dtype=samples.dtypes,
    operation=samples.operations,
    density=samples.densities,
    seed=samples.seeds,
    layout=samples.layouts,
    prefer=limits,
)
def test_diff_from_nothing(place, dtype, operation, density, seed, layout, prefer):
    zeros = torch.zeros(place[0].lengths, dtype=dtype)
    new = samples.changed(zeros, density, seed, layout)
    limit = new.numel() if prefer == "sparse" else -1
    expected = reference.diff(None, new, operation, *place, limit, False)
    change, moved = kernels.diff(None, new, operation, *place, prefer=prefer)
    assert same(change, expected[0])
    assert moved == expected[1]
    assert moved == (kernels.fingerprint(new, *place) - kernels.zero_fingerprint(*place)) % 2**64
    if isinstance(change, Dense):
        assert torch.equal(change.values, new.flatten())
        assert change.values.data_ptr() != new.data_ptr() or new.numel() == 0


@given(
    place=any_boxes,
    dtype=samples.dtypes,
    operation=samples.operations,
    density=samples.densities,
    seed=samples.seeds,
    layout=samples.layouts,
    prefer=limits,
    sign=st.sampled_from([1, -1]),
)
def test_apply(place, dtype, operation, density, seed, layout, prefer, sign):
    lanes = samples.random_lanes(place[0].lengths, dtype, seed, layout)
    change, _ = kernels.diff(lanes, samples.changed(lanes, density, seed), operation, *place, prefer=prefer)
    expected = lanes.clone()
    expected_move = reference.apply(expected, change, *place, sign)
    storage = lanes.data_ptr()
    assert kernels.apply(lanes, change, *place, sign) == expected_move
    assert torch.equal(lanes, expected)
    assert lanes.data_ptr() == storage


@given(
    place=any_boxes,
    dtype=samples.dtypes,
    density=samples.densities,
    seed=samples.seeds,
    gaps=st.booleans(),
)
def test_moved(place, dtype, density, seed, gaps):
    lists = [samples.listed(place, dtype, density, seed, gaps), samples.listed(place, dtype, 1.0, seed + 1)]
    found = kernels.moved_all(lists)
    assert found == [reference.moved(one) for one in lists]
    one = lists[0]
    assert kernels.moved(one.positions, one.old, one.new, *place) == found[0]


@pytest.mark.parametrize("dtype", samples.DTYPES)
@pytest.mark.parametrize("lengths", [(900_000,), (1000, 900)])
def test_moved_of_lists_long_enough_for_the_pool(lengths, dtype):
    place = Box((3,) * len(lengths), lengths), tuple(length + 7 for length in lengths)
    one = samples.listed(place, dtype, 0.9, 1)
    assert kernels.moved(one.positions, one.old, one.new, *place) == reference.moved(one)


@given(
    num_lanes=st.sampled_from([0, 1, 100, 70_000]),
    dtype=samples.dtypes,
    operation=samples.operations,
    densities=st.tuples(samples.densities, samples.densities),
    seed=samples.seeds,
)
def test_merge_densify_and_ascend(num_lanes, dtype, operation, densities, seed):
    box = Box.whole((num_lanes,))
    a = samples.random_lanes((num_lanes,), dtype, seed)
    b = samples.changed(a, densities[0], seed + 1)
    # Half of it goes back to what it was, so that lanes cancel.
    c = torch.where(torch.arange(num_lanes) % 2 == 0, a, samples.changed(b, densities[1], seed + 2))
    first, _ = kernels.diff(a, b, operation, box, box.lengths, prefer="sparse")
    second, _ = kernels.diff(b, c, operation, box, box.lengths, prefer="sparse")
    merged = host.merge(first, second)
    assert same(merged, reference.merge(first, second))
    assert same(merged, kernels.diff(a, c, operation, box, box.lengths, prefer="sparse")[0])
    assert same(host.densify(first, num_lanes), reference.densify(first, num_lanes))
    for positions in (first.positions, first.positions.flip(0), first.positions - 1, first.positions + 1):
        assert host.ascend(positions, num_lanes) == reference.ascend(positions, num_lanes)


@given(lengths=samples.lengths, dtype=samples.dtypes, seed=samples.seeds)
def test_expanded_lanes_are_read_as_what_they_show(lengths, dtype, seed):
    row = samples.random_lanes(lengths, dtype, seed)
    lanes = row.expand(3, *lengths)
    place = samples.whole(lanes)
    plain = lanes.contiguous()
    assert kernels.fingerprint(lanes, *place) == kernels.fingerprint(plain, *place)
    old = samples.changed(plain, 0.5, seed)
    change, moved = kernels.diff(old, lanes, "add", *place)
    expected, expected_move = kernels.diff(old, plain, "add", *place)
    assert same(change, expected)
    assert moved == expected_move
