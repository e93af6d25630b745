"""Dense XOR in blocks that devices decode: what systems do that patch live models on GPUs.

Lanes that did not change are zeros. They are cut into blocks of 64 KiB, each compressed by itself with LZ4 or Snappy,
which GPUs decode in bulk and Blackwell in a unit of its own. Both leave much of the repetition between
blocks, and zstd around them takes it off on the way through the network:

    xor-lz4           blocks of LZ4
    xor-snappy-zstd   one zstd frame around blocks of Snappy: the scheme of the predecessors
    xor-lz4hc-zstd    one zstd frame around blocks of LZ4 that were compressed with more effort: about half the size

    table     a u32 little-endian for each block: how many bytes it has
    blocks    in their order; raw, as nvCOMP calls it: LZ4 blocks without a size in front, Snappy without framing

The table lies within the zstd frame, so that what `peel` leaves has one form, and equal blocks cost next to nothing.
A block of s bytes takes at most 32 + s + s // 6, Snappy's own bound; LZ4's is lower.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from deltavc.change import Change, Operation
from deltavc.delta.codecs import zstd
from deltavc.delta.codecs.base import Algorithm, Buffer, FrameHeader, Kind
from deltavc.delta.codecs.planes import dense, dense_lanes
from deltavc.errors import BadPayload
from deltavc.kernels import cpu_blocks
from deltavc.kernels.cpu_blocks import BLOCK

_LENGTH = np.dtype("<u4")
_HC_LEVEL = 3
"""Of LZ4: levels up to 9 save 1 % at a density of 0.085 % and 8 % at 1 %, and take 2 to 7 times as long."""


@dataclass(frozen=True, slots=True)
class XorBlocks:
    """One of the codecs above.

    compress: makes a block. wrapped: whether there is zstd around blocks.
    """

    name: str
    algorithm: Algorithm
    compress: Callable[[memoryview], bytes]
    wrapped: bool
    kind: ClassVar[Kind] = "dense"
    operation: ClassVar[Operation] = "xor"

    def encode(self, change: Change, num_lanes: int) -> bytes:
        """Write a dense change."""
        data = dense_lanes(change).view(np.uint8).data
        blocks = [self.compress(data[first : first + BLOCK]) for first in range(0, len(data), BLOCK)]
        payload = b"".join((np.array([len(block) for block in blocks], _LENGTH).tobytes(), *blocks))
        return zstd.compress(payload) if self.wrapped else payload

    def decode(self, payload: Buffer, header: FrameHeader) -> Change:
        """Read a dense change. Raises BadPayload."""
        return self.open(self.peel(payload, header), header)

    def peel(self, payload: Buffer, header: FrameHeader) -> Buffer:
        """Take zstd off, where there is any. Raises BadPayload."""
        header.check(self.kind)
        if not self.wrapped:
            return payload
        num_blocks, rest = divmod(_nbytes(header), BLOCK)
        most = num_blocks * _most(BLOCK) + (_most(rest) if rest else 0)
        return zstd.decompress_within(payload, 1, most)

    def block_ends(self, peeled: Buffer, header: FrameHeader) -> npt.NDArray[np.int64]:
        """Check peeled bytes; `shape (blocks + 1,)`, where blocks start and end. Raises BadPayload."""
        header.check(self.kind)
        num_blocks = -(-_nbytes(header) // BLOCK)
        start = num_blocks * _LENGTH.itemsize
        if len(peeled) < start:
            raise BadPayload(f"{len(peeled)} bytes are too few for a table of {num_blocks} blocks")
        ends = np.empty(num_blocks + 1, np.int64)
        ends[0] = 0
        np.cumsum(np.frombuffer(peeled, _LENGTH, num_blocks), dtype=np.int64, out=ends[1:])
        if ends[-1] != len(peeled) - start:
            raise BadPayload("the blocks' lengths do not add up to the payload's")
        stored = np.frombuffer(peeled, np.uint8)[start:]
        stored.flags.writeable = False  # one kernel for every kind of buffer
        find_bad = cpu_blocks.find_bad_lz4 if self.algorithm == "LZ4" else cpu_blocks.find_bad_snappy
        bad = find_bad(stored, ends[1:], _nbytes(header))
        if bad >= 0:
            raise BadPayload(f"block {bad} is not {self.algorithm} of its size")
        return ends + start

    def open(self, peeled: Buffer, header: FrameHeader) -> Change:
        """Decode the blocks, after a check. Raises BadPayload."""
        ends = self.block_ends(peeled, header)
        data, decompress = memoryview(peeled), _unlz4 if self.algorithm == "LZ4" else _unsnappy
        lanes = np.empty(header.num_lanes, f"<i{header.lane_bytes}")
        whole = lanes.view(np.uint8)
        for number, (start, end) in enumerate(itertools.pairwise(ends.tolist())):
            part = whole[number * BLOCK : (number + 1) * BLOCK]
            part[:] = np.frombuffer(decompress(data[start:end], part.size), np.uint8)
        return dense(lanes, header)


def _nbytes(header: FrameHeader) -> int:
    return header.num_lanes * header.lane_bytes


def _most(nbytes: int) -> int:
    """Bytes that a block of so many takes at most, with its entry in the table."""
    return _LENGTH.itemsize + 32 + nbytes + nbytes // 6


def _lz4(block: memoryview) -> bytes:
    import lz4.block

    stored: bytes = lz4.block.compress(block, store_size=False)
    return stored


def _lz4hc(block: memoryview) -> bytes:
    import lz4.block

    stored: bytes = lz4.block.compress(block, mode="high_compression", compression=_HC_LEVEL, store_size=False)
    return stored


def _unlz4(block: memoryview, nbytes: int) -> bytes:
    import lz4.block

    found: bytes = lz4.block.decompress(block, uncompressed_size=nbytes)
    return found


def _snappy(block: memoryview) -> bytes:
    import snappy

    stored: bytes = snappy.compress(block)
    return stored


def _unsnappy(block: memoryview, nbytes: int) -> bytes:
    import snappy

    found: bytes = snappy.uncompress(block)
    return found


CODECS = (
    XorBlocks("xor-lz4", "LZ4", _lz4, wrapped=False),
    XorBlocks("xor-snappy-zstd", "Snappy", _snappy, wrapped=True),
    XorBlocks("xor-lz4hc-zstd", "LZ4", _lz4hc, wrapped=True),
)
