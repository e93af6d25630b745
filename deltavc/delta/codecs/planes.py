"""Dense changes: lanes as they are (`raw`), and lanes split into byte planes (`planes`).

Weights are noise in their mantissas and highly regular in their exponents, so bytes of equal significance
compress better side by side than lane by lane. How a lane is split first:

    0 plain      the lane itself: integers, bytes
    1 zigzag     the signed lane with 0, -1, 1, -2 written as 0, 1, 2, 3: small differences of either sign
    2 rotated    rotated left by one bit, which moves the sign below the mantissa, so that the top byte of a
                 bfloat16 or float32 is exactly its exponent

Payload of `planes`: the split, one byte; then a table with an entry for each plane, least significant first: coding
(0 stored, 1 zstd), one byte, and stored length, u32 little-endian; then the planes' bytes in the same order.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deltavc.change import Change, Dense, Operation
from deltavc.delta.codecs import zstd
from deltavc.delta.codecs.base import Buffer, FrameHeader, Kind
from deltavc.errors import BadPayload
from deltavc.kernels import cpu_planes

Bytes = npt.NDArray[np.uint8]
Lanes = npt.NDArray[Any]

PLAIN, ZIGZAG, ROTATED = 0, 1, 2
_STORED, _ZSTD = 0, 1
_ENTRY = struct.Struct("<BI")

_SPLIT_LANES = 8192

_SAMPLE_BYTES = 32768
"""Rows that repeat are seen up to this length: then two of the sample's pieces show the same part of one."""

_PIECES = 4

_FEW = 64
"""Bytes of a plane below which a zstd frame's own size eats what it saves."""

_WORTH = 0.98
"""A plane is compressed when its sample shrinks at least to this; less does not pay for decoding it."""


class Raw:
    """Dense lanes, little-endian."""

    name = "raw"
    kind: Kind = "dense"
    operation: Operation = "add"

    def encode(self, change: Change, num_lanes: int) -> bytes:
        """Write a dense change."""
        return dense_lanes(change).tobytes()

    def decode(self, payload: Buffer, header: FrameHeader) -> Change:
        """Read a dense change. Raises BadPayload."""
        header.check(self.kind)
        if len(payload) != header.num_lanes * header.lane_bytes:
            raise BadPayload(f"{len(payload)} bytes for {header.num_lanes} lanes of {header.lane_bytes} bytes")
        return dense(np.frombuffer(payload, f"<i{header.lane_bytes}").copy(), header)


class Planes:
    """Dense lanes in byte planes."""

    name = "planes"
    kind: Kind = "dense"
    operation: Operation = "add"

    def encode(self, change: Change, num_lanes: int) -> bytes:
        """Write a dense change; a sample of it decides how it is split and how each plane is coded."""
        lanes = dense_lanes(change)
        return pack_lanes(lanes, best_split(sample(lanes, _SPLIT_LANES))[0])

    def decode(self, payload: Buffer, header: FrameHeader) -> Change:
        """Read a dense change. Raises BadPayload."""
        header.check(self.kind)
        return dense(unpack_lanes(memoryview(payload), header.num_lanes, header.lane_bytes), header)


def dense_lanes(change: Change) -> Lanes:
    """The values of a dense change as a numpy array that shares their memory."""
    assert isinstance(change, Dense)
    return change.values.numpy()


def dense(lanes: Lanes, header: FrameHeader) -> Dense:
    """The dense change with these values, sharing their memory."""
    return Dense(header.operation, torch.from_numpy(lanes))


def pack_lanes(lanes: Lanes, split: int) -> bytes:
    """Write lanes (signed, shape (n,), n >= 1) in planes."""
    coded = [_code(plane) for plane in split_lanes(lanes, split)]
    table = (_ENTRY.pack(coding, len(body)) for coding, body in coded)
    return b"".join((bytes((split,)), *table, *(body for _, body in coded)))


def unpack_lanes(payload: memoryview, num_lanes: int, lane_bytes: int) -> Lanes:
    """Read what `pack_lanes` wrote, and nothing behind it. Raises BadPayload."""
    start = 1 + lane_bytes * _ENTRY.size
    if len(payload) < start:
        raise BadPayload(f"{len(payload)} bytes are too few for a table of {lane_bytes} planes")
    table = list(_ENTRY.iter_unpack(payload[1:start]))
    if sum(length for _, length in table) != len(payload) - start:
        raise BadPayload("the planes' lengths do not add up to the payload's")
    for coding, length in table:
        if coding not in (_STORED, _ZSTD) or length > num_lanes or (coding == _STORED and length != num_lanes):
            raise BadPayload(f"a plane of {num_lanes} bytes with coding {coding} and {length} stored bytes")
    if payload[0] not in (PLAIN, ZIGZAG, ROTATED):
        raise BadPayload(f"unknown split {payload[0]}")
    planes = np.empty((lane_bytes, num_lanes), np.uint8)
    for plane, (coding, length) in zip(planes, table, strict=True):
        body = payload[start : start + length]
        plane[:] = np.frombuffer(body if coding == _STORED else zstd.decompress(body, num_lanes), np.uint8)
        start += length
    return _join_lanes(planes, payload[0])


def split_lanes(lanes: Lanes, split: int) -> Bytes:
    """Split lanes into planes: uint8, shape (bytes of a lane, n), least significant first."""
    if split == PLAIN:
        return np.ascontiguousarray(lanes.astype(f"<i{lanes.itemsize}").view(np.uint8).reshape(-1, lanes.itemsize).T)
    planes = np.empty((lanes.itemsize, lanes.size), np.uint8)
    (cpu_planes.zigzag_planes if split == ZIGZAG else cpu_planes.rotated_planes)(lanes, planes)
    return planes


def _join_lanes(planes: Bytes, split: int) -> Lanes:
    lane_bytes, num_lanes = planes.shape
    if split == PLAIN:
        return np.ascontiguousarray(planes.T).view(f"<i{lane_bytes}").reshape(num_lanes)
    lanes = np.empty(num_lanes, f"i{lane_bytes}")
    (cpu_planes.from_zigzag_planes if split == ZIGZAG else cpu_planes.from_rotated_planes)(planes, lanes)
    return lanes


def best_split(lanes: Lanes) -> tuple[int, float]:
    """The split whose planes have the least entropy on these lanes, and the bits that `pack_lanes` takes for them.

    The bits are an estimate, as if every plane were Huffman-coded or stored.
    """
    # One plane has the same entropy, however its bytes are named; few are stored as they are.
    splits = (PLAIN,) if lanes.itemsize == 1 or lanes.size < _FEW else (PLAIN, ZIGZAG, ROTATED)
    estimates = ((split, sum(map(_plane_nbits, split_lanes(lanes, split)))) for split in splits)
    split, nbits = min(estimates, key=lambda estimate: estimate[1])
    return split, 8 * (1 + lanes.itemsize * _ENTRY.size) + nbits


def _plane_nbits(plane: Bytes) -> float:
    symbols, entropy = cpu_planes.entropy_nbits(plane)
    if symbols == 1:
        return 80.0
    # No byte takes less than a bit; the code itself is described in about 4 bits a symbol.
    return float(min(8 * plane.size, max(entropy, plane.size) + 4 * symbols + 80))


def sample(values: Lanes, size: int) -> Lanes:
    """At most `size` values, from a few places spread over an array; the array itself when it is that small."""
    if values.size <= size:
        return values
    starts, length = sample_starts(values.size, size)
    return np.concatenate([values[start : start + length] for start in starts])


def sample_starts(count: int, size: int) -> tuple[list[int], int]:
    """Where the pieces of a sample of at most `size` out of `count` start, and their length."""
    if count <= size:
        return [0], count
    length = size // _PIECES
    return [(count - length) * piece // (_PIECES - 1) for piece in range(_PIECES)], length


def _code(plane: Bytes) -> tuple[int, Buffer]:
    """Code one plane as its sample says; (coding, bytes)."""
    if plane.size < _FEW:
        return _STORED, plane.data
    piece = sample(plane, _SAMPLE_BYTES)
    by_entropy, by_level_1 = zstd.compress_entropy(piece.data), zstd.compress(piece.data)
    if min(len(by_entropy), len(by_level_1)) > _WORTH * piece.size:
        return _STORED, plane.data
    # Both read back equally, so the sample's own result serves when the sample is the plane.
    if piece is plane:
        return _ZSTD, min(by_entropy, by_level_1, key=len)
    body = (zstd.compress_entropy if len(by_entropy) <= len(by_level_1) else zstd.compress)(plane.data)
    return (_ZSTD, body) if len(body) < plane.size else (_STORED, plane.data)
