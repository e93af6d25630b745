"""mix64, global indices and fingerprints against their definitions on Python integers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deltavc import kernels
from deltavc.change import Box
from deltavc.kernels import reference
from deltavc.kernels.runs import Runs
from tests.kernels import samples


@pytest.mark.parametrize(
    ("index", "value", "mixed"),
    [
        (0, 0, 0),
        (1, 0, 0xE220A8397B1DCDAF),  # the first output of splitmix64 seeded with 0
        (2, 0, 0x6E789E6AA1B965F4),  # and its second
        (3, 0, 0x06C45D188009454F),
        (0, 1, 0x5692161D100B05E5),
        (1, 0xFFFF, 0xA0DAB0387542E050),
        (2**31, 0x80, 0x41B505AF0DC83D5E),
        (2**40 + 7, 2**64 - 1, 0x9EE6AA1C22446409),
        (2**63, 1, 0x22CB06B07578BBFE),
    ],
)
def test_mix64_is_the_finaliser_of_splitmix64(index, value, mixed):
    assert samples.mix64(index, value) == mixed
    signed = [torch.tensor([number], dtype=torch.uint64).view(torch.int64) for number in (index, value)]
    assert int(reference.mix64(*signed)) % 2**64 == mixed


@given(index=st.integers(0, 2**64 - 1), value=st.integers(0, 2**64 - 1), dtype=samples.dtypes)
def test_mix64_takes_values_of_any_width_as_unsigned(index, value, dtype):
    value %= 2 ** (8 * dtype.itemsize)
    tensors = [torch.tensor([number], dtype=torch.uint64).view(torch.int64) for number in (index, value)]
    assert int(reference.mix64(tensors[0], tensors[1].to(dtype))) % 2**64 == samples.mix64(index, value)


@given(place=samples.boxes())
def test_runs_list_the_global_indices_of_a_box_in_order(place):
    box, shape = place
    if box.num_lanes == 0:
        return
    runs = Runs.of(box, shape)
    starts = [runs.first]
    for count, stride in runs.outer:
        starts = [start + step * stride for step in range(count) for start in starts]
    indices = [start + step * runs.stride for start in starts for step in range(runs.length)]
    assert indices == [samples.global_index(position, box, shape) for position in range(box.num_lanes)]


def test_a_whole_tensor_or_a_range_of_its_leading_dimension_is_one_run():
    assert Runs.of(Box.whole((5, 6, 7)), (5, 6, 7)) == Runs(0, 210, 1, ())
    assert Runs.of(Box((2, 0, 0), (3, 6, 7)), (5, 6, 7)) == Runs(84, 126, 1, ())
    assert Runs.of(Box((0, 2, 0), (5, 4, 7)), (5, 6, 7)) == Runs(14, 28, 1, ((5, 42),))
    assert Runs.of(Box((), ()), ()) == Runs(0, 1, 1, ())


@given(place=samples.boxes(), dtype=samples.dtypes, seed=samples.seeds)
def test_fingerprint_is_its_definition(place, dtype, seed):
    lanes = samples.random_lanes(place[0].lengths, dtype, seed)
    expected = samples.fingerprint(lanes, *place)
    assert kernels.fingerprint(lanes, *place) == expected
    assert reference.fingerprint(lanes, *place) == expected
    assert kernels.zero_fingerprint(*place) == samples.fingerprint(torch.zeros_like(lanes), *place)


@pytest.mark.parametrize("dtype", samples.DTYPES)
def test_fingerprint_of_known_lanes_never_changes(dtype):
    lanes = torch.arange(-50, 50, dtype=dtype).view(4, 25)
    assert kernels.fingerprint(lanes, Box((7, 2**33), (4, 25)), (2**20, 2**34)) == PINNED[dtype]


PINNED = {
    torch.int8: 0xFA7F0968AB2DD8F9,
    torch.int16: 0xBCAC07DA63ED000F,
    torch.int32: 0x1973FF614952ACC5,
    torch.int64: 0x689C2C3393BEF97B,
}
