"""What happened to one tensor, as Miles and slime publish it: bytes in, bytes out, whatever the dtype.

    xor          new ^ old, every byte of the tensor
    overwrite    how many bytes changed, where (both as u32, little-endian), and the new bytes

Each is one zstd frame of level 1 with its size in the header. A checksum of the tensor's new bytes goes with it.

Source: the writers, miles/utils/disk_delta.py and update_weight_from_distributed/delta.py at commit 31f1ca96 of
radixark/miles and update_weight_from_disk_delta.py at 624b824a of THUDM/slime; and the receiver, SGLang's
weight_sync/local_checkpoint.py as docker/patch/latest/sglang-pull_weights.patch of slime adds it.
"""

from __future__ import annotations

import zlib
from typing import Literal

import numpy as np
from blake3 import blake3

from deltavc.delta.codecs import zstd
from deltavc.errors import BadPayload

Encoding = Literal["xor", "overwrite"]
Checksum = Literal["xxh3-128", "blake3", "adler32"]

MAX_OVERWRITTEN = 1 << 32
"""Bytes of the largest tensor that positions of 32 bits reach; beyond it they would wrap."""

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]
_U32 = np.dtype("<u4")


def checksum(algorithm: Checksum, data: Bytes) -> str:
    """The checksum of a tensor's bytes, in hex.

    Raises:
        ModuleNotFoundError: xxh3-128 without the package xxhash.
    """
    match algorithm:
        case "adler32":
            return f"{zlib.adler32(data.data):08x}"
        case "blake3":
            return blake3(data.data).hexdigest()
        case "xxh3-128":
            import xxhash

            return xxhash.xxh3_128_hexdigest(data.data)


def encode(encoding: Encoding, old: Bytes, new: Bytes) -> bytes | None:
    """The change from old to new bytes, of which there are as many; None if there is none.

    Raises:
        ValueError: overwriting in more than MAX_OVERWRITTEN bytes.
    """
    if encoding == "xor":
        changed = new ^ old
        return zstd.compress(changed.data) if changed.any() else None
    if len(new) > MAX_OVERWRITTEN:
        raise ValueError(f"it has {len(new)} bytes, and positions of 32 bits reach {MAX_OVERWRITTEN}; take xor")
    positions = np.flatnonzero(new != old)
    if not len(positions):
        return None
    if len(positions) == MAX_OVERWRITTEN:  # which 32 bits would count as none
        raise ValueError("all its bytes changed, which 32 bits cannot count; take xor")
    count = len(positions).to_bytes(4, "little")
    return zstd.compress(count + positions.astype(_U32).tobytes() + new[positions].tobytes())


def apply(encoding: Encoding, stored: Bytes, target: Bytes) -> None:
    """Bring a tensor's bytes, in place, from before a change to after it.

    Raises:
        BadPayload: not such a change, or one of another number of bytes. The bytes may be changed partly.
    """
    if encoding == "xor":
        target ^= np.frombuffer(zstd.decompress(stored.data, max(1, len(target))), np.uint8)[: len(target)]
        return
    if len(target) > MAX_OVERWRITTEN:
        raise BadPayload(f"positions of 32 bits do not reach the {len(target)} bytes that it has")
    body = zstd.decompress_within(stored.data, 4, 4 + 5 * len(target))
    count = int.from_bytes(body[:4], "little")
    if len(body) != 4 + 5 * count:
        raise BadPayload(f"{len(body)} bytes for {count} positions and values")
    positions = np.frombuffer(body, _U32, count, 4)
    if count and int(positions.max()) >= len(target):
        raise BadPayload(f"a position beyond the {len(target)} bytes that it has")
    target[positions] = np.frombuffer(body, np.uint8, count, 4 + 4 * count)
