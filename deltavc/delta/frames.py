"""Frames: which box of which tensor one encoded change is of, and how to open it.

    layout, lanes ── frame_boxes ──> boxes ── encode, PackBuilder.add ──> Frame, payload
    payload, Frame, layout ── open_frame ──> change

Neither torch nor numba is imported before a frame is opened.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blake3 import blake3

from deltavc.change import Box, Operation
from deltavc.delta.codecs import codec as codec_named
from deltavc.delta.codecs.base import MAX_FRAME_BYTES, Buffer, FrameHeader
from deltavc.errors import BadPayload

if TYPE_CHECKING:
    from deltavc.change import Change
    from deltavc.layout import Layout


@dataclass(frozen=True, slots=True)
class Frame:
    """One encoded change in a pack.

    place: the tensor's place in the layout. box: None when it is the whole tensor. offset, nbytes: where the
    payload lies in the pack. checksum: its BLAKE3-128, 16 bytes. num_changes: as `FrameHeader` counts.
    """

    place: int
    box: Box | None
    codec: str
    operation: Operation
    offset: int
    nbytes: int
    checksum: bytes
    num_changes: int


def check_payload(payload: Buffer, frame: Frame) -> None:
    """Compare a frame's bytes with its checksum.

    Raises:
        BadPayload: they differ.
    """
    if len(payload) != frame.nbytes or blake3(payload).digest(length=16) != frame.checksum:
        raise BadPayload(f"the frame at {frame.offset} does not have its checksum")


def frame_header(frame: Frame, layout: Layout) -> FrameHeader:
    """What the codec must know of a frame: counts from the layout and the box.

    Raises:
        BadPayload: no such tensor, a tensor without values of its own, a box outside it.
    """
    if frame.place >= len(layout.tensors) or layout.tensors[frame.place].tie is not None:
        raise BadPayload(f"a frame of tensor {frame.place}, which has no values in the layout")
    tensor = layout.tensors[frame.place]
    box = frame.box if frame.box is not None else Box.whole(tensor.lane_shape)
    if not box.fits(tensor.lane_shape):
        raise BadPayload(f"a frame of {box} of a tensor of {tensor.lane_shape} lanes")
    return FrameHeader(box.num_lanes, tensor.lane_bytes, frame.operation, frame.num_changes)


def open_frame(payload: Buffer, frame: Frame, layout: Layout) -> Change:
    """Check a frame's bytes and decode them.

    Raises:
        BadPayload: they are damaged, or say what cannot be.
        UnknownCodec: this release cannot read them.
    """
    check_payload(payload, frame)
    header = frame_header(frame, layout)
    return codec_named(frame.codec).decode(payload, header)


def frame_boxes(lane_shape: tuple[int, ...], lane_bytes: int, limit: int = MAX_FRAME_BYTES) -> list[Box]:
    """Cut a tensor into the boxes of its frames, each contiguous in row-major order and in that order.

    The first dimension whose rows fit into `limit` bytes (8 at least) is cut into as many rows as fit; those before
    it are taken one index at a time. No boxes for a tensor without lanes, one for a tensor of no dimensions.
    """
    whole = Box.whole(lane_shape)
    most = limit // lane_bytes
    if not whole.num_lanes:
        return []
    if whole.num_lanes <= most:
        return [whole]
    dim = next(d for d in range(len(lane_shape)) if math.prod(lane_shape[d + 1 :]) <= most)
    rest = lane_shape[dim + 1 :]
    rows = most // math.prod(rest)
    starts = itertools.product(*map(range, lane_shape[:dim]), range(0, lane_shape[dim], rows))
    return [
        Box(
            (*start, *(0 for _ in rest)),
            (*(1 for _ in range(dim)), min(rows, lane_shape[dim] - start[dim]), *rest),
        )
        for start in starts
    ]
