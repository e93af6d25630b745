"""Regions: which bytes of memory the elements of a strided view lie in, and whether two views meet.

A region is a run of bytes, repeated at strides. Views of one fused weight may interleave without sharing a byte:

    rows     ████████────────      one run: intervals tell everything
    columns  ██──██──██──██──      four runs of the left columns,
             ──██──██──██──██      four of the right ones: the intervals meet, the bytes do not

Where only intervals meet, bytes are counted exactly, on a mask of as few places as the runs and strides allow:
four and four above, whatever the size of the columns.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deltavc.change import Box


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes of one address space.

    space: what the addresses are of (a device). start: the first byte. run: how many bytes lie together.
    outer: how often that is repeated and how many bytes apart, as (count, stride) from the innermost outwards.
    """

    space: str
    start: int
    run: int
    outer: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, tensor: Tensor) -> Region:
        """The bytes of a tensor that has elements."""
        width, space, start = tensor.element_size(), str(tensor.device), tensor.data_ptr()
        if tensor.is_contiguous():
            return cls(space, start, tensor.numel() * width)
        return cls._strided(space, start, width, zip(tensor.shape, tensor.stride(), strict=True))

    @classmethod
    def of_box(cls, box: Box, shape: tuple[int, ...]) -> Region:
        """The places of a box in the row-major order of a tensor of this shape, as if each were a byte."""
        strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
        start = sum(offset * stride for offset, stride in zip(box.offsets, strides, strict=True))
        return cls._strided("", start, 1, zip(box.lengths, strides, strict=True))

    @classmethod
    def _strided(cls, space: str, start: int, width: int, dims: Iterable[tuple[int, int]]) -> Region:
        run = width
        outer: list[tuple[int, int]] = []
        for stride, count in sorted((stride * width, count) for count, stride in dims if count != 1):
            if not outer and stride == run:
                run *= count
            elif outer and stride == outer[-1][0] * outer[-1][1]:
                outer[-1] = (outer[-1][0] * count, outer[-1][1])
            else:
                outer.append((count, stride))
        return cls(space, start, run, tuple(outer))

    @property
    def end(self) -> int:
        """One past the last byte."""
        return self.start + sum((count - 1) * stride for count, stride in self.outer) + self.run

    @property
    def nbytes(self) -> int:
        return self.run * math.prod(count for count, _ in self.outer)

    @property
    def nested(self) -> bool:
        """Whether each stride steps over all that is repeated at it, so that no byte is met twice."""
        extent = self.run
        for count, stride in self.outer:
            if stride < extent:
                return False
            extent += (count - 1) * stride
        return True


def meeting(regions: Sequence[Region]) -> tuple[int, int] | None:
    """The numbers of two regions that share a byte, one number twice if a region meets itself; None if none do."""
    for cluster in _clusters(regions):
        for number in cluster:
            if not regions[number].nested and _meets_itself(regions[number]):
                return number, number
        if len(cluster) > 1:
            mask = _Mask([regions[number] for number in cluster])
            for place, number in enumerate(cluster):
                if bool(mask.blocks(regions[number]).any()):
                    return _first_met(regions, cluster[:place], number), number
                mask.fill(regions[number])
    return None


def uncovered(regions: Sequence[Region], by: Sequence[Region]) -> list[int]:
    """For each region, how many of its bytes lie in none of `by`, of which no two meet."""
    exactly = set(by)
    clusters = list(_clusters(by))
    first = [(by[cluster[0]].space, by[cluster[0]].start) for cluster in clusters]
    last = [max(by[number].end for number in cluster) for cluster in clusters]

    def near(region: Region) -> Iterator[Region]:
        at = max(bisect.bisect_right(first, (region.space, region.start)) - 1, 0)
        while at < len(clusters) and first[at] < (region.space, region.end):
            if first[at][0] == region.space and last[at] > region.start:
                yield from (by[number] for number in clusters[at])
            at += 1

    return [0 if region in exactly else _uncovered(region, list(near(region))) for region in regions]


class _Mask:
    """What lies between the first and the last byte of some regions, a place for each block of bytes.

    A block is the largest that no run begins or ends within: one element at worst, for views of every other one.
    """

    def __init__(self, regions: Sequence[Region]) -> None:
        self._start = min(region.start for region in regions)
        numbers = {region.start - self._start for region in regions} | {region.run for region in regions}
        self.unit = math.gcd(*numbers, *(stride for region in regions for _, stride in region.outer))
        num_blocks = (max(region.end for region in regions) - self._start) // self.unit
        self._places = torch.zeros(num_blocks, dtype=torch.bool, device="cpu")

    def blocks(self, region: Region) -> Tensor:
        """The places of a region's blocks."""
        shape = [*(count for count, _ in region.outer), region.run // self.unit]
        strides = [*(stride // self.unit for _, stride in region.outer), 1]
        return self._places.as_strided(shape, strides, (region.start - self._start) // self.unit)

    def fill(self, region: Region) -> None:
        self.blocks(region).fill_(True)

    @property
    def nbytes(self) -> int:
        """The bytes of the regions that were filled in, each once."""
        return int(self._places.count_nonzero()) * self.unit


def _clusters(regions: Sequence[Region]) -> Iterator[list[int]]:
    """Numbers of regions whose intervals meet, one after another through memory."""
    cluster: list[int] = []
    space, end = "", 0
    for number in sorted(range(len(regions)), key=lambda number: (regions[number].space, regions[number].start)):
        region = regions[number]
        if cluster and (region.space != space or region.start >= end):
            yield cluster
            cluster = []
        space, end = region.space, region.end if not cluster else max(end, region.end)
        cluster.append(number)
    if cluster:
        yield cluster


def _meets_itself(region: Region) -> bool:
    if any(stride == 0 for _, stride in region.outer):
        return True
    mask = _Mask([region])
    mask.fill(region)
    return mask.nbytes < region.nbytes


def _first_met(regions: Sequence[Region], earlier: Sequence[int], number: int) -> int:
    for other in earlier:
        mask = _Mask([regions[other], regions[number]])
        mask.fill(regions[other])
        if bool(mask.blocks(regions[number]).any()):
            return other
    raise ValueError("no two of these regions meet")


def _uncovered(region: Region, by: Sequence[Region]) -> int:
    if not region.outer and not any(other.outer for other in by):
        within = (min(region.end, other.end) - max(region.start, other.start) for other in by)
        return region.nbytes - sum(nbytes for nbytes in within if nbytes > 0)
    mask = _Mask([region, *by])
    for other in by:
        mask.fill(other)
    return region.nbytes - int(mask.blocks(region).count_nonzero()) * mask.unit
