"""Taking: the base goes to its new lanes, box by box, and says what changed.

places ── one by one, or many in a launch ──> take ──> change, move of the fingerprint, proof of what was read
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from deltavc import kernels
from deltavc.base import Undo
from deltavc.change import Box, Change, Dense, Operation, Sparse
from deltavc.delta.codecs.base import Codec
from deltavc.delta.frames import frame_boxes
from deltavc.held import Held
from deltavc.kernels import Part
from deltavc.layout import Layout, TensorSpec
from deltavc.timings import Timings


class View(Protocol):
    """What is read: a state that a caller wants committed, or the lanes of a version."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors that hold values, by name."""

    def lanes(self, name: str, box: Box) -> Tensor:
        """The lanes of one box of a tensor, contiguous; not to be written to."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a frame is of: a box of the tensor at a place in the layout."""

    place: int
    tensor: TensorSpec
    box: Box

    @property
    def nbytes(self) -> int:
        return self.box.num_lanes * self.tensor.lane_bytes

    def of(self, lanes: Held) -> Tensor:
        return lanes.at(self.tensor.name, self.box)

    def part(self, lanes: Tensor) -> Part:
        return Part(lanes, self.box, self.tensor.lane_shape)


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """One box that the base was moved to: the change, the move of its tensor's fingerprint, its own, lanes changed."""

    at: Place
    change: Change
    moved: int
    fingerprint: int
    changed_lanes: int


def places(layout: Layout, names: Collection[str], lanes: Held, frame_bytes: int) -> Iterator[Place]:
    """Where the frames of what is held of these tensors are of, in the layout's order.

    Each is of at most `frame_bytes` of lanes.
    """
    for place in layout.stored:
        tensor = layout.tensors[place]
        if tensor.name in names:
            for held in lanes.boxes(tensor):
                for box in frame_boxes(held.lengths, tensor.lane_bytes, frame_bytes):
                    yield Place(place, tensor, box.lifted(held))


def take(
    batch: Sequence[Place],
    fresh: bool,
    view: View,
    lanes: Held,
    undo: Undo[Any],
    codec: Codec | None,
    timings: Timings,
) -> list[Taken]:
    """Move boxes of the base to their new lanes; all of them `fresh`, which is from nothing, or none."""
    operation: Operation = "add" if codec is None else codec.operation
    held = [at.of(lanes) for at in batch]
    with timings.stage("read"):
        new = [view.lanes(at.tensor.name, at.box).to(old.device) for at, old in zip(batch, held, strict=True)]
    changes: Sequence[Change]
    moves: Sequence[int] | None = None
    with timings.stage("diff"):
        for _ in batch:
            undo.opening()
        if fresh:
            for old, after in zip(held, new, strict=True):
                old.copy_(after)
            changes = [Dense(operation, old.reshape(-1)) for old in held]
        else:
            parts = [at.part(after) for at, after in zip(batch, new, strict=True)]
            prefer = None if codec is None else codec.kind
            changes, moves = zip(*kernels.diff_all(held, parts, operation, prefer=prefer, advance=True), strict=True)
        for at, change in zip(batch, changes, strict=True):
            undo.closing(at.tensor.name, at.box, None if fresh else change)
    with timings.stage("verify"):
        read = held if fresh else new
        values = kernels.fingerprint_all([at.part(each) for at, each in zip(batch, read, strict=True)])
    return [
        Taken(at, change, moved, value, at.box.num_lanes if fresh else _num_changed(change))
        for at, change, moved, value in zip(batch, changes, moves or values, values, strict=True)
    ]


def _num_changed(change: Change) -> int:
    return change.num_changes if isinstance(change, Sparse) else int(change.values.count_nonzero())
