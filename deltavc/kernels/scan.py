"""Scan: one diff on the CPU, from lanes to a change.

Each piece of the lanes is looked at once. It begins as a list of the lanes that changed, relative to their
blocks; where it turns out to be dense, or once all pieces together changed more than a sparse change may,
the rest of it becomes a value for every lane. Only when all are through is the kind of the change known, and
the pieces of the other kind are turned into it, from what they hold and not from the lanes.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from torch import Tensor

from deltavc.change import Box, Change, Dense, Operation, Sparse
from deltavc.kernels import cpu, pieces, pool
from deltavc.kernels.cpu import BLOCK, SLACK, Array
from deltavc.kernels.pieces import Dtype, Lanes
from deltavc.kernels.runs import Runs

_MASK = (1 << 64) - 1


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
    scan = _Scan(old, new, operation, cpu.pack_runs(Runs.of(box, shape)), advance)
    try:
        return scan.change(max_sparse)
    except BaseException:
        # Also when interrupted: a base that moved, without the change that says how, would be lost.
        scan.undo()
        raise


class _Piece:
    """A range of positions, and what is known of it so far."""

    def __init__(self, first: int, last: int, dtype: Dtype) -> None:
        self.first, self.last = first, last
        self.num_lanes = last - first
        self.relative: Array = np.empty(min(self.num_lanes, max(self.num_lanes >> 6, 1 << 10)) + SLACK, np.uint16)
        self.values: Array = np.empty(len(self.relative), dtype)
        self.counts = np.zeros(-(-self.num_lanes // BLOCK), np.int64)
        self.delta = 0
        # Written by the loops themselves, so that it is right even when an interrupt comes as one returns.
        self.progress = np.zeros(4, np.int64)

    @property
    def num_listed(self) -> int:
        return int(self.progress[0])

    @property
    def num_searched(self) -> int:
        """Lanes, from the first, whose changes are listed."""
        return int(self.progress[1])

    @property
    def num_filled(self) -> int:
        """Lanes, from the first, up to which there are values for all."""
        return int(self.progress[2])

    @property
    def num_changed(self) -> int:
        return self.num_listed + int(self.progress[3])

    def grow(self) -> None:
        relative, values = self.relative, self.values
        self.relative = np.empty(2 * len(relative), relative.dtype)
        self.relative[: len(relative)] = relative
        self.values = np.empty(len(self.relative), values.dtype)
        self.values[: len(values)] = values

    def list_positions(self, start: int, positions: Array) -> None:
        """Write where the listed changes are, the piece's first lane being at `start`."""
        cpu.expand(self.relative[: self.num_listed], self.counts, start, positions)

    def scatter(self, values: Array) -> None:
        """Write values for all lanes that were searched."""
        values[: self.num_searched] = 0
        positions = np.empty(self.num_listed, np.int64)
        self.list_positions(0, positions)
        values[positions] = self.values[: self.num_listed]


class _Scan:
    def __init__(
        self, old: Tensor | None, new: Tensor, operation: Operation, runs: cpu.PackedRuns, advance: bool
    ) -> None:
        self._new = Lanes(new)
        self._old = None if old is None else Lanes(old)
        self._operation: Operation = operation
        self._runs = runs
        self._advance = advance
        contiguous = self._new.contiguous and (self._old is None or self._old.contiguous)
        ranges = pieces.cut_lanes(new.numel(), contiguous)
        self._pieces = [_Piece(first, last, self._new.dtype) for first, last in ranges]
        # Memory is only taken up where something is written.
        self._values: Array = np.empty(new.numel(), self._new.dtype)

    def change(self, max_sparse: int) -> tuple[Change, int]:
        pool.run([partial(self._look, piece, max_sparse) for piece in self._pieces])
        change = self._sparse() if self._num_changed() <= max_sparse else self._dense()
        return change, sum(piece.delta for piece in self._pieces) & _MASK

    def undo(self) -> None:
        """Give old lanes back what they held. Right at any point: it stores values, whatever is there now."""
        if self._old is None or not self._advance:
            return
        for piece in self._pieces:
            end = max(piece.num_searched, piece.num_filled)
            values = self._values[piece.first : piece.first + end].copy()
            piece.scatter(values)
            lanes = self._new.read(piece.first, piece.first + end)
            self._old.write(piece.first, lanes ^ values if self._operation == "xor" else lanes - values)

    def _num_changed(self) -> int:
        return sum(piece.num_changed for piece in self._pieces)

    def _look(self, piece: _Piece, max_sparse: int) -> None:
        old, new = self._read(piece.first, piece.last)
        while piece.num_searched < piece.num_lanes:
            allowed = max_sparse * piece.num_searched
            if piece.num_listed * self._new.num_lanes > allowed or self._num_changed() > max_sparse:
                self._fill(piece, old, new)
                break
            piece.delta += cpu.find(
                old,
                new,
                piece.relative,
                piece.values,
                piece.counts,
                piece.progress,
                piece.first,
                self._runs,
                self._operation == "xor",
                self._old is None,
                self._advance,
            )
            if piece.num_searched < piece.num_lanes:
                piece.grow()
        if self._advance and self._old is not None:
            self._old.write_back(piece.first, old)

    def _fill(self, piece: _Piece, old: Array, new: Array) -> None:
        """Write a value for every lane of a piece, for those searched already from the list."""
        start = piece.num_searched
        values = self._values[piece.first : piece.last]
        piece.scatter(values)
        piece.delta += cpu.difference(
            old if self._old is None else old[start:],
            new[start:],
            values[start:],
            piece.progress,
            piece.first + start,
            self._runs,
            self._operation == "xor",
            self._old is None,
            self._advance,
        )

    def _dense(self) -> Dense:
        def scatter(piece: _Piece) -> None:
            if not piece.num_filled:
                piece.scatter(self._values[piece.first : piece.last])

        pool.run([partial(scatter, piece) for piece in self._pieces])
        return Dense(self._operation, pieces.tensor(self._values))

    def _sparse(self) -> Sparse:
        lists = pool.run([partial(self._listed, piece) for piece in self._pieces])
        num_changed = sum(piece.num_listed for piece in lists)
        positions, values = np.empty(num_changed, np.int64), np.empty(num_changed, self._new.dtype)

        def copy(piece: _Piece, part: slice) -> None:
            piece.list_positions(piece.first, positions[part])
            values[part] = piece.values[: piece.num_listed]

        tasks = []
        at = 0
        for piece in lists:
            tasks.append(partial(copy, piece, slice(at, at + piece.num_listed)))
            at += piece.num_listed
        pool.run(tasks)
        return Sparse(self._operation, pieces.tensor(positions), pieces.tensor(values))

    def _listed(self, piece: _Piece) -> _Piece:
        """The piece as a list of its changes, which are the lanes whose values are not zero."""
        if not piece.num_filled:
            return piece
        found = _Piece(piece.first, piece.last, self._new.dtype)
        values = self._values[piece.first : piece.last]
        zeros = pieces.zeros(values.dtype)
        while found.num_searched < found.num_lanes:
            cpu.find(
                zeros,
                values,
                found.relative,
                found.values,
                found.counts,
                found.progress,
                found.first,
                self._runs,
                self._operation == "xor",
                True,
                False,
            )
            if found.num_searched < found.num_lanes:
                found.grow()
        return found

    def _read(self, first: int, last: int) -> tuple[Array, Array]:
        old = pieces.zeros(self._new.dtype) if self._old is None else self._old.read(first, last)
        return old, self._new.read(first, last)
