"""Changes: what happened to the lanes of one box between two versions.

    Box      where: offsets and lengths within a tensor's global lane shape
    Sparse   positions in the box (row-major, ascending) and a value for each
    Dense    a value for every lane of the box

A value is `new - old` (wrapping, operation "add") or `new ^ old` (operation "xor"), so either operation
undoes itself, and a full value is a change from zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Operation = Literal["add", "xor"]


@dataclass(frozen=True, slots=True)
class Box:
    """A part of a tensor: `offsets` and `lengths` per dimension, in lanes. 0-dim tensors have one lane."""

    offsets: tuple[int, ...]
    lengths: tuple[int, ...]

    @classmethod
    def whole(cls, lane_shape: tuple[int, ...]) -> Box:
        return cls((0,) * len(lane_shape), lane_shape)

    @property
    def num_lanes(self) -> int:
        return math.prod(self.lengths)

    def fits(self, lane_shape: tuple[int, ...]) -> bool:
        """Whether the box lies within a tensor of this lane shape."""
        return len(self.offsets) == len(self.lengths) == len(lane_shape) and all(
            offset >= 0 and length >= 0 and offset + length <= bound
            for offset, length, bound in zip(self.offsets, self.lengths, lane_shape, strict=True)
        )

    @property
    def index(self) -> tuple[slice, ...]:
        """What to index a whole tensor's lanes with to get this box's."""
        return tuple(slice(o, o + n) for o, n in zip(self.offsets, self.lengths, strict=True))

    def meet(self, other: Box) -> Box | None:
        """What two boxes of one tensor have in common; None if that is nothing."""
        starts = tuple(map(max, self.offsets, other.offsets))
        ends = (
            min(a + n, b + m)
            for a, n, b, m in zip(self.offsets, self.lengths, other.offsets, other.lengths, strict=True)
        )
        lengths = tuple(end - start for start, end in zip(starts, ends, strict=True))
        return Box(starts, lengths) if all(length > 0 for length in lengths) else None

    def within(self, outer: Box) -> Box:
        """This box with offsets counted from the start of `outer`."""
        return Box(tuple(a - b for a, b in zip(self.offsets, outer.offsets, strict=True)), self.lengths)

    def lifted(self, outer: Box) -> Box:
        """This box, whose offsets count from the start of `outer`, counted as that one's are: undoes `within`."""
        return Box(tuple(a + b for a, b in zip(self.offsets, outer.offsets, strict=True)), self.lengths)


def overlapping(boxes: Sequence[Box]) -> tuple[Box, Box] | None:
    """Two of these different boxes that have lanes in common, if there are such."""
    dims = range(len(boxes[0].offsets))
    # Along the dimension that is cut most, a box meets few others.
    dim = max(dims, key=lambda each: len({box.offsets[each] for box in boxes}), default=None)
    if dim is None:
        return None  # no dimensions: all boxes are equal
    ordered = sorted(boxes, key=lambda box: box.offsets[dim])
    for place, box in enumerate(ordered):
        end = box.offsets[dim] + box.lengths[dim]
        for other in ordered[place + 1 :]:
            if other.offsets[dim] >= end:
                break
            if box.meet(other) is not None:
                return box, other
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Sparse:
    """Some lanes of a box changed.

    positions: int64, shape (n,), strictly ascending row-major indices within the box.
    values: int8, int16, int32 or int64 (the lane width), shape (n,), none of them zero.
    """

    operation: Operation
    positions: Tensor
    values: Tensor

    @property
    def num_changes(self) -> int:
        return int(self.positions.numel())

    @property
    def nbytes(self) -> int:
        """Bytes of memory of its positions and values."""
        return self.positions.nbytes + self.values.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """Every lane of a box has a value (which may be zero: unchanged).

    values: int8, int16, int32 or int64 (the lane width), shape (box.num_lanes,), contiguous.
    """

    operation: Operation
    values: Tensor

    @property
    def num_changes(self) -> int:
        """How many lanes it writes; all of them."""
        return int(self.values.numel())

    @property
    def nbytes(self) -> int:
        """Bytes of memory of its values."""
        return self.values.nbytes


Change = Sparse | Dense


def same(one: Change, other: Change) -> bool:
    """Whether two changes are equal in kind, operation, positions and values, bit for bit."""
    if isinstance(one, Sparse) and isinstance(other, Sparse):
        return (
            one.operation == other.operation
            and _equal(one.positions, other.positions)
            and _equal(one.values, other.values)
        )
    if isinstance(one, Dense) and isinstance(other, Dense):
        return one.operation == other.operation and _equal(one.values, other.values)
    return False


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
