"""Segments: a staged change, ready to be swapped into live memory.

A tensor's lanes lie somewhere in its storage; strides, fusions and slices are resolved into offsets while
staging, so that the swap itself only compares and writes.

    memory   [ . . 7 . . . 3 . 9 9 9 9 . ]
    listed     at = [2, 6]   old = [7, 3]         new = [8, 2]
    a block    at = 8        old = [9, 9, 9, 9]   new = [1, 2, 3, 4]
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deltavc.lanes import LANE_DTYPES


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Some lanes of one memory, with what they are and what they become. Its tensors must stay as they are.

    memory: int8, int16, int32 or int64 of shape (m,), contiguous, any device. at: int64 offsets in it, of
    shape (n,), in any order but none twice; or one int, where a block of n lanes begins. old, new: of the
    memory's type, shape (n,), contiguous. All on the memory's device.
    """

    memory: Tensor
    at: Tensor | int
    old: Tensor
    new: Tensor

    @property
    def num_lanes(self) -> int:
        return self.old.numel()

    def check(self) -> None:
        """Raise ValueError for tensors that do not fit each other; whether offsets lie in the memory is not asked."""
        check_memory(self.memory)
        for lanes in (self.old, self.new):
            if lanes.dtype != self.memory.dtype or lanes.dim() != 1 or not lanes.is_contiguous():
                raise ValueError("old and new lanes are contiguous, one-dimensional and of the memory's type")
        if self.old.shape != self.new.shape or {self.old.device, self.new.device} != {self.memory.device}:
            raise ValueError("memory, old and new lanes differ in number or device")
        if isinstance(self.at, int):
            if not 0 <= self.at <= self.memory.numel() - self.num_lanes:
                raise ValueError(f"a block of {self.num_lanes} lanes at {self.at} is not within the memory")
            return
        check_offsets(self.memory, self.at)
        if self.at.numel() != self.num_lanes or not self.at.is_contiguous():
            raise ValueError("offsets are contiguous, and one for each lane")


def check_memory(memory: Tensor) -> None:
    if memory.dtype not in LANE_DTYPES.values() or memory.dim() != 1 or not memory.is_contiguous():
        raise ValueError("a memory is one contiguous row of lanes")


def check_offsets(memory: Tensor, offsets: Tensor) -> None:
    if offsets.dtype != torch.int64 or offsets.dim() != 1 or offsets.device != memory.device:
        raise ValueError("offsets are one-dimensional, int64 and on the memory's device")
