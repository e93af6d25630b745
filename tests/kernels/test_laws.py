"""What holds between the kernels, and what they refuse."""

import mmap

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deltavc import kernels
from deltavc.change import Box, Dense, Sparse, same
from deltavc.errors import BadPayload
from tests.kernels import samples

LINE = Box.whole((10,))
SHAPE = (10,)


@given(
    place=samples.boxes(),
    dtype=samples.dtypes,
    operation=samples.operations,
    density=samples.densities,
    seed=samples.seeds,
    prefer=st.sampled_from([None, "sparse", "dense"]),
)
def test_a_change_leads_there_and_back_and_moves_the_fingerprint_so(place, dtype, operation, density, seed, prefer):
    old = samples.random_lanes(place[0].lengths, dtype, seed)
    new = samples.changed(old, density, seed + 1)
    change, moved = kernels.diff(old, new, operation, *place, prefer=prefer)
    ours, theirs = kernels.fingerprint(old, *place), kernels.fingerprint(new, *place)
    assert (ours + moved) % 2**64 == theirs

    live = old.clone()
    assert kernels.apply(live, change, *place) == moved
    assert torch.equal(live, new)
    assert kernels.apply(live, change, *place, sign=-1) == -moved % 2**64
    assert torch.equal(live, old)


@given(place=samples.boxes(), dtype=samples.dtypes, density=samples.densities, seed=samples.seeds)
def test_listed_lanes_move_the_fingerprint_of_the_whole(place, dtype, density, seed):
    old = samples.random_lanes(place[0].lengths, dtype, seed)
    new = samples.changed(old, density, seed + 1)
    positions = torch.nonzero(old.flatten() != new.flatten()).view(-1)
    moved = kernels.moved(positions, old.flatten()[positions], new.flatten()[positions], *place)
    assert (kernels.fingerprint(old, *place) + moved) % 2**64 == kernels.fingerprint(new, *place)
    back = kernels.moved(positions, new.flatten()[positions], old.flatten()[positions], *place)
    assert back == -moved % 2**64


@given(
    num_lanes=st.integers(0, 300),
    dtype=samples.dtypes,
    operation=samples.operations,
    densities=st.tuples(samples.densities, samples.densities),
    kinds=st.tuples(st.sampled_from([None, "sparse", "dense"]), st.sampled_from([None, "sparse", "dense"])),
    seed=samples.seeds,
)
def test_composed_changes_do_what_both_do_in_a_row(num_lanes, dtype, operation, densities, kinds, seed):
    box, shape = Box.whole((num_lanes,)), (num_lanes,)
    a = samples.random_lanes(shape, dtype, seed)
    b = samples.changed(a, densities[0], seed + 1)
    c = samples.changed(b, densities[1], seed + 2)
    first, _ = kernels.diff(a, b, operation, box, shape, prefer=kinds[0])
    second, _ = kernels.diff(b, c, operation, box, shape, prefer=kinds[1])
    both = kernels.compose(first, second, num_lanes)
    assert isinstance(both, Sparse) == (isinstance(first, Sparse) and isinstance(second, Sparse))
    kernels.apply(a, both, box, shape)
    assert torch.equal(a, c)


@pytest.mark.parametrize("lengths", [(2_000_000,), (1000, 2000)])
def test_work_large_enough_for_the_pool_composes_and_applies(lengths):
    place = Box.whole(lengths), lengths
    a = samples.random_lanes(lengths, torch.int16, 0)
    b, c = samples.changed(a, 0.5, 1), samples.changed(a, 0.4, 2)
    first, _ = kernels.diff(a, b, "add", *place, prefer="sparse")
    second, _ = kernels.diff(b, c, "add", *place, prefer="sparse")
    both = kernels.compose(first, second, a.numel())
    assert same(both, kernels.diff(a, c, "add", *place, prefer="sparse")[0])
    kernels.apply(a, both, *place)
    assert torch.equal(a, c)


@given(
    lengths=samples.lengths,
    dtype=samples.dtypes,
    operation=samples.operations,
    density=samples.densities,
    seed=samples.seeds,
)
def test_sparse_and_dense_are_two_forms_of_one_change(lengths, dtype, operation, density, seed):
    old = samples.random_lanes(lengths, dtype, seed)
    place = samples.whole(old)
    new = samples.changed(old, density, seed + 1)
    sparse, _ = kernels.diff(old, new, operation, *place, prefer="sparse")
    dense, _ = kernels.diff(old, new, operation, *place, prefer="dense")
    assert same(kernels.densify(sparse, old.numel(), dtype), dense)
    assert same(kernels.sparsify(dense), sparse)
    assert kernels.sparsify(sparse) is sparse
    assert kernels.densify(dense, old.numel(), dtype) is dense


@given(lengths=samples.lengths.filter(len), dtype=samples.dtypes, seed=samples.seeds, data=st.data())
def test_fingerprints_of_the_boxes_add_up_to_that_of_the_whole(lengths, dtype, seed, data):
    lanes = samples.random_lanes(lengths, dtype, seed)
    dim = data.draw(st.integers(0, len(lengths) - 1))
    cut = data.draw(st.integers(0, lengths[dim]))
    total = 0
    for start, length in ((0, cut), (cut, lengths[dim] - cut)):
        offsets, sizes = [0] * len(lengths), list(lengths)
        offsets[dim], sizes[dim] = start, length
        box = Box(tuple(offsets), tuple(sizes))
        total += kernels.fingerprint(lanes[box.index], box, lengths)
    assert total % 2**64 == kernels.fingerprint(lanes, *samples.whole(lanes))


def test_a_permutation_of_the_lanes_has_another_fingerprint():
    lanes = torch.arange(10, dtype=torch.int16)
    assert kernels.fingerprint(lanes, LINE, SHAPE) != kernels.fingerprint(lanes.flip(0), LINE, SHAPE)


def test_a_change_does_not_depend_on_the_lanes_it_was_taken_from():
    old, new = torch.zeros(10, dtype=torch.int8), torch.arange(10, dtype=torch.int8)
    for start in (old, None):
        dense, _ = kernels.diff(start, new, "add", LINE, SHAPE, prefer="dense")
        kept = dense.values.clone()
        new += 1
        assert torch.equal(dense.values, kept)
        new -= 1


def test_memory_that_cannot_be_written_is_read(tmp_path):
    path = tmp_path / "lanes"
    path.write_bytes(np.arange(10, dtype=np.int16).tobytes())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
        with pytest.warns(UserWarning, match="not writable"):
            lanes = torch.frombuffer(memory, dtype=torch.int16)
        expected = torch.arange(10, dtype=torch.int16)
        assert kernels.fingerprint(lanes, LINE, SHAPE) == kernels.fingerprint(expected, LINE, SHAPE)
        change, _ = kernels.diff(lanes, expected + 1, "add", LINE, SHAPE)
        assert change.num_changes == 10
        assert kernels.diff(expected, lanes, "xor", LINE, SHAPE)[0].num_changes == 0
        del lanes


def test_lanes_at_odd_addresses_are_read_and_changed():
    memory = bytearray(100)
    lanes = torch.frombuffer(memory, dtype=torch.int8)[1:81].numpy().view(np.int64)
    lanes = torch.from_numpy(lanes)
    lanes.copy_(torch.arange(10))
    change, moved = kernels.diff(lanes, torch.arange(10) * 3, "add", LINE, SHAPE)
    assert kernels.apply(lanes, change, LINE, SHAPE) == moved
    assert lanes.tolist() == [3 * n for n in range(10)]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)])
def test_no_lanes_and_no_dimensions(shape):
    old = torch.zeros(shape, dtype=torch.int32)
    place = samples.whole(old)
    change, moved = kernels.diff(old, old + 5, "add", *place, advance=True)
    assert change.num_changes == old.numel()
    assert old.tolist() == torch.full(shape, 5).tolist()
    assert moved == (kernels.fingerprint(old, *place) - kernels.zero_fingerprint(*place)) % 2**64
    assert kernels.apply(old, change, *place, sign=-1) == -moved % 2**64
    assert kernels.compose(change, change, old.numel()).num_changes == old.numel()


def sparse(positions, values=None, dtype=torch.int16):
    values = [1] * len(positions) if values is None else values
    return Sparse("add", torch.tensor(positions, dtype=torch.int64), torch.tensor(values, dtype=dtype))


@pytest.mark.parametrize(
    "change",
    [
        sparse([10]),
        sparse([-1]),
        sparse([2, 2]),
        sparse([3, 2]),
        sparse([0, 2**40, 5]),
        sparse([0, -(2**63), 5]),
        sparse([1, 2], [1]),
        sparse([1], [1, 2]),
        sparse([1], dtype=torch.int32),
        Dense("add", torch.ones(9, dtype=torch.int16)),
        Dense("add", torch.ones(11, dtype=torch.int16)),
        Dense("add", torch.ones(10, dtype=torch.int8)),
        Dense("add", torch.ones(5, 2, dtype=torch.int16)),
    ],
)
def test_a_change_of_other_lanes_is_refused_and_leaves_them_untouched(change):
    lanes = torch.arange(10, dtype=torch.int16)
    with pytest.raises(BadPayload):
        kernels.apply(lanes, change, LINE, SHAPE)
    assert torch.equal(lanes, torch.arange(10, dtype=torch.int16))
    with pytest.raises(BadPayload):
        kernels.compose(change, Dense("add", torch.ones(10, dtype=torch.int16)), 10)
    with pytest.raises(BadPayload):
        kernels.densify(change, 10, torch.int16)
    if isinstance(change, Sparse):
        with pytest.raises(BadPayload):
            kernels.moved(change.positions, change.positions.to(torch.int16), change.values, LINE, SHAPE)


def test_arguments_that_do_not_fit_are_refused():
    lanes = torch.zeros(10, dtype=torch.int16)
    change, _ = kernels.diff(lanes, lanes + 1, "add", LINE, SHAPE)
    other, _ = kernels.diff(lanes, lanes + 1, "xor", LINE, SHAPE)
    with pytest.raises(ValueError, match="fit"):
        kernels.fingerprint(lanes, Box((1,), (10,)), (10,))
    with pytest.raises(ValueError, match="fit"):
        kernels.apply(lanes.view(2, 5), change, LINE, SHAPE)
    with pytest.raises(ValueError, match="lie"):
        kernels.zero_fingerprint(Box((1,), (10,)), (10,))
    with pytest.raises(ValueError, match="type"):
        kernels.fingerprint(lanes.to(torch.float32), LINE, SHAPE)
    with pytest.raises(ValueError, match="differ"):
        kernels.diff(lanes.to(torch.int8), lanes, "add", LINE, SHAPE)
    with pytest.raises(ValueError, match="advance"):
        kernels.diff(None, lanes, "add", LINE, SHAPE, advance=True)
    with pytest.raises(ValueError, match="type"):
        kernels.moved(torch.arange(10), lanes.to(torch.float32), lanes.to(torch.float32), LINE, SHAPE)
    with pytest.raises(ValueError, match="lie"):
        kernels.moved(torch.arange(10), lanes, lanes, Box((1,), (10,)), SHAPE)
    with pytest.raises(ValueError, match="on meta"):
        kernels.moved(torch.arange(10), lanes.to("meta"), lanes, LINE, SHAPE)
    with pytest.raises(ValueError, match="sign"):
        kernels.apply(lanes, change, LINE, SHAPE, sign=2)
    with pytest.raises(ValueError, match="compose"):
        kernels.compose(change, other, 10)
    with pytest.raises(ValueError, match="expanded"):
        kernels.apply(lanes[:1].expand(10), change, LINE, SHAPE)
    with pytest.raises(ValueError, match="expanded"):
        kernels.diff(lanes[:1].expand(10), lanes, "add", LINE, SHAPE, advance=True)
    assert not lanes.any()
