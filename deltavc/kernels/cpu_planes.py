"""Lanes split into byte planes and put together again, and what planes would take.

Whole planes are passed over one after another, so that every loop runs in wide registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from deltavc.kernels.cpu_compile import kernel

_BLOCK = 4096
"""Lanes put together at a time; their words stay in the first-level cache."""

_U1 = np.uint64(1)


@kernel
def zigzag_planes(lanes: Any, planes: Any) -> None:
    """Split lanes, with small magnitudes of either sign made small numbers, into byte planes, least significant first.

    Args:
        lanes: signed, shape (n,).
        planes: uint8, shape (bytes of a lane, n), written.
    """
    for byte in range(planes.shape[0]):
        plane = planes[byte]
        shift = 8 * byte
        for i in range(lanes.size):
            lane = np.int64(lanes[i])
            plane[i] = np.uint8(((lane << 1) ^ (lane >> 63)) >> shift)


@kernel
def from_zigzag_planes(planes: Any, lanes: Any) -> None:
    """Put together lanes from the planes of `zigzag_planes`."""
    for first in range(0, lanes.size, _BLOCK):
        words = _join(planes, first, min(first + _BLOCK, lanes.size))
        block = lanes[first : first + _BLOCK]
        for i in range(block.size):
            block[i] = np.int64(words[i] >> _U1) ^ -np.int64(words[i] & _U1)


@kernel
def rotated_planes(lanes: Any, planes: Any) -> None:
    """Split lanes, rotated left by one bit, into byte planes, least significant first.

    Args: as `zigzag_planes`.
    """
    top = np.uint64(8 * planes.shape[0] - 1)
    for byte in range(planes.shape[0]):
        plane = planes[byte]
        shift = np.uint64(8 * byte)
        for i in range(lanes.size):
            lane = np.uint64(lanes[i])
            plane[i] = np.uint8(((lane << _U1) | ((lane >> top) & _U1)) >> shift)


@kernel
def from_rotated_planes(planes: Any, lanes: Any) -> None:
    """Put together lanes from the planes of `rotated_planes`."""
    top = np.uint64(8 * planes.shape[0] - 1)
    for first in range(0, lanes.size, _BLOCK):
        words = _join(planes, first, min(first + _BLOCK, lanes.size))
        block = lanes[first : first + _BLOCK]
        for i in range(block.size):
            block[i] = np.int64((words[i] >> _U1) | ((words[i] & _U1) << top))


@kernel
def entropy_nbits(plane: Any) -> Any:
    """How many different bytes there are in a plane, and its order-0 entropy in bits.

    Args:
        plane: uint8, shape (n,), n >= 1.
    """
    # Four tables, so that equal bytes in a row do not wait for each other's count.
    tables = np.zeros((4, 256), np.int32)
    whole = plane.size // 4 * 4
    for i in range(0, whole, 4):
        tables[0, plane[i]] += 1
        tables[1, plane[i + 1]] += 1
        tables[2, plane[i + 2]] += 1
        tables[3, plane[i + 3]] += 1
    for i in range(whole, plane.size):
        tables[0, plane[i]] += 1
    symbols = 0
    nbits = plane.size * np.log2(plane.size)
    for byte in range(256):
        count = tables[0, byte] + tables[1, byte] + tables[2, byte] + tables[3, byte]
        if count > 0:
            symbols += 1
            nbits -= count * np.log2(count)
    return symbols, nbits


@kernel
def _join(planes: Any, first: int, end: int) -> Any:
    """The lanes from `first` to `end` as unsigned words."""
    words = planes[0, first:end].astype(np.uint64)
    for byte in range(1, planes.shape[0]):
        plane = planes[byte, first:end]
        for i in range(words.size):
            words[i] |= np.uint64(plane[i]) << np.uint64(8 * byte)
    return words
