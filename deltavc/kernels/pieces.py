"""Pieces: CPU tensors of any size and strides as the contiguous arrays that the loops of `cpu` take.

A contiguous tensor is cut in place. Of a strided one, bounded pieces are copied out, worked on and, where
they were changed, copied back. All by numpy: torch's own threads would hang in a forked child.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deltavc.kernels import pool
from deltavc.kernels.cpu import BLOCK, Array
from deltavc.kernels.cpu_positions import storage_offsets

Dtype = np.dtype[Any]

_SIGNED: dict[int, Dtype] = {n: np.dtype(f"i{n}") for n in (1, 2, 4, 8)}
_UNSIGNED: dict[int, Dtype] = {n: np.dtype(f"u{n}") for n in (1, 2, 4, 8)}

_MASK = (1 << 64) - 1

SMALL = 1 << 18
"""Lanes, or entries, that one thread is done with before a second one would have started."""

_LARGE = 1 << 22
"""Lanes in a piece at most, so that threads end at about the same time."""

_COPIED = 1 << 20
"""Lanes of a strided tensor that are copied out at a time."""


class Lanes:
    """A CPU tensor's lanes, unsigned, by their row-major positions."""

    def __init__(self, tensor: Tensor) -> None:
        self.contiguous = tensor.is_contiguous()
        self.num_lanes = tensor.numel()
        self.dtype = _UNSIGNED[tensor.element_size()]
        flat = tensor.view(self.num_lanes) if self.contiguous else tensor.squeeze()
        self._array: Array = flat.numpy().view(self.dtype)

    def cut(self) -> list[tuple[int, int]]:
        """Ranges of positions for one task each."""
        return cut_lanes(self.num_lanes, self.contiguous)

    def read(self, first: int, last: int) -> Array:
        """The lanes themselves where they are contiguous, else a copy of them."""
        if self.contiguous:
            return self._array[first:last]
        piece = np.empty(last - first, self.dtype)
        for at, view in _views(self._array, first, last):
            piece[at : at + view.size].reshape(view.shape)[...] = view
        return piece

    def write(self, first: int, piece: Array) -> None:
        """Store lanes from position `first` on."""
        if self.contiguous:
            self._array[first : first + len(piece)] = piece
            return
        for at, view in _views(self._array, first, first + len(piece)):
            view[...] = piece[at : at + view.size].reshape(view.shape)

    def write_back(self, first: int, piece: Array) -> None:
        """Store what `read` returned and the caller changed."""
        if not self.contiguous:
            self.write(first, piece)


class Storage:
    """A CPU tensor's memory as one array, for access by position in any order."""

    def __init__(self, tensor: Tensor) -> None:
        self._lengths, self._strides = np.array(tensor.shape, np.int64), np.array(tensor.stride(), np.int64)
        self._contiguous = tensor.is_contiguous()
        extent = 1 + int(((self._lengths - 1) * self._strides).sum()) if tensor.numel() else 0
        self.array = unsigned(tensor.as_strided((extent,), (1,)))

    def offsets(self, positions: Array) -> Array:
        """Where in the array the lanes at these row-major positions lie."""
        return positions if self._contiguous else storage_offsets(positions, self._lengths, self._strides)


def unsigned(values: Tensor) -> Array:
    """A 1-dim tensor's memory as unsigned lanes; a copy if it has gaps."""
    return np.ascontiguousarray(values.numpy()).view(_UNSIGNED[values.element_size()])


def indices(positions: Tensor) -> Array:
    """A 1-dim int64 tensor's memory; a copy if it has gaps."""
    return np.ascontiguousarray(positions.numpy())


def tensor(values: Array) -> Tensor:
    """An array of unsigned lanes as the signed tensor that stands for it, in the same memory."""
    return torch.from_numpy(values.view(_SIGNED[values.itemsize]))


def zeros(dtype: Dtype) -> Array:
    """A block of zeros to compare with where there is no old value."""
    return np.zeros(BLOCK, dtype)


def cut_lanes(num_lanes: int, contiguous: bool) -> list[tuple[int, int]]:
    """Cut so many lanes into ranges of whole blocks, one per task."""
    return _ranges(num_lanes, _size(num_lanes) if contiguous else min(_size(num_lanes), _COPIED))


def cut(count: int) -> list[tuple[int, int]]:
    """Cut so many entries of a list into ranges, one per task."""
    return _ranges(count, _size(count))


def total(part: Callable[[int, int], int], ranges: list[tuple[int, int]]) -> int:
    """Sum over ranges, on the pool, modulo 2**64."""
    return sum(pool.run([partial(part, first, last) for first, last in ranges])) & _MASK


def _size(count: int) -> int:
    if pool.inside():
        return max(count, 1)
    share = -(-count // (4 * pool.size()))
    return min(max(-(-share // BLOCK) * BLOCK, SMALL), _LARGE)


def _ranges(count: int, size: int) -> list[tuple[int, int]]:
    return [(first, min(first + size, count)) for first in range(0, count, size)]


def _views(array: Array, first: int, last: int) -> Iterator[tuple[int, Array]]:
    """Views of an array that together are a range of its row-major order, and where in the range each begins."""
    if array.ndim == 1:
        yield 0, array[first:last]
        return
    row = math.prod(array.shape[1:])
    top, bottom = -(-first // row), last // row
    if top > bottom:
        yield from _views(array[bottom], first - bottom * row, last - bottom * row)
        return
    if first < top * row:
        yield from _views(array[top - 1], first - (top - 1) * row, row)
    if top < bottom:
        yield top * row - first, array[top:bottom]
    if bottom * row < last:
        for at, view in _views(array[bottom], 0, last - bottom * row):
            yield bottom * row - first + at, view
