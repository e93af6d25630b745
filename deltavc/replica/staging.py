"""Staging: a path walked on what it touches alone, beside live tensors that go on serving.

    frames ─> changes of cells ─> pending ──when there are many──> arena: where, old, new ─> segments to swap
              (routing)           composed, then old is read from live memory

Live lanes are only read. For each cell that the path touches the arena holds the lanes that the path
touches, as they are live (`old`) and as they are at the version reached (`new`): listed with their places, or the whole
cell where that takes less. A staging can be walked on to a further version at any time: what is new becomes
what was, and lanes touched for the first time join.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from deltavc import kernels, walk
from deltavc.bound import Bound, Cell
from deltavc.change import Box, Change, Dense, Operation, Sparse
from deltavc.errors import StageCancelled, StagingTooSmall
from deltavc.fingerprints import MODULUS
from deltavc.kernels import Segment, SwapTable, pool
from deltavc.replica.arena import ALIGNMENT, Arena
from deltavc.replica.pending import Pending, apply_to, batches, has_runs, run_of
from deltavc.replica.swaps import Swap
from deltavc.routing import Router
from deltavc.timings import Timings
from deltavc.walk import Leg, Objects


@dataclass(frozen=True, slots=True)
class _Ready:
    """What a cell holds once its pending changes are in.

    at: places within the cell, ascending, of the lanes listed; None for all of them. moved: by how much the new
    lanes move the cell's fingerprint from the old ones.
    """

    at: Tensor | None
    offsets: Tensor | None
    old: Tensor
    new: Tensor
    moved: int

    @property
    def rows(self) -> list[Tensor]:
        return [row for row in (self.at, self.offsets, self.old, self.new) if row is not None]


class _Full(Exception):
    """The arena has no room for what is to be placed."""


class Staging:
    """What is staged for the cells of a replica. One thread at a time.

    memory: bytes that changes on their way may take beside the arenas. threads: how many may work on the CPU;
    None for all. cancelled: set from another thread, it ends the walk.
    """

    def __init__(self, bound: Bound, router: Router, nbytes: int, memory: int, threads: int | None) -> None:
        self._cells = bound.cells
        self._copies = max(Counter(map(bound.stored, bound.names)).values(), default=1)  # of a tensor, as ties are
        self._router = router
        self._memory = memory
        self._threads = threads
        self._arenas = _arenas(self._cells, nbytes)
        self._pending: dict[int, Pending] = {}
        self._pending_nbytes = 0
        self._moved: dict[int, int] = {}
        self.nbytes = nbytes
        self.cancelled = threading.Event()

    # --- walking ---

    def walk(self, legs: list[Leg], objects: Objects, timings: Timings) -> int:
        """Walk on from what is staged. After an exception nothing is staged.

        Returns:
            Bytes of frames that were fetched.

        Raises:
            StagingTooSmall: the arena cannot hold the lanes that the path touches.
            StageCancelled, CorruptObject, MissingObject, UnknownCodec, StoreError
        """
        used = sum(arena.used for arena in self._arenas.values())
        try:
            return self._walk(legs, objects, timings)
        except _Full:
            self.clear()
        except BaseException:
            self.clear()
            raise
        raise StagingTooSmall(self.nbytes, self.enough(sum(leg.step.edge.changes for leg in legs), used))

    def enough(self, changes: int, used: int = 0) -> int:
        """Bytes that surely hold what was staged, which takes `used`, and a path from there on that writes so many
        lanes."""
        width = max(cell.lanes.element_size() for cell in self._cells)
        listed = changes * self._copies * (16 + 2 * width)
        whole = sum(cell.box.num_lanes * (16 + 2 * cell.lanes.element_size()) for cell in self._cells)
        return min(listed + used, whole) + ALIGNMENT * 4 * len(self._cells)

    def clear(self) -> None:
        """Forget what is staged."""
        for arena in self._arenas.values():
            arena.clear()
        self._pending.clear()
        self._pending_nbytes = 0
        self._moved.clear()

    def _walk(self, legs: list[Leg], objects: Objects, timings: Timings) -> int:
        nbytes = 0
        at = 0
        fetched = walk.fetched(legs, objects, timings, self._router.boxes)
        for number, jobs in itertools.groupby(fetched, lambda item: item[0].leg):
            self._enter(legs[at : number + 1])
            at = number + 1
            tasks = self._router.tasks(legs[number], jobs, objects, timings)
            for frame_nbytes, changes in pool.in_order(tasks, self._memory // 4, self._threads):
                self.check_cancelled()
                nbytes += frame_nbytes
                for cell, change in changes:
                    self._add(cell, change)
                if self._pending_nbytes > self._memory // 4:
                    self._flush(timings)
        self._enter(legs[at:])
        self._flush(timings)
        return nbytes

    def check_cancelled(self) -> None:
        """Raise StageCancelled if somebody has cancelled what is being staged."""
        if self.cancelled.is_set():
            raise StageCancelled

    def _enter(self, legs: Iterable[Leg]) -> None:
        for leg in legs:
            for number in self._router.numbers(leg.fresh):
                self._pending[number] = Pending(fresh=True)

    def _add(self, number: int, change: Change) -> None:
        cell = self._cells[number]
        if cell.device.type != "cpu":
            change = walk.on_device(change, cell.device)
        pending = self._pending.setdefault(number, Pending())
        self._pending_nbytes += pending.add(change, cell)

    # --- into the arena ---

    def _flush(self, timings: Timings) -> None:
        """Bring the pending changes into the arena, a few cells at a time."""
        with timings.stage("gather"):
            pending, self._pending, self._pending_nbytes = self._pending, {}, 0
            for batch in batches(pending, self._cells, self._memory // 4):
                self.check_cancelled()
                tasks = [(0, partial(self._combined, number, pending.pop(number))) for number in batch]
                if self._cells[batch[0]].device.type == "cpu":
                    ready = list(pool.in_order(tasks, self._memory, self._threads))
                else:
                    ready = [task() for _, task in tasks]  # here, on this thread's stream
                for number, found in zip(batch, ready, strict=True):
                    self._place(number, found)

    def _place(self, number: int, ready: _Ready) -> None:
        arena = self._arenas[self._cells[number].device]
        if not arena.place(number, ready.rows):
            raise _Full
        self._moved[number] = ready.moved

    def _combined(self, number: int, pending: Pending) -> _Ready:
        cell = self._cells[number]
        num_lanes = cell.box.num_lanes
        if pending.fresh:
            values = pending.values
            if values is None:
                values = torch.zeros(num_lanes, dtype=cell.lanes.dtype, device=cell.device)
            return self._block(cell, _live(cell), values)
        staged = self._staged(number)
        changes = pending.changes
        if len({change.operation for change in changes}) > 1:
            return self._through_values(cell, staged, changes)
        if staged is not None:
            changes = [_change(staged, changes[0].operation), *changes]
        change = _composed(changes, num_lanes)
        if isinstance(change, Sparse) and not _listed_is_smaller(cell, change.num_changes):
            change = kernels.densify(change, num_lanes, cell.lanes.dtype)
        if isinstance(change, Dense):
            old = _live(cell)
            return self._block(cell, old, _after(old, change))
        return self._listed(cell, change)

    def _through_values(self, cell: Cell, staged: _Ready | None, changes: Sequence[Change]) -> _Ready:
        """Operations that do not compose: each is applied to the lanes that any of them touches."""
        every = any(isinstance(change, Dense) for change in changes) or (staged is not None and staged.at is None)
        if every:
            new = _live(cell)
            at = None
        else:
            lists = [change.positions for change in changes if isinstance(change, Sparse)]
            if staged is not None and staged.at is not None:
                lists.append(staged.at)
            at = torch.unique(torch.cat(lists))
            new = kernels.gather(kernels.memory_of(cell.lanes), kernels.offsets_of(cell.lanes, at))
        old = new.clone()
        if staged is not None:
            changes = [_change(staged, "add"), *changes]
        for change in changes:
            if at is not None and isinstance(change, Sparse):
                change = Sparse(change.operation, torch.searchsorted(at, change.positions), change.values)
            apply_to(new, change)
        if at is None:
            return self._block(cell, old, new)
        return self._ready(cell, at, old, new)

    def _listed(self, cell: Cell, change: Sparse) -> _Ready:
        old = kernels.gather(kernels.memory_of(cell.lanes), kernels.offsets_of(cell.lanes, change.positions))
        return self._ready(cell, change.positions, old, _after(old, Dense(change.operation, change.values)))

    def _ready(self, cell: Cell, at: Tensor, old: Tensor, new: Tensor) -> _Ready:
        offsets = None if cell.lanes.is_contiguous() else kernels.offsets_of(cell.lanes, at)
        return _Ready(at, offsets, old, new, kernels.moved(at, old, new, cell.box, cell.shape))

    def _block(self, cell: Cell, old: Tensor, new: Tensor) -> _Ready:
        """All lanes of a cell, or only those that differ where that takes less: some codecs write every lane."""
        if _listed_is_smaller(cell, int((old != new).count_nonzero())):
            line = Box.whole((len(old),))
            change, _ = kernels.diff(old, new, "xor", line, line.lengths, prefer="sparse")
            assert isinstance(change, Sparse)
            at = change.positions
            return self._ready(cell, at, kernels.gather(old, at), kernels.gather(new, at))
        before, after = (
            kernels.fingerprint(values.view(cell.box.lengths), cell.box, cell.shape) for values in (old, new)
        )
        return _Ready(None, None, old, new, (after - before) % MODULUS)

    def _staged(self, number: int) -> _Ready | None:
        """What the arena holds of a cell."""
        cell = self._cells[number]
        arena = self._arenas[cell.device]
        if number not in arena:
            return None
        *where, old, new = arena[number]
        at, offsets = (*where, None, None)[:2]
        return _Ready(at, offsets, old, new, self._moved[number])

    # --- what has come of it ---

    def moved(self) -> Mapping[int, int]:
        """By how much the fingerprint of each cell moves, modulo 2**64, by its number."""
        return self._moved

    def swaps(self) -> list[Swap]:
        """What is staged, ready to be swapped in: one for each device."""
        found = []
        for device, arena in self._arenas.items():
            names, segments = [], []
            for number, cell in enumerate(self._cells):
                if cell.device == device and number in arena:
                    for segment in self._segments(cell, number):
                        names.append(cell.name)
                        segments.append(segment)
            found.append(Swap(SwapTable(segments), names))
        return found

    def _segments(self, cell: Cell, number: int) -> Iterator[Segment]:
        staged = self._staged(number)
        assert staged is not None
        memory = kernels.memory_of(cell.lanes)
        if staged.at is not None:
            yield Segment(memory, staged.at if staged.offsets is None else staged.offsets, staged.old, staged.new)
            return
        run = run_of(cell.lanes)
        first = torch.arange(0, cell.box.num_lanes, run, device=cell.device)
        for number, offset in enumerate(kernels.offsets_of(cell.lanes, first).tolist()):
            part = slice(number * run, (number + 1) * run)
            yield Segment(memory, offset, staged.old[part], staged.new[part])

    @property
    def num_lanes(self) -> int:
        """Lanes that are staged."""
        return sum(len(arena[number][-1]) for arena in self._arenas.values() for number in arena)


def default_bytes(nbytes: int) -> int:
    """Staging memory for live tensors of so many bytes: enough for 2 % of bf16 lanes changed."""
    return max(64 << 20, nbytes // 8)


def _arenas(cells: Sequence[Cell], nbytes: int) -> dict[torch.device, Arena]:
    return {device: Arena(device, nbytes) for device in dict.fromkeys(cell.device for cell in cells)}


def _composed(changes: Sequence[Change], num_lanes: int) -> Change:
    """One change of several in a row of one operation, two neighbours at a time."""
    found = list(changes)
    while len(found) > 1:
        pairs = zip(found[::2], found[1::2], strict=False)
        last = found[len(found) // 2 * 2 :]
        found = [kernels.compose(first, second, num_lanes) for first, second in pairs] + last
    return found[0]


def _change(staged: _Ready, operation: Operation) -> Change:
    line = Box.whole((len(staged.old),))
    change, _ = kernels.diff(staged.old, staged.new, operation, line, line.lengths, prefer="dense")
    return change if staged.at is None else Sparse(operation, staged.at, change.values)


def _after(old: Tensor, change: Dense) -> Tensor:
    new = old.clone()
    apply_to(new, change)
    return new


def _live(cell: Cell) -> Tensor:
    """A copy of a cell's live lanes in a row."""
    return cell.lanes.clone(memory_format=torch.contiguous_format).reshape(-1)


def _listed_is_smaller(cell: Cell, count: int) -> bool:
    width = cell.lanes.element_size()
    where = 8 if cell.lanes.is_contiguous() else 16
    return not has_runs(cell.lanes) or count * (where + 2 * width) < cell.box.num_lanes * 2 * width
