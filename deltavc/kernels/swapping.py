"""The two halves of a live update: gather while serving, swap in the pause.

    memory = memory_of(lanes)
    at = offsets_of(lanes, positions)                     # where the lanes lie: strides resolved, once
    old = gather(memory, at)                              # read while the model serves; work out `new` from it
    table = SwapTable([Segment(memory, at, old, new), ...])
    table.swap()                                          # compares all, then writes all or nothing

A swap reads and writes live memory in place, never rebinds it, and hashes, decodes and allocates nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deltavc.change import Box
from deltavc.kernels.devices import by_device, gpu, single
from deltavc.kernels.many import check_part
from deltavc.kernels.part import Part
from deltavc.kernels.segment import Segment, check_memory, check_offsets


def memory_of(lanes: Tensor) -> Tensor:
    """View what lies between the first and the last lane of a tensor, gaps included, as one row of lanes.

    Args:
        lanes: int8, int16, int32 or int64, any strides, any device.

    Returns:
        A view of shape (m,), contiguous, that begins with the tensor's first lane.
    """
    dims = zip(lanes.shape, lanes.stride(), strict=True)
    extent = 1 + sum((length - 1) * stride for length, stride in dims) if lanes.numel() else 0
    return lanes.as_strided((extent,), (1,))


def offsets_of(lanes: Tensor, positions: Tensor) -> Tensor:
    """Say where in `memory_of(lanes)` the lanes at these positions lie.

    Args:
        lanes: as for `memory_of`.
        positions: int64, shape (n,), row-major within the lanes' shape, on their device.

    Raises:
        ValueError: positions outside the lanes, or of another type.
    """
    shape = tuple(lanes.shape)
    check_part(Part(lanes, Box.whole(shape), shape))
    _check_within([(lanes, positions, lanes.numel())])
    found: Tensor = single(lanes.device).memory_offsets(lanes, positions)
    return found


def gather(memory: Tensor, offsets: Tensor) -> Tensor:
    """Read lanes at offsets of a memory.

    Args:
        memory: int8, int16, int32 or int64 of shape (m,), contiguous, any device.
        offsets: int64, shape (n,), any order, on its device.

    Returns:
        Lanes of shape (n,), in memory of their own.

    Raises:
        ValueError: offsets outside the memory, or arguments that do not fit each other.
    """
    return gather_all([memory], [offsets])[0]


def gather_all(memories: Sequence[Tensor], offsets: Sequence[Tensor]) -> list[Tensor]:
    """`gather` from many memories; on a device with Triton, in one launch for each lane width."""
    for row in memories:
        check_memory(row)
    _check_within([(row, at, row.numel()) for row, at in zip(memories, offsets, strict=True)])

    def run(device: torch.device, numbers: list[int]) -> list[Tensor]:
        share = [(memories[n], offsets[n]) for n in numbers]
        if (kernels := gpu(device)) is not None:
            found: list[Tensor] = kernels.gather_all(*zip(*share, strict=True))
            return found
        return [single(device).gather(row, at) for row, at in share]

    return by_device([row.device for row in memories], run)


def swap(memory: Tensor, offsets: Tensor, old: Tensor, new: Tensor) -> int:
    """Replace lanes of a memory by new ones, if all of them are the old ones.

    Args:
        memory, offsets: as for `gather`; no offset twice.
        old, new: lanes of shape (n,), contiguous, on the memory's device.

    Returns:
        How many lanes were not the old ones. Unless it is 0, nothing was written.

    Raises:
        ValueError: arguments that do not fit each other.
    """
    return sum(SwapTable([Segment(memory, offsets.contiguous(), old, new)]).swap())


class SwapTable:
    """A staged change of many tensors on one device, made ready so that swapping it takes no more than it must.

    On a device with Triton, comparing and writing are a launch each for every lane width and kind of segment
    (listed or a block), however many there are, on the current stream. Segments do not overlap.

    Interrupted anywhere, by a signal or an exception, a swap has written any part of the new lanes:
    `write_old` then undoes it and `write_new` finishes it.

    Raises:
        ValueError: segments on several devices, offsets outside their memory, tensors that do not fit.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = tuple(segments)
        for segment in self.segments:
            segment.check()
        if len({segment.memory.device for segment in self.segments}) > 1:
            raise ValueError("the segments of one swap lie on several devices")
        listed = [segment for segment in self.segments if isinstance(segment.at, Tensor)]
        _check_within([(each.memory, each.at, each.memory.numel()) for each in listed])
        device = self.segments[0].memory.device if self.segments else torch.device("cpu")
        self._swap: Any = (gpu(device) or single(device)).Swap(self.segments)

    def swap(self) -> list[int]:
        """Write the new lanes, if every live lane is the old one.

        Returns:
            For each segment, how many lanes were not. Unless all are 0, nothing was written. The device is
            through when this returns.
        """
        found: list[int] = self._swap.swap()
        return found

    def compare(self) -> list[int]:
        """Count, for each segment, the live lanes that are not the old ones. Writes nothing."""
        found: list[int] = self._swap.compare()
        return found

    def write_new(self) -> None:
        """Write every new lane, whatever is there."""
        self._swap.write(old=False)

    def write_old(self) -> None:
        """Write every old lane, whatever is there."""
        self._swap.write(old=True)


def _check_within(lists: Sequence[tuple[Tensor, Any, int]]) -> None:
    for row, at, bound in lists:
        check_offsets(row, at)
        if not single(row.device).within(at, bound):
            raise ValueError(f"offsets outside a memory of {bound} lanes")
