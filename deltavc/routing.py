"""Routing: what a frame says of the cells it meets.

A frame is a change of one box of a tensor as it was committed; a cell is a box of the same tensor as it lies in
live memory. For whole tensors both are cut alike, and the change is the cell's as it is.

    frame   rows 0-7 of 16                cell   columns 4-7, all rows
            . . . . x . x .                      x . x .
            . x . . . . . .       ──>            . . . .      positions count within the cell
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from deltavc import walk
from deltavc.bound import Bound
from deltavc.change import Box, Change, Dense, Sparse
from deltavc.delta.frames import Frame
from deltavc.timings import Timings
from deltavc.walk import Job, Leg, Objects

Changes = list[tuple[int, Change]]
"""Changes on the CPU, each with the number of the cell it is of."""


class Router:
    """Which cells a tensor's frames go to.

    boxes: by stored name, what frames have to meet to be wanted; None where whole tensors are held.
    """

    def __init__(self, bound: Bound) -> None:
        self._cells = bound.cells
        self._numbers: dict[str, list[int]] = {}
        for number, cell in enumerate(bound.cells):
            self._numbers.setdefault(bound.stored(cell.name), []).append(number)
        held = {name: [bound.cells[number].box for number in cells] for name, cells in self._numbers.items()}
        self.boxes = held if bound.partial else None

    @property
    def names(self) -> frozenset[str]:
        """Stored names of the tensors that are held, wholly or in part."""
        return frozenset(self._numbers)

    def numbers(self, names: Iterable[str]) -> Iterator[int]:
        """The cells of some stored tensors."""
        for name in names:
            yield from self._numbers.get(name, ())

    def tasks(
        self, leg: Leg, jobs: Iterable[tuple[Job, bytes]], objects: Objects, timings: Timings
    ) -> Iterator[tuple[int, Callable[[], tuple[int, Changes]]]]:
        """A task for each frame of a leg, with the memory it may take, that gives its bytes and what it changes."""
        for job, body in jobs:
            for frame in job.frames:
                yield walk.decode_cost(leg, frame), self._task(leg, job, frame, body, objects, timings)

    def _task(
        self, leg: Leg, job: Job, frame: Frame, body: bytes, objects: Objects, timings: Timings
    ) -> Callable[[], tuple[int, Changes]]:
        def task() -> tuple[int, Changes]:
            with timings.stage("decode"):
                change = walk.decode(leg, job, frame, body, objects)
                tensor = leg.frames_layout.tensors[frame.place]
                box = frame.box or Box.whole(tensor.lane_shape)
                change = change if leg.step.forward else backwards(change)
                parts = (
                    (number, change_in(change, box, self._cells[number].box))
                    for number in self._numbers.get(tensor.name, ())
                )
                return frame.nbytes, [(number, part) for number, part in parts if part is not None]

        return task


def change_in(change: Change, frame: Box, cell: Box) -> Change | None:
    """The part of a frame's change that lies in a cell, in the cell's own terms.

    Args:
        frame, cell: boxes in the lane shape of one tensor. change: of `frame`.

    Returns:
        Dense if it says something of every lane of the cell, Sparse otherwise; None if it says nothing.
    """
    if frame == cell:
        return change
    common = frame.meet(cell)
    if common is None:
        return None
    if isinstance(change, Dense):
        values = change.values.view(frame.lengths)[common.within(frame).index].reshape(-1)
        if common == cell:
            return Dense(change.operation, values)
        at = _indices(common.within(cell), cell.lengths, values.device)
        differs = values != 0
        return Sparse(change.operation, at[differs], values[differs])
    if frame.lengths[1:] == cell.lengths[1:] and frame.offsets[1:] == cell.offsets[1:]:
        return _shifted(change, frame, cell)
    return _selected(change, frame, cell)


def backwards(change: Change) -> Change:
    """The change that undoes it."""
    if change.operation == "xor":
        return change
    if isinstance(change, Dense):
        return Dense("add", -change.values)
    return Sparse("add", change.positions, -change.values)


def _shifted(change: Sparse, frame: Box, cell: Box) -> Sparse:
    """Both boxes are whole rows: positions move by a number, and those inside follow one another."""
    row = math.prod(cell.lengths[1:])
    shift = (frame.offsets[0] - cell.offsets[0]) * row
    bounds = torch.tensor([-shift, cell.num_lanes - shift], device=change.positions.device)
    first, last = torch.searchsorted(change.positions, bounds).tolist()
    return Sparse(change.operation, change.positions[first:last] + shift, change.values[first:last])


def _selected(change: Sparse, frame: Box, cell: Box) -> Sparse:
    """Any two boxes: lane by lane. Row-major order is the same in both."""
    rest = change.positions
    at = torch.zeros_like(rest)
    inside = torch.ones_like(rest, dtype=torch.bool)
    stride = 1
    dims = zip(frame.offsets, frame.lengths, cell.offsets, cell.lengths, strict=True)
    for start, length, cell_start, cell_length in reversed(list(dims)):
        place = rest % length + (start - cell_start)
        rest = rest // length
        inside &= (place >= 0) & (place < cell_length)
        at += place * stride
        stride *= cell_length
    return Sparse(change.operation, at[inside], change.values[inside])


def _indices(part: Box, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Row-major indices, within lanes of this shape, of those in a part."""
    at = torch.zeros((), dtype=torch.int64, device=device)
    for start, length, bound in zip(part.offsets, part.lengths, shape, strict=True):
        at = at[..., None] * bound + torch.arange(start, start + length, device=device)
    return at.reshape(-1)
