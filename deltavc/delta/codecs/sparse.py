"""Sparse changes: where lanes changed as gaps, by how much as differences.

Two thirds of a training step are positions that nothing predicts, and Rice codes come within 2 % of their
entropy; most differences are one step of the last bit up or down, and then a sign says it all.

    kind        u8: how the values are written
    exceptions  u32 little-endian, for kind 0: how many values are neither 1 nor -1
    bits        a bit string, padded with zero bits to a whole byte:
                    the gaps between positions (kernels.cpu_bits has the code)
                    for kind 0: a sign bit a value (1: negative); the gaps between the exceptions' indices;
                    the exceptions' |value| - 1 in Elias's gamma code
    planes      for kind 1: the values as the `planes` codec writes lanes

No changes at all are no bytes at all. An escaped gap has as many bits as the highest position, or, among exceptions,
as the highest index.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import torch

from deltavc.change import Change, Operation, Sparse
from deltavc.delta.codecs.base import Buffer, FrameHeader, Kind
from deltavc.delta.codecs.planes import Lanes, best_split, pack_lanes, sample, unpack_lanes
from deltavc.errors import BadPayload
from deltavc.kernels import cpu_bits

Positions = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_SIGNS, _PLANES = 0, 1
_HEAD = struct.Struct("<BI")
_SAMPLE = 4096
_FEW = 1 / 8
"""With no larger share of exceptions, signs take about two bits a value, and planes are not tried."""


class SparseGaps:
    """Positions as Rice-coded gaps; values as signs and exceptions, or in planes."""

    name = "sparse"
    kind: Kind = "sparse"
    operation: Operation = "add"

    def encode(self, change: Change, num_lanes: int) -> bytes:
        """Write a sparse change over a box of `num_lanes` lanes."""
        assert isinstance(change, Sparse)
        positions, values = change.positions.numpy(), change.values.numpy()
        if not values.size:
            return b""
        ks = _ks(positions)
        nbits = cpu_bits.plan_gaps(positions, _width(num_lanes), ks)
        exceptions = np.flatnonzero((values != 1) & (values != -1))
        if exceptions.size > _FEW * values.size and (split := _split_if_smaller(sample(values, _SAMPLE))) is not None:
            words = _words(nbits)
            cpu_bits.write_gaps(words, 0, positions, _width(num_lanes), ks)
            return b"".join((bytes((_PLANES,)), _bytes(words, nbits), pack_lanes(values, split)))
        exception_ks, width = _ks(exceptions), _width(values.size)
        nbits += values.size + cpu_bits.plan_gaps(exceptions, width, exception_ks)
        nbits += cpu_bits.plan_magnitudes(values, exceptions)
        words = _words(nbits)
        bit = cpu_bits.write_gaps(words, 0, positions, _width(num_lanes), ks)
        bit = cpu_bits.write_signs(words, bit, values)
        bit = cpu_bits.write_gaps(words, bit, exceptions, width, exception_ks)
        cpu_bits.write_magnitudes(words, bit, values, exceptions)
        return _HEAD.pack(_SIGNS, exceptions.size) + _bytes(words, nbits)

    def decode(self, payload: Buffer, header: FrameHeader) -> Change:
        """Read a sparse change. Raises BadPayload."""
        header.check(self.kind)
        if (header.num_changes == 0) != (len(payload) == 0):
            raise BadPayload(f"{len(payload)} bytes for {header.num_changes} changes")
        view = memoryview(payload)
        if not payload:
            positions, values = np.empty(0, np.int64), np.empty(0, f"i{header.lane_bytes}")
        elif view[0] == _SIGNS:
            positions, values = _decode_signs(view, header)
        elif view[0] == _PLANES:
            positions, values = _decode_planes(view, header)
        else:
            raise BadPayload(f"unknown kind of values {view[0]}")
        return Sparse(header.operation, torch.from_numpy(positions), torch.from_numpy(values))


def _decode_signs(payload: memoryview, header: FrameHeader) -> tuple[Positions, Lanes]:
    if len(payload) < _HEAD.size:
        raise BadPayload("it ends within its head")
    _, num_exceptions = _HEAD.unpack_from(payload)
    bits = payload[_HEAD.size :]
    end = 8 * len(bits)
    if num_exceptions > header.num_changes or header.num_changes + num_exceptions > end:
        raise BadPayload(f"{len(payload)} bytes for {header.num_changes} changes, {num_exceptions} of them exceptions")
    words = _words(end)
    words.view(np.uint8)[: len(bits)] = bits
    positions = np.empty(header.num_changes, np.int64)
    values = np.empty(header.num_changes, f"i{header.lane_bytes}")
    exceptions = np.empty(num_exceptions, np.int64)
    bit = cpu_bits.read_gaps(words, 0, end, _width(header.num_lanes), header.num_lanes, positions)
    if bit >= 0:
        bit = cpu_bits.read_signs(words, bit, end, values)
    if bit >= 0:
        bit = cpu_bits.read_gaps(words, bit, end, _width(values.size), values.size, exceptions)
    if bit >= 0:
        bit = cpu_bits.read_magnitudes(words, bit, end, values, exceptions)
    _check_end(words, bit)
    if (bit + 7) // 8 != len(bits):
        raise BadPayload("there are bytes behind the last change")
    return positions, values


def _decode_planes(payload: memoryview, header: FrameHeader) -> tuple[Positions, Lanes]:
    bits = payload[1:]
    end = 8 * len(bits)
    words = _words(end)
    words.view(np.uint8)[: len(bits)] = bits
    if 5 * (header.num_changes // cpu_bits.GROUP) > end:
        raise BadPayload(f"{len(payload)} bytes for {header.num_changes} changes")
    positions = np.empty(header.num_changes, np.int64)
    bit = cpu_bits.read_gaps(words, 0, end, _width(header.num_lanes), header.num_lanes, positions)
    _check_end(words, bit)
    values = unpack_lanes(bits[(bit + 7) // 8 :], header.num_changes, header.lane_bytes)
    if not values.all():
        raise BadPayload("a change of zero")
    return positions, values


def _check_end(words: Words, bit: int) -> None:
    """Refuse a bit string that a reader refused, or one that is not padded with zeros."""
    if bit < 0:
        raise BadPayload("a bit string that ends too early, or positions outside the box")
    if bit % 8 and (int(words[bit // 64]) >> bit % 64) & ((1 << -bit % 8) - 1):
        raise BadPayload("a bit string that is not padded with zeros")


def _split_if_smaller(values: Lanes) -> int | None:
    """How to split these values, if planes of them take less than signs and exceptions."""
    split, nbits = best_split(values)
    return split if nbits < signs_nbits(values) else None


def signs_nbits(values: Lanes) -> float:
    """An estimate of the bits that values (none of them zero) take as signs and exceptions."""
    exceptions = np.flatnonzero((values != 1) & (values != -1))
    gaps = exceptions.size * (1.5 + np.log2(values.size / max(exceptions.size, 1)))
    return float(values.size + gaps + cpu_bits.plan_magnitudes(values, exceptions))


def _width(count: int) -> int:
    """Bits that hold any index into so many things."""
    return (count - 1).bit_length()


def _ks(positions: Positions) -> npt.NDArray[np.uint8]:
    return np.empty(-(-positions.size // cpu_bits.GROUP), np.uint8)


def _words(nbits: int) -> Words:
    """Zeros for a bit string, and the two words of zeros that its readers want behind it."""
    return np.zeros(nbits // 64 + 3, np.uint64)


def _bytes(words: Words, nbits: int) -> memoryview:
    return words.view(np.uint8)[: (nbits + 7) // 8].data
