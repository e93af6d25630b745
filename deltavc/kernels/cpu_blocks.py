"""Whether blocks of LZ4 or Snappy are what they should be, told without decoding them.

Decoders differ in what they refuse: liblz4 lets an offset of 0 pass, Snappy's allocates whatever a block promises,
and one on a device may refuse nothing. A walk over a block's lengths and offsets copies no bytes, so that it costs a
fraction of decoding; what passes it, every decoder decodes, and to the same bytes.

    LZ4       sequences: token (length of literals, length of match less 4; a nibble each, 15: more bytes follow),
              literals, offset u16. The last one ends with its literals; no match starts within the last 12 bytes
              or ends within the last 5.
    Snappy    decoded size as varint; then literals, and copies whose offset takes 11, 16 or 32 bits.

Sources: lz4_Block_format.md of LZ4, format_description.txt of Snappy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from deltavc.kernels.cpu_compile import kernel

BLOCK = 65536
"""Bytes that a block holds, but for the last one, which holds the rest."""

_MIN_MATCH = 4
_LAST_MATCH = 12
_LAST_LITERALS = 5


@kernel
def find_bad_lz4(stored: Any, ends: Any, nbytes: int) -> Any:
    """Find the first block that is not LZ4 of its size.

    Args:
        stored: uint8, shape (m,), read-only; the blocks, one behind the other.
        ends: int64, shape (b,), where each ends in `stored`: ascending, the last one m. b is `nbytes` in blocks.
        nbytes: what they hold, 1 or more.

    Returns:
        Its number, or -1.
    """
    start = 0
    for number in range(ends.size):
        if not _is_lz4(stored[start : ends[number]], min(BLOCK, nbytes - number * BLOCK)):
            return number
        start = ends[number]
    return -1


@kernel
def find_bad_snappy(stored: Any, ends: Any, nbytes: int) -> Any:
    """Find the first block that is not raw Snappy of its size; as `find_bad_lz4`."""
    start = 0
    for number in range(ends.size):
        if not _is_snappy(stored[start : ends[number]], min(BLOCK, nbytes - number * BLOCK)):
            return number
        start = ends[number]
    return -1


@kernel
def _is_lz4(block: Any, size: int) -> Any:
    at: Any = 0
    made: Any = 0
    while at < block.size:
        token: Any = np.int64(block[at])
        at, length = _lz4_length(block, at + 1, token >> 4)
        if length > block.size - at or length > size - made:
            return False
        at += length
        made += length
        if at == block.size:
            return made == size and token & 15 == 0
        if block.size - at < 2:
            return False
        offset = np.int64(block[at]) | np.int64(block[at + 1]) << 8
        at, length = _lz4_length(block, at + 2, token & 15)
        length += _MIN_MATCH
        if not 0 < offset <= made or made > size - _LAST_MATCH or length > size - _LAST_LITERALS - made:
            return False
        made += length
    return False


@kernel
def _lz4_length(block: Any, at: int, nibble: int) -> Any:
    """(where what follows starts, a length); past the end where the length runs out of the block."""
    length: Any = nibble
    more: Any = 255 if nibble == 15 else 0
    while more == 255:
        if at >= block.size:
            return block.size + 1, length
        more = np.int64(block[at])
        length += more
        at += 1
    return at, length


@kernel
def _is_snappy(block: Any, size: int) -> Any:
    at: Any = 0
    made: Any = 0
    rest: Any = size
    while rest >= 128:  # the size as a writer writes it: a varint could have zeros in front
        if at >= block.size or block[at] != rest & 127 | 128:
            return False
        rest >>= 7
        at += 1
    if at >= block.size or block[at] != rest:
        return False
    at += 1
    while at < block.size:
        tag = np.int64(block[at])
        kind = tag & 3
        num_bytes: Any = max(0, (tag >> 2) - 59) if kind == 0 else 1 << kind >> 1
        at += 1
        if block.size - at < num_bytes:
            return False
        number: Any = 0
        for i in range(num_bytes):
            number |= np.int64(block[at + i]) << 8 * i
        at += num_bytes
        if kind == 0:
            length: Any = 1 + (number if num_bytes else tag >> 2)
            if length > block.size - at:
                return False
            at += length
        else:
            length = 1 + (tag >> 2)
            if kind == 1:
                length = 4 + (tag >> 2 & 7)
                number |= tag >> 5 << 8
            if not 0 < number <= made:
                return False
        if length > size - made:
            return False
        made += length
    return made == size
