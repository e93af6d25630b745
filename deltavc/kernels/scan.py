"""Scan: one diff on the CPU, from lanes to a change.

Every piece is first searched for lanes that changed, and what is found is kept compactly, relative to its
block. Once all pieces together hold more than a sparse change may, the rest is no longer searched: each
piece then writes a value for every lane, from what it has found and, beyond that, from another look. So
nothing is read twice, whichever way it ends.
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
        self.progress = np.zeros(3, np.int64)

    @property
    def num_found(self) -> int:
        return int(self.progress[0])

    @property
    def num_scanned(self) -> int:
        """Lanes from the first that were searched."""
        return int(self.progress[1])

    @property
    def num_filled(self) -> int:
        """Lanes from the first that have values, once the change is known to be dense."""
        return int(self.progress[2])

    def grow(self) -> None:
        relative, values = self.relative, self.values
        self.relative = np.empty(2 * len(relative), relative.dtype)
        self.relative[: len(relative)] = relative
        self.values = np.empty(len(self.relative), values.dtype)
        self.values[: len(values)] = values

    def list_positions(self, start: int, positions: Array) -> None:
        """Write where changes were found, the piece's first lane being at `start`."""
        cpu.expand(self.relative[: self.num_found], self.counts, start, positions)

    def scatter(self, values: Array) -> None:
        """Write what was found into values of all lanes of the piece."""
        positions = np.empty(self.num_found, np.int64)
        self.list_positions(0, positions)
        values[positions] = self.values[: self.num_found]


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
        self._values: Array = np.empty(0, self._new.dtype)

    def change(self, max_sparse: int) -> tuple[Change, int]:
        if max_sparse >= 0:
            pool.run([partial(self._search, piece, max_sparse) for piece in self._pieces])
        change = self._sparse() if self._num_found() <= max_sparse else self._dense()
        return change, sum(piece.delta for piece in self._pieces) & _MASK

    def undo(self) -> None:
        """Give old lanes back what they held. Right at any point: it stores values, whatever is there now."""
        if self._old is None or not self._advance:
            return
        for piece in self._pieces:
            lanes = self._new.read(piece.first, piece.last)
            values = np.zeros(piece.num_lanes, lanes.dtype)
            piece.scatter(values)
            filled = slice(piece.num_scanned, piece.num_filled)
            values[filled] = self._values[piece.first : piece.last][filled]
            before = lanes ^ values if self._operation == "xor" else lanes - values
            self._old.write(piece.first, before[: max(piece.num_scanned, piece.num_filled)])

    def _num_found(self) -> int:
        return sum(piece.num_found for piece in self._pieces)

    def _search(self, piece: _Piece, max_sparse: int) -> None:
        old, new = self._read(piece.first, piece.last)
        while piece.num_scanned < piece.num_lanes and self._num_found() <= max_sparse:
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
            if piece.num_scanned < piece.num_lanes:
                piece.grow()
        self._write_back(piece.first, old)

    def _sparse(self) -> Sparse:
        positions = np.empty(self._num_found(), np.int64)
        values = np.empty(self._num_found(), self._new.dtype)

        def copy(piece: _Piece, part: slice) -> None:
            piece.list_positions(piece.first, positions[part])
            values[part] = piece.values[: piece.num_found]

        tasks = []
        at = 0
        for piece in self._pieces:
            tasks.append(partial(copy, piece, slice(at, at + piece.num_found)))
            at += piece.num_found
        if at < pieces.SMALL:
            for task in tasks:
                task()
        else:
            pool.run(tasks)
        return Sparse(self._operation, pieces.tensor(positions), pieces.tensor(values))

    def _dense(self) -> Dense:
        self._values = np.empty(self._new.num_lanes, self._new.dtype)
        pool.run([partial(self._fill, piece) for piece in self._pieces])
        return Dense(self._operation, pieces.tensor(self._values))

    def _fill(self, piece: _Piece) -> None:
        """Write a value for every lane of a piece."""
        values = self._values[piece.first : piece.last]
        values[: piece.num_scanned] = 0
        piece.scatter(values)
        first = piece.first + piece.num_scanned
        old, new = self._read(first, piece.last)
        piece.delta += cpu.difference(
            old,
            new,
            values[piece.num_scanned :],
            piece.progress,
            first,
            self._runs,
            self._operation == "xor",
            self._old is None,
            self._advance,
        )
        self._write_back(first, old)

    def _read(self, first: int, last: int) -> tuple[Array, Array]:
        old = pieces.zeros(self._new.dtype) if self._old is None else self._old.read(first, last)
        return old, self._new.read(first, last)

    def _write_back(self, first: int, old: Array) -> None:
        if self._advance and self._old is not None:
            self._old.write_back(first, old)
