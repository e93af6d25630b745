"""Kernels in plain torch, for any device: slow, obvious, and what every other version must equal.

Torch lacks arithmetic for most unsigned types, so unsigned lanes and 64-bit sums are held in signed ones:
addition, multiplication and XOR wrap alike in both, and a right shift has its upper bits masked off.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from deltavc.change import Box, Change, Dense, Operation, Sparse
from deltavc.kernels.part import Listed
from deltavc.kernels.segment import Segment

MASK = (1 << 64) - 1

_PIECE = 1 << 22
"""Lanes mixed at a time, which bounds the 64-bit temporaries."""

# As signed 64-bit: 2**64 over the golden ratio, and the two multipliers of `mix64`.
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)


def mix64(indices: Tensor, values: Tensor) -> Tensor:
    """Mix global lane indices with the values that stand there.

    Args:
        indices: int64, any shape; taken as unsigned.
        values: int8, int16, int32 or int64 of the same shape and device; taken as unsigned.

    Returns:
        int64 of that shape, standing for unsigned 64-bit integers.

    Source: index times the golden ratio, XOR the value, through the finaliser of splitmix64 (Steele, Lea and
    Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; its multipliers are Stafford's
    Mix13, as published by Vigna).
    """
    mixed = (indices * _GOLDEN) ^ _unsigned(values)
    mixed = (mixed ^ _shift(mixed, 30)) * _FIRST
    mixed = (mixed ^ _shift(mixed, 27)) * _SECOND
    return mixed ^ _shift(mixed, 31)


def diff(
    old: Tensor | None,
    new: Tensor,
    operation: Operation,
    box: Box,
    shape: tuple[int, ...],
    max_sparse: int,
    advance: bool,
) -> tuple[Change, int]:
    """`kernels.diff`; Dense when more than `max_sparse` lanes changed."""
    after = new.reshape(-1)
    before = torch.zeros_like(after) if old is None else old.reshape(-1)
    positions = torch.nonzero(after != before).view(-1)
    delta = _moved(before[positions], after[positions], positions, box, shape)
    change: Change
    if positions.numel() > max_sparse:
        change = Dense(operation, _difference(before, after, operation))
    else:
        change = Sparse(operation, positions, _difference(before[positions], after[positions], operation))
    if advance and old is not None:
        old.copy_(new)
    return change, delta


def apply(lanes: Tensor, change: Change, box: Box, shape: tuple[int, ...], sign: int) -> int:
    """`kernels.apply`, of a change that was checked."""
    # A 0-dim tensor has one lane and no coordinates; a view of shape (1,) has the same storage and one of each.
    lanes = lanes.view(1) if lanes.dim() == 0 else lanes
    if isinstance(change, Sparse):
        coordinates = tuple(_unravel(change.positions, tuple(lanes.shape)))
        before = lanes[coordinates]
        after = _changed(before, change, sign)
        lanes[coordinates] = after
        return _moved(before, after, change.positions, box, shape)
    before = lanes.flatten().clone()
    after = _changed(before, change, sign)
    lanes.copy_(after.view(lanes.shape))
    return _moved(before, after, torch.arange(after.numel(), device=after.device), box, shape)


def merge(first: Sparse, second: Sparse) -> Sparse:
    """`kernels.compose` of two sparse changes."""
    positions, places = torch.unique(torch.cat((first.positions, second.positions)), return_inverse=True)
    values = torch.zeros(positions.numel(), dtype=first.values.dtype, device=first.values.device)
    # Positions are unique within a change, so each of the two writes meets a lane at most once.
    for change, place in ((first, places[: first.num_changes]), (second, places[first.num_changes :])):
        values[place] = _changed(values[place], change, 1)
    kept = values != 0
    return Sparse(first.operation, positions[kept], values[kept])


def fingerprint(lanes: Tensor, box: Box, shape: tuple[int, ...]) -> int:
    """`kernels.fingerprint`."""
    flat = lanes.reshape(-1)
    total = 0
    for start in range(0, flat.numel(), _PIECE):
        piece = flat[start : start + _PIECE]
        positions = torch.arange(start, start + piece.numel(), device=flat.device)
        total += int(mix64(_global_indices(positions, box, shape), piece).sum())
    return total & MASK


def moved(listed: Listed) -> int:
    """`kernels.moved`, of a list that was checked."""
    return _moved(listed.old, listed.new, listed.positions, listed.box, listed.shape)


def densify(change: Sparse, num_lanes: int) -> Dense:
    """`kernels.densify`, of a change that was checked."""
    values = torch.zeros(num_lanes, dtype=change.values.dtype, device=change.values.device)
    values[change.positions] = change.values
    return Dense(change.operation, values)


def ascend(positions: Tensor, num_lanes: int) -> bool:
    """Whether positions lie in a box of so many lanes and rise strictly."""
    rising = (positions[1:] > positions[:-1]).all()
    # At most one lane each, so that a device is asked once.
    inside = (positions[:1] >= 0).all() & (positions[-1:] < num_lanes).all()
    return bool(rising & inside)


def memory_offsets(lanes: Tensor, positions: Tensor) -> Tensor:
    """`kernels.offsets_of`."""
    found = torch.zeros_like(positions)
    for coordinate, stride in zip(_unravel(positions, tuple(lanes.shape)), lanes.stride(), strict=True):
        found += coordinate * stride
    return found


def within(offsets: Tensor, bound: int) -> bool:
    """Whether all offsets lie in a memory of so many lanes."""
    return not bool(((offsets < 0) | (offsets >= bound)).any())


def gather(memory: Tensor, offsets: Tensor) -> Tensor:
    """`kernels.gather`."""
    return memory[offsets]


class Swap:
    """`kernels.SwapTable`, segment by segment."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments

    def compare(self) -> list[int]:
        found = [(segment.memory[_place(segment)] != segment.old).sum() for segment in self._segments]
        return [int(count) for count in found]

    def swap(self) -> list[int]:
        found = self.compare()
        if not any(found):
            self.write(old=False)
        return found

    def write(self, old: bool) -> None:
        for segment in self._segments:
            segment.memory[_place(segment)] = segment.old if old else segment.new


def _place(segment: Segment) -> Tensor | slice:
    at = segment.at
    return at if isinstance(at, Tensor) else slice(at, at + segment.num_lanes)


def _moved(before: Tensor, after: Tensor, positions: Tensor, box: Box, shape: tuple[int, ...]) -> int:
    """By how much the fingerprint moves when lanes at these positions go from `before` to `after`."""
    total = 0
    for start in range(0, positions.numel(), _PIECE):
        piece = slice(start, start + _PIECE)
        indices = _global_indices(positions[piece], box, shape)
        total += int((mix64(indices, after[piece]) - mix64(indices, before[piece])).sum())
    return total & MASK


def _global_indices(positions: Tensor, box: Box, shape: tuple[int, ...]) -> Tensor:
    indices = torch.zeros_like(positions)
    coordinates = _unravel(positions, box.lengths)
    for coordinate, offset, length in zip(coordinates, box.offsets, shape, strict=True):
        indices = indices * length + coordinate + offset
    return indices


def _unravel(positions: Tensor, lengths: tuple[int, ...]) -> list[Tensor]:
    coordinates = []
    for length in reversed(lengths):
        coordinates.append(positions % length)
        positions = positions // length
    return coordinates[::-1]


def _difference(before: Tensor, after: Tensor, operation: Operation) -> Tensor:
    return after ^ before if operation == "xor" else after - before


def _changed(before: Tensor, change: Change, sign: int) -> Tensor:
    if change.operation == "xor":
        return before ^ change.values
    return before + change.values if sign == 1 else before - change.values


def _unsigned(values: Tensor) -> Tensor:
    bits = 8 * values.element_size()
    return values.to(torch.int64) & (MASK >> (64 - bits)) if bits < 64 else values


def _shift(values: Tensor, bits: int) -> Tensor:
    return (values >> bits) & (MASK >> bits)
