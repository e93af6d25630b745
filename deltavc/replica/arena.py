"""The arena: memory for what is staged, taken once from a device, so that staging never competes with serving for more.

    [ entry | entry | freed | entry |          free ]
                                    ^ top: the next entry goes here; when it reaches the end, entries move down

An entry is a few rows of lanes or offsets that belong together. Between calls entries stay where they are;
`place` may move others, so rows are asked for by their key each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

ALIGNMENT = 16
"""Bytes that every row begins at a multiple of: wide loads, whatever the rows before it are."""


class Arena:
    """Rows of numbers in one allocation. Not for several threads at once."""

    def __init__(self, device: torch.device, nbytes: int) -> None:
        self.nbytes = nbytes // ALIGNMENT * ALIGNMENT
        self._memory = torch.empty(self.nbytes, dtype=torch.uint8, device=device)
        self._entries: dict[int, tuple[int, tuple[Tensor, ...]]] = {}  # ascending by where they begin
        self._top = 0
        self.used = 0

    def __getitem__(self, key: int) -> tuple[Tensor, ...]:
        return self._entries[key][1]

    def __contains__(self, key: int) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries)

    def place(self, key: int, rows: Sequence[Tensor]) -> bool:
        """Copy rows in, in place of those under the same key; the rows of other keys may move.

        Returns:
            False if there is no room; then nothing has changed but that the key holds nothing.
        """
        self.free(key)
        needed = extent(rows)
        if self.used + needed > self.nbytes:
            return False
        if self._top + needed > self.nbytes:
            self._close_gaps()
        copies = self._views(self._top, rows)
        for copy, row in zip(copies, rows, strict=True):
            copy.copy_(row)
        self._entries[key] = self._top, copies
        self._top += needed
        self.used += needed
        return True

    def free(self, key: int) -> None:
        """Forget the rows under a key, if there are any."""
        found = self._entries.pop(key, None)
        if found is not None:
            self.used -= extent(found[1])
        if not self._entries:
            self._top = 0

    def clear(self) -> None:
        """Forget everything. The memory stays taken."""
        self._entries.clear()
        self._top = self.used = 0

    def _close_gaps(self) -> None:
        top = 0
        for key, (start, rows) in self._entries.items():
            if start > top:
                kept = [row.clone() for row in rows]  # where they go may overlap where they are
                rows = self._views(top, kept)
                for row, values in zip(rows, kept, strict=True):
                    row.copy_(values)
                self._entries[key] = top, rows
            top += extent(rows)
        self._top = top

    def _views(self, start: int, rows: Sequence[Tensor]) -> tuple[Tensor, ...]:
        found = []
        for row in rows:
            nbytes = row.numel() * row.element_size()
            found.append(self._memory[start : start + nbytes].view(row.dtype))
            start += _aligned(nbytes)
        return tuple(found)


def extent(rows: Sequence[Tensor]) -> int:
    """Bytes that rows take in an arena."""
    return sum(_aligned(row.numel() * row.element_size()) for row in rows)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
