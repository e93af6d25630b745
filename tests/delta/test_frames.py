"""Boxes of frames cover a tensor once, in order, and none is larger than it may be."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltavc.change import Box
from deltavc.delta.codecs.base import MAX_FRAME_BYTES
from deltavc.delta.frames import frame_boxes


@given(
    st.lists(st.integers(0, 9), max_size=5).map(tuple),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(8, 400),
)
def test_boxes_cut_a_tensor_into_consecutive_parts(shape, lane_bytes, limit):
    index = np.arange(math.prod(shape)).reshape(shape)
    boxes = frame_boxes(shape, lane_bytes, limit)
    assert all(box.fits(shape) and 0 < box.num_lanes * lane_bytes <= limit for box in boxes)
    parts = [index[box.index].ravel() for box in boxes]
    assert np.array_equal(np.concatenate([np.empty(0), *parts]), index.ravel())


@pytest.mark.parametrize(
    ("shape", "lane_bytes", "count"),
    [
        ((), 8, 1),
        ((0,), 2, 0),
        ((5, 0), 2, 0),
        ((4096, 8192), 2, 1),
        ((4096, 8193), 2, 2),
        ((MAX_FRAME_BYTES // 8,), 8, 1),
        ((MAX_FRAME_BYTES // 8 + 1,), 8, 2),
        ((3, MAX_FRAME_BYTES + 1), 1, 6),
        ((3_000_000_000, 2), 2, 179),
    ],
)
def test_frames_are_as_large_as_they_may_be(shape, lane_bytes, count):
    assert len(frame_boxes(shape, lane_bytes)) == count


def test_a_tensor_that_fits_is_one_box():
    assert frame_boxes((3, 4), 2) == [Box.whole((3, 4))]
    assert frame_boxes((), 2) == [Box.whole(())]
