"""Regions say of views exactly which bytes they share and which they leave, as looking at every byte does."""

import itertools

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from deltavc.change import Box
from deltavc.regions import Region, meeting, uncovered

MEMORY = torch.zeros(256, dtype=torch.uint8)


@st.composite
def views(draw):
    """Any strided view of one small memory, of any lane width."""
    dtype = draw(st.sampled_from([torch.uint8, torch.int16, torch.int32]))
    memory = MEMORY.view(dtype)
    shape = draw(st.lists(st.integers(1, 4), max_size=3))
    strides = [draw(st.integers(0, 12)) for _ in shape]
    extent = 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    offset = draw(st.integers(0, max(len(memory) - extent, 0)))
    return memory.as_strided(shape, strides, offset) if extent <= len(memory) else memory[:1]


def addresses(view):
    """Every byte of a view, as often as an element has it."""
    width, base = view.element_size(), view.data_ptr()
    places = itertools.product(*map(range, view.shape))
    starts = [sum(i * s for i, s in zip(place, view.stride(), strict=True)) for place in places]
    return [base + start * width + byte for start in starts for byte in range(width)]


def share(one, other):
    return not set(addresses(one)).isdisjoint(addresses(other))


def meets_itself(view):
    return len(set(addresses(view))) < len(addresses(view))


@given(st.lists(views(), min_size=1, max_size=5))
def test_two_regions_meet_where_their_views_share_a_byte(found):
    met = meeting([Region.of(view) for view in found])
    if met is None:
        assert not any(map(meets_itself, found))
        assert not any(share(one, other) for one, other in itertools.combinations(found, 2))
    elif met[0] == met[1]:
        assert meets_itself(found[met[0]])
    else:
        assert share(found[met[0]], found[met[1]])


@given(views().filter(lambda view: not meets_itself(view)), st.lists(views(), max_size=5))
def test_what_is_uncovered_is_the_bytes_that_no_other_view_has(view, others):
    apart = []
    for other in others:
        if not meets_itself(other) and not any(share(other, each) for each in apart):
            apart.append(other)
    left = set(addresses(view)).difference(*map(addresses, apart))
    assert uncovered([Region.of(view)], [Region.of(other) for other in apart]) == [len(left)]


@given(views())
def test_a_region_has_as_many_bytes_as_its_view(view):
    region = Region.of(view)
    assert (region.start, region.nbytes) == (view.data_ptr(), len(addresses(view)))
    assert region.end == max(addresses(view)) + 1


def test_memory_shared_between_storages_is_noticed():
    memory = np.zeros(8, np.int32)
    one, other = torch.from_numpy(memory[:5]), torch.from_numpy(memory[4:])
    assert meeting([Region.of(one), Region.of(other)]) == (0, 1)
    assert meeting([Region.of(one[:4]), Region.of(other)]) is None


def test_the_mask_of_large_interleaving_views_is_small():
    left = Region("cpu", 0, 1 << 20, ((1 << 20, 2 << 20),))  # the left half of the columns of 2 TiB
    right = Region("cpu", 1 << 20, 1 << 20, ((1 << 20, 2 << 20),))
    assert meeting([left, right]) is None
    assert uncovered([Region("cpu", 0, 2 << 40)], [left, right]) == [0]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_boxes_meet_where_an_element_is_in_both(shape, data):
    def box():
        offsets = [data.draw(st.integers(0, length - 1)) for length in shape]
        lengths = (data.draw(st.integers(1, length - start)) for start, length in zip(offsets, shape, strict=True))
        return Box(tuple(offsets), tuple(lengths))

    one, other = box(), box()
    counts = torch.zeros(shape, dtype=torch.int8)
    for each in (one, other):
        counts[each.index] += 1
    met = meeting([Region.of_box(each, tuple(shape)) for each in (one, other)])
    assert (met is not None) == bool((counts == 2).any())
