"""What is to happen to cells and is not in an arena yet, and how much of it can be brought there at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from deltavc import kernels
from deltavc.bound import Cell
from deltavc.change import Box, Change, Dense
from deltavc.kernels import pool

MIN_RUN = 1024
"""Lanes next to each other in memory that are worth a segment of their own, which takes 2 KiB beside the arena; shorter
runs are listed lane by lane, within it."""

_FLUSH_COST = 6
"""Memory that bringing changes into the arena takes, in multiples of them: composed, old and new lanes, offsets."""

_LIST_COST = 24
"""Bytes that each lane takes on top where a whole cell has to be listed: its place, twice, and its offset."""


@dataclass(slots=True)
class Pending:
    """What is to happen to a cell.

    fresh: its tensor starts from zero. values: then, once there are any, all its lanes. changes: otherwise.
    """

    fresh: bool = False
    values: Tensor | None = None
    changes: list[Change] = field(default_factory=list)
    _own: bool = False  # whether `values` is of this cell alone: tied ones that lie apart are told the same change

    def add(self, change: Change, cell: Cell) -> int:
        """Take in a change that comes after all others. Returns the bytes of memory it holds from now on."""
        if not self.fresh:
            self.changes.append(change)
            return change.nbytes
        if self.values is None:
            if isinstance(change, Dense):
                self.values = change.values  # from zero, a difference is the value
                return change.nbytes
            self.values = torch.zeros(cell.box.num_lanes, dtype=cell.lanes.dtype, device=cell.device)
        elif not self._own:
            self.values = self.values.clone()
        self._own = True
        # On one thread: how many may work is for those to say who call this.
        pool.apart(self.values.device, partial(apply_to, self.values, change))
        return self.values.nbytes

    def cost(self, cell: Cell) -> int:
        """Bytes of memory that it takes to bring it into an arena."""
        cost = _FLUSH_COST * (cell.lanes.nbytes if self.fresh else sum(change.nbytes for change in self.changes))
        every = self.fresh or any(isinstance(change, Dense) for change in self.changes)
        return cost + _LIST_COST * cell.box.num_lanes * (every and not has_runs(cell.lanes))


def batches(pending: Mapping[int, Pending], cells: Sequence[Cell], budget: int) -> list[list[int]]:
    """Cells of one device together, as many as fit into the budget."""
    found: list[list[int]] = []
    held = 0
    for number in sorted(pending, key=lambda number: (str(cells[number].device), number)):
        cell = cells[number]
        cost = pending[number].cost(cell)
        if not found or held + cost > budget or cells[found[-1][0]].device != cell.device:
            found.append([])
            held = 0
        found[-1].append(number)
        held += cost
    return found


def apply_to(values: Tensor, change: Change) -> None:
    """Change lanes that lie in a row."""
    line = Box.whole((len(values),))
    kernels.apply(values, change, line, line.lengths)


def has_runs(lanes: Tensor) -> bool:
    """Whether lanes lie next to each other in runs that are worth a segment."""
    return run_of(lanes) >= min(MIN_RUN, lanes.numel())


def run_of(lanes: Tensor) -> int:
    """Lanes in row-major order that lie next to each other in memory."""
    run = 1
    for length, stride in zip(reversed(lanes.shape), reversed(lanes.stride()), strict=True):
        if length != 1 and stride != run:
            break
        run *= length
    return run
