"""The Triton kernels equal plain torch bit for bit: tables of lanes of every width, with any strides and boxes."""

import contextlib
import itertools
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deltavc.change import Box, Dense, Sparse, same
from deltavc.kernels import Listed, devices, gpu, reference
from deltavc.kernels.gpu import lanes, scan
from tests.kernels import samples
from tests.kernels.gpu.placed import DEVICE, back, few, part, put, put_change, tables


def test_the_kernels_may_be_used_on_this_device():
    assert devices.fault(gpu, DEVICE) is None
    if DEVICE.type == "cuda":
        assert devices.gpu(DEVICE) is gpu


@few
@given(table=tables())
def test_fingerprints(table):
    lanes = [samples.random_lanes(place[0].lengths, dtype, seed) for place, dtype, _, _, seed in table]
    parts = [part(put(one, row[2]), row[0]) for one, row in zip(lanes, table, strict=True)]
    assert gpu.fingerprint_all(parts) == [
        reference.fingerprint(one, *row[0]) for one, row in zip(lanes, table, strict=True)
    ]


@few
@given(
    table=tables(),
    operation=samples.operations,
    density=samples.densities,
    prefer=st.sampled_from(["some", "sparse", "dense"]),
    advance=st.booleans(),
    from_nothing=st.booleans(),
)
def test_diffs(table, operation, density, prefer, advance, from_nothing):
    olds, news, placed_olds, parts, limits = [], [], [], [], []
    for place, dtype, layout, other, seed in table:
        fresh = from_nothing and not advance and seed % 2 == 0
        old = None if fresh else samples.random_lanes(place[0].lengths, dtype, seed)
        base = torch.zeros(place[0].lengths, dtype=dtype) if fresh else old
        new = samples.changed(base, density, seed + 1)
        olds.append(old)
        news.append(new)
        placed_olds.append(None if fresh else put(old, layout))
        parts.append(part(put(new, other), place))
        limits.append({"some": new.numel() // 4, "sparse": new.numel(), "dense": -1}[prefer])
    found = gpu.diff_all(placed_olds, parts, limits, operation, advance)
    for n, (change, moved) in enumerate(found):
        expected = reference.diff(olds[n], news[n], operation, *table[n][0], limits[n], False)
        assert same(back(change), expected[0])
        assert moved == expected[1]
        assert torch.equal(parts[n].lanes.cpu(), news[n])
        if placed_olds[n] is not None:
            assert torch.equal(placed_olds[n].cpu(), news[n] if advance else olds[n])


@few
@given(
    table=tables(),
    operation=samples.operations,
    density=samples.densities,
    sign=st.sampled_from([1, -1]),
    dense=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_applies(table, operation, density, sign, dense):
    parts, changes, expected = [], [], []
    for n, (place, dtype, layout, _, seed) in enumerate(table):
        lanes = samples.random_lanes(place[0].lengths, dtype, seed)
        limit = -1 if dense[n] else lanes.numel()
        change, _ = reference.diff(lanes, samples.changed(lanes, density, seed), operation, *place, limit, False)
        parts.append(part(put(lanes, layout), place))
        changes.append(put_change(change))
        expected.append((reference.apply(lanes, change, *place, sign), lanes))
    addresses = [one.lanes.data_ptr() for one in parts]
    around = [gaps(one.lanes) for one in parts]
    assert gpu.apply_all(parts, changes, sign) == [moved for moved, _ in expected]
    for one, (_, lanes), address, before in zip(parts, expected, addresses, around, strict=True):
        assert torch.equal(one.lanes.cpu(), lanes)
        assert one.lanes.data_ptr() == address
        assert torch.equal(gaps(one.lanes), before)


def gaps(lanes):
    """What lies around and between the lanes of a tensor, in its storage."""
    storage = lanes.new_empty(0).set_(lanes.untyped_storage()).clone()
    torch.as_strided(storage, lanes.shape, lanes.stride(), lanes.storage_offset()).zero_()
    return storage.cpu()


@few
@given(table=tables(), density=samples.densities, gaps=st.booleans())
def test_moves_of_listed_lanes(table, density, gaps):
    lists = [samples.listed(place, dtype, density, seed) for place, dtype, _, _, seed in table]
    layout = "stepped" if gaps else "contiguous"
    placed = [
        Listed(*(put(tensor, layout) for tensor in (one.positions, one.old, one.new)), one.box, one.shape)
        for one in lists
    ]
    assert gpu.moved_all(placed) == [reference.moved(one) for one in lists]


@few
@given(
    sizes=st.lists(st.sampled_from([0, 1, 100, 20_000, 70_000]), min_size=1, max_size=3),
    dtype=samples.dtypes,
    operation=samples.operations,
    densities=st.tuples(samples.densities, samples.densities),
    seed=samples.seeds,
)
def test_merges(sizes, dtype, operation, densities, seed):
    firsts, seconds = [], []
    for num_lanes in sizes:
        place = Box.whole((num_lanes,)), (num_lanes,)
        a = samples.random_lanes((num_lanes,), dtype, seed)
        b = samples.changed(a, densities[0], seed + 1)
        # Half of it goes back to what it was, so that lanes cancel.
        c = torch.where(torch.arange(num_lanes) % 2 == 0, a, samples.changed(b, densities[1], seed + 2))
        firsts.append(reference.diff(a, b, operation, *place, num_lanes, False)[0])
        seconds.append(reference.diff(b, c, operation, *place, num_lanes, False)[0])
    merged = gpu.merge_all([put_change(one) for one in firsts], [put_change(one) for one in seconds])
    for one, first, second in zip(merged, firsts, seconds, strict=True):
        assert same(back(one), reference.merge(first, second))


@few
@given(
    lists=st.lists(st.tuples(st.lists(st.integers(-2, 40), max_size=6), st.integers(0, 30)), min_size=1, max_size=5),
    long=st.integers(0, 40_000),
)
def test_positions_are_checked(lists, long):
    positions = [torch.tensor(sorted(one) if len(one) % 2 else one, dtype=torch.int64) for one, _ in lists]
    positions.append(torch.arange(40_000).index_fill_(0, torch.tensor([min(long, 39_999)]), 20_000))
    bounds = [*(bound for _, bound in lists), 40_000]
    expected = [reference.ascend(one, bound) for one, bound in zip(positions, bounds, strict=True)]
    assert gpu.ascend_all([one.to(DEVICE) for one in positions], bounds) == expected


@pytest.mark.parametrize("dtype", samples.DTYPES)
def test_global_indices_beyond_32_bits(dtype):
    place = Box((2**33, 2**20 + 5), (2, 3)), (2**34, 2**21)
    lanes = samples.random_lanes((2, 3), dtype, 5)
    new = samples.changed(lanes, 1.0, 6)
    here = part(put(lanes, "stepped"), place)
    assert gpu.fingerprint_all([here]) == [samples.fingerprint(lanes, *place)]
    ((change, moved),) = gpu.diff_all([here.lanes], [part(put(new), place)], [6], "add", True)
    assert (moved + samples.fingerprint(lanes, *place)) % 2**64 == samples.fingerprint(new, *place)
    assert isinstance(change, Sparse)
    assert torch.equal(here.lanes.cpu(), new)


def test_lanes_more_than_32_bits_apart():
    # Memory that is asked for, and hardly ever touched.
    memory = torch.empty(2**31 + 2**10, dtype=torch.int8, device=DEVICE)
    lanes = memory.as_strided((2, 3), (2**31 + 100, 5))
    old = samples.random_lanes((2, 3), torch.int8, 1)
    lanes.copy_(old)
    place = samples.whole(old)
    assert gpu.fingerprint_all([part(lanes, place)]) == [samples.fingerprint(old, *place)]
    change = Sparse("add", torch.tensor([0, 5]), torch.tensor([7, 9], dtype=torch.int8))
    gpu.apply_all([part(lanes, place)], [put_change(change)], 1)
    assert (lanes.cpu() - old).flatten().tolist() == [7, 0, 0, 0, 0, 9]


@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_an_advance_interrupted_at_any_line_has_advanced_wholly_or_not_at_all(kind):
    old = samples.random_lanes((20_000,), torch.int16, 1)
    new = samples.changed(old, 0.1, 2)
    target = part(put(new), samples.whole(new))
    ((change, _),) = gpu.diff_all([put(old)], [target], [20_000 if kind == "sparse" else -1], "add", False)
    outcomes = []
    for nth in itertools.count(1):
        held = put(old)
        with interrupted_at(nth, scan, lanes) as fired:
            scan.advance([held], [target], [change])
        if not fired:
            break
        outcomes.append(torch.equal(held.cpu(), new))
        assert outcomes[-1] or torch.equal(held.cpu(), old)
    assert len(outcomes) > 20
    assert not any(outcomes)


@contextlib.contextmanager
def interrupted_at(nth, *modules):
    """Raise KeyboardInterrupt at the nth line that is run in these modules."""
    files = {module.__file__ for module in modules}
    lines, fired = itertools.count(1), []

    def on_line(frame, event, argument):
        if event == "line" and next(lines) == nth:
            fired.append(frame.f_lineno)
            sys.settrace(None)
            raise KeyboardInterrupt
        return on_line

    sys.settrace(lambda frame, event, argument: on_line if frame.f_code.co_filename in files else None)
    try:
        yield fired
    except KeyboardInterrupt:
        assert fired
    finally:
        sys.settrace(None)


def test_no_lanes_and_no_dimensions():
    for shape in ((), (0,), (3, 0, 2)):
        old = torch.zeros(shape, dtype=torch.int32)
        place = samples.whole(old)
        for limit in (-1, old.numel()):
            held = put(old)
            ((change, moved),) = gpu.diff_all([held], [part(put(old + 5), place)], [limit], "add", True)
            assert isinstance(change, Dense) == (limit == -1)
            assert held.cpu().tolist() == torch.full(shape, 5).tolist()
            assert gpu.apply_all([part(held, place)], [change], -1) == [-moved % 2**64]
