"""Zstandard frames of a known size: what goes in comes out, and nothing larger, shorter or longer.

    level 1         for data with repetitions
    entropy only    for data that is skewed but never repeats, such as the exponents of weights: a hash table of 64
                    entries and matches of at least 7 bytes find next to nothing, so every byte is Huffman-coded.
                    Within 1 % of the size of zlib's Huffman-only deflate, and several times faster both ways;
                    the matches that level 1 finds in such data cost more than they save.

Both are ordinary frames (RFC 8878) that any decoder reads.
"""

from __future__ import annotations

import threading

import zstandard

from deltavc.delta.codecs.base import Buffer
from deltavc.errors import BadPayload

MAX_WINDOW = 8 << 20
"""Bytes of history that a frame may ask its reader to keep; what RFC 8878 says every reader should support."""


class _Tools(threading.local):
    """One set a thread, since zstandard's objects must not be used by two at once."""

    def __init__(self) -> None:
        self.level_1 = zstandard.ZstdCompressor(level=1)
        self.entropy_only = zstandard.ZstdCompressor(
            compression_params=zstandard.ZstdCompressionParameters(
                strategy=zstandard.STRATEGY_FAST,
                window_log=17,
                hash_log=6,
                chain_log=6,
                search_log=1,
                min_match=7,
                target_length=0,
            )
        )
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)


_tools = _Tools()


def compress(data: Buffer) -> bytes:
    """Compress at level 1, with the size in the frame's header."""
    return _tools.level_1.compress(data)


def compress_entropy(data: Buffer) -> bytes:
    """Compress by Huffman codes alone, or nearly, with the size in the frame's header."""
    return _tools.entropy_only.compress(data)


def decompress(stored: Buffer, nbytes: int) -> bytes:
    """Read one frame that holds exactly `nbytes` (1 or more) bytes and is followed by none.

    Raises:
        BadPayload: anything else. The size is compared before anything of that size is allocated.
    """
    return decompress_within(stored, nbytes, nbytes)


def decompress_within(stored: Buffer, least: int, most: int) -> bytes:
    """Read one frame that holds `least` (1 or more) to `most` bytes and is followed by none.

    Raises:
        BadPayload: anything else. The size is compared before anything of that size is allocated.
    """
    due = f"{least} bytes" if least == most else f"{least} to {most} bytes"
    try:
        promised = zstandard.get_frame_parameters(stored).content_size
        if not least <= promised <= most:
            size = "an unknown size" if promised == zstandard.CONTENTSIZE_UNKNOWN else f"{promised} bytes"
            raise BadPayload(f"a zstd frame of {size} where {due} are due")
        found = _tools.decompressor.decompress(stored, read_across_frames=False, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BadPayload(f"not a zstd frame: {error}") from error
    if len(found) != promised:
        raise BadPayload(f"a zstd frame of {len(found)} bytes that promises {promised}")
    return found
