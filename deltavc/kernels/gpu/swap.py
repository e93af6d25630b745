"""Gather, and the swap of a staged change, on a device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from deltavc.kernels.gpu import swap_loops
from deltavc.kernels.gpu.table import ALIGNMENT, LANES, Row, Table, groups
from deltavc.kernels.segment import Segment


def gather_all(memories: Sequence[Tensor], offsets: Sequence[Tensor]) -> list[Tensor]:
    """`kernels.gather_all`, on one device."""
    found: dict[int, Tensor] = {}
    for group in groups(range(len(memories)), lambda n: memories[n].element_size()):
        sizes = [offsets[n].numel() for n in group]
        one = memories[group[0]]
        values = torch.empty(sum(sizes), dtype=one.dtype, device=one.device)
        outs = torch.split(values, sizes)
        held = [offsets[n].contiguous() for n in group]
        rows = [
            Row(size, a=memories[n].data_ptr(), c=where.data_ptr(), d=out.data_ptr())
            for n, size, where, out in zip(group, sizes, held, outs, strict=True)
        ]
        Table(rows, one.device).launch(swap_loops.gather, LANE=LANES[one.element_size()])
        found |= dict(zip(group, outs, strict=True))
    return [found[n] for n in range(len(memories))]


class Swap:
    """`kernels.SwapTable` of segments on one device. Everything is allocated and compiled here, nothing later."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments  # whose memory the tables point to
        self._tables = []
        for group in groups(range(len(segments)), lambda n: _kind(segments[n])):
            lane_bytes, listed, is_flat = _kind(segments[group[0]])
            table = Table([_row(n, segments[n]) for n in group], segments[0].memory.device)
            self._tables.append((table, {"LANE": LANES[lane_bytes], "LISTED": listed, "FLAT": is_flat}))
        device = segments[0].memory.device if segments else None
        # Of all segments, and of each.
        self._counts = torch.zeros(1 + len(segments), dtype=torch.int64, device=device)
        # The pause must not wait for compilers. Comparing only reads, and where there is a count nothing is written.
        self._compare()
        self._counts.fill_(1)
        self._write(old=False)
        self._write(old=True)

    def compare(self) -> list[int]:
        self._compare()
        return self._found()

    def swap(self) -> list[int]:
        self._compare()
        self._write(old=False)
        return self._found()

    def write(self, old: bool) -> None:
        self._counts.zero_()
        self._write(old)
        self._found()

    def _compare(self) -> None:
        self._counts.zero_()
        for table, kind in self._tables:
            table.launch(swap_loops.compare, self._counts, **kind)

    def _write(self, old: bool) -> None:
        for table, kind in self._tables:
            table.launch(swap_loops.write, self._counts, **kind, OLD=old)

    def _found(self) -> list[int]:
        """Mismatches of each segment. Waits for the device."""
        if not int(self._counts[0]):
            return [0] * len(self._segments)
        found: list[int] = self._counts[1:].tolist()
        return found


def _kind(segment: Segment) -> tuple[int, bool, bool]:
    listed = isinstance(segment.at, Tensor)
    addresses = _address(segment), segment.old.data_ptr(), segment.new.data_ptr()
    return segment.memory.element_size(), listed, not listed and all(at % ALIGNMENT == 0 for at in addresses)


def _address(segment: Segment) -> int:
    start = 0 if isinstance(segment.at, Tensor) else segment.at
    return segment.memory.data_ptr() + start * segment.memory.element_size()


def _row(number: int, segment: Segment) -> Row:
    return Row(
        segment.num_lanes,
        index=number,
        a=_address(segment),
        b=segment.old.data_ptr(),
        c=segment.at.data_ptr() if isinstance(segment.at, Tensor) else 0,
        d=segment.new.data_ptr(),
    )
